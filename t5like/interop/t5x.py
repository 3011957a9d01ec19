"""Imports T5X checkpoints: legacy msgpack files and zarr folders, scanned or not.

T5X stores no config with its weights, so sizes are inferred from shapes. The activation and the maximum relative
distance, which shapes do not determine, are those of all published T5X models unless a config is given.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from flax import serialization, traverse_util

from t5like.errors import UserError
from t5like.interop.huggingface import Imported
from t5like.interop.layouts import check_parameters, stack_layers, unflatten, unstack_layers
from t5like.interop.mapping import Parameters, Rule, check_complete, import_tensors
from t5like.models import T5, TransformerConfig

# T5X's names of the parts of a layer -> ours. Norms precede the part that they are named after.
_ENCODER_LAYER = {
  "attention": "attention",
  "mlp": "mlp",
  "pre_attention_layer_norm": "attention_norm",
  "pre_mlp_layer_norm": "mlp_norm",
}
_DECODER_LAYER = {
  "self_attention": "attention",
  "encoder_decoder_attention": "cross_attention",
  "mlp": "mlp",
  "pre_self_attention_layer_norm": "attention_norm",
  "pre_cross_attention_layer_norm": "cross_attention_norm",
  "pre_mlp_layer_norm": "mlp_norm",
}
_STACKS = {"encoder": _ENCODER_LAYER, "decoder": _DECODER_LAYER}
_BIAS = "relpos_bias/rel_embedding"
_PLACEHOLDER = "PLACEHOLDER://"  # Orbax's reference to a zarr folder


def load(path: Path | str, config: TransformerConfig | None = None, **changes: object) -> Imported:
  """Reads a checkpoint file or folder; `config`, if given, must match it. `changes` are fields of the config."""
  source = str(path)
  tensors = _unstack_scanned(read_target(Path(path)))
  inferred = infer_config(tensors, source)
  if config is None:
    config = inferred
  else:
    _check_sizes(config, inferred, source)
  config = dataclasses.replace(config, **changes)
  model = T5(config)
  params, report = import_tensors(rules(config), tensors, tensors.__getitem__, source)
  params = {name: _merge_heads(name, value) for name, value in params.items()}
  check_complete(report, source)
  if config.scan_layers:
    params = stack_layers(params)
  check_parameters(model, params, source)
  return Imported(model, unflatten(params), report, "t5x")


def rules(config: TransformerConfig) -> list[Rule]:
  found = [Rule("token_embedder/embedding", ("token_embedder/embedding",))]
  if not config.tie_embeddings:
    found.append(Rule("decoder/logits_dense/kernel", ("logits_dense/kernel",)))
  for stack, layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
    owners = [stack] if config.share_relative_bias else [f"{stack}/layers_{i}" for i in range(layers)]
    found += [Rule(f"{owner}/{_BIAS}", (f"{owner}/{_BIAS}",)) for owner in owners]
    found.append(Rule(f"{stack}/{stack}_norm/scale", (f"{stack}/final_norm/scale",)))
    for i in range(layers):
      for theirs, ours in _STACKS[stack].items():
        found += [
          Rule(f"{stack}/layers_{i}/{theirs}/{leaf}", (f"{stack}/layers_{i}/{ours}/{leaf}",))
          for leaf in _leaves(ours, config.gated_mlp)
        ]
  return found


def _leaves(part: str, gated: bool) -> list[str]:
  if part.endswith("_norm"):
    return ["scale"]
  if part == "mlp":
    return [f"{name}/kernel" for name in (("wi_0", "wi_1", "wo") if gated else ("wi", "wo"))]
  return [f"{name}/kernel" for name in ("query", "key", "value", "out")]


def infer_config(tensors: Parameters, source: str) -> TransformerConfig:
  """Infers the config from shapes. Two MLP inputs mean T5 1.1's gated GELU, one means T5 1.0's ReLU."""
  try:
    vocab_size, embed_dim = tensors["token_embedder/embedding"].shape
    shared = f"encoder/{_BIAS}" in tensors
    heads, buckets = tensors[f"encoder/{_BIAS}" if shared else f"encoder/layers_0/{_BIAS}"].shape
    query = tensors["encoder/layers_0/attention/query/kernel"]
    mlp_dim = tensors["encoder/layers_0/mlp/wo/kernel"].shape[0]
  except KeyError as missing:
    raise UserError(
      f"{source} is not a T5X encoder-decoder", missing=missing, found=", ".join(sorted(tensors)[:6])
    ) from missing
  tied, gated = "decoder/logits_dense/kernel" not in tensors, "encoder/layers_0/mlp/wi_0/kernel" in tensors

  def count(stack):
    return len({m[0] for m in (re.match(rf"{stack}/layers_\d+", name) for name in tensors) if m})

  return TransformerConfig(
    vocab_size=vocab_size,
    embed_dim=embed_dim,
    mlp_dim=mlp_dim,
    num_heads=heads,
    head_dim=query.size // (embed_dim * heads),
    num_encoder_layers=count("encoder"),
    num_decoder_layers=count("decoder"),
    activation="gelu" if gated else "relu",
    gated_mlp=gated,
    relative_buckets=buckets,
    share_relative_bias=shared,
    tie_embeddings=tied,
    scale_logits=tied,
    param_dtype=str(tensors["token_embedder/embedding"].dtype),
  )


def _check_sizes(config: TransformerConfig, inferred: TransformerConfig, source: str) -> None:
  """Raises UserError with all fields in which the config differs from the checkpoint."""
  sizes = (
    "vocab_size", "embed_dim", "mlp_dim", "num_heads", "head_dim", "num_encoder_layers", "num_decoder_layers",
    "relative_buckets", "share_relative_bias", "gated_mlp", "tie_embeddings",
  )  # fmt: skip
  differing = [field for field in sizes if getattr(config, field) != getattr(inferred, field)]
  if differing:
    raise UserError(
      f"{source} has another size or vocabulary than the config",
      differs="\n".join(f"{f}: checkpoint {getattr(inferred, f)}, config {getattr(config, f)}" for f in differing),
      try_="the gin file that belongs to the checkpoint, or none to infer sizes from it",
    )


def _merge_heads(name: str, kernel: np.ndarray) -> np.ndarray:
  """Merges the heads axis of T5X models that have one: [embed, heads, kv] or, for out, [heads, kv, embed]."""
  if kernel.ndim != 3:
    return kernel
  return kernel.reshape(-1, kernel.shape[-1]) if name.endswith("out/kernel") else kernel.reshape(kernel.shape[0], -1)


def _unstack_scanned(tensors: Parameters) -> Parameters:
  """Unstacks layers. T5X scans over axis 1 (`encoder/layers/x` or `encoder/encoder/x`)."""
  separate = {}
  for name, value in tensors.items():
    name = name.replace("relative_posemb/", "relpos_bias/")  # the name in scalable T5X models
    match = re.fullmatch(r"(encoder|decoder)/(?:layers|\1)/(.*)", name)
    if match is None:
      separate[name] = value
    else:
      separate[f"{match[1]}/layers/{match[2]}"] = np.moveaxis(value, 1, 0)
  return unstack_layers(separate)


def read_target(path: Path) -> Parameters:
  """Reads the parameters (not the optimizer state) of a checkpoint file or folder, by T5X path."""
  index = _index_file(path)
  try:
    tree = serialization.msgpack_restore(index.read_bytes())
  except Exception as error:  # msgpack raises several unrelated types on damaged input
    raise UserError(f"{index} is not an intact T5X checkpoint", reason=f"{type(error).__name__}: {error}") from error
  tree = tree.get("optimizer", tree) if isinstance(tree, Mapping) else {}
  target = tree.get("target", tree.get("params"))
  if not isinstance(target, Mapping):
    raise UserError(f"{index} has no `target` parameters", found=", ".join(map(str, tree)))
  target = target.get("params", target)

  def is_spec(_, node):
    return isinstance(node, Mapping) and "kvstore" in node

  flat = traverse_util.flatten_dict(target, sep="/", is_leaf=is_spec)
  return {name: _tensor(leaf, index.parent, name) for name, leaf in flat.items()}


def _index_file(path: Path) -> Path:
  """Returns the msgpack file of a checkpoint, given as file, folder, or parent of a single checkpoint_N."""
  if path.is_file():
    return path
  inside = [path / "checkpoint", *sorted(path.glob("checkpoint_*/checkpoint")), *sorted(path.glob("checkpoint_*"))]
  files = [p for p in inside if p.is_file()]
  if not files:
    raise UserError(f"no T5X checkpoint at {path}", expected="a file `checkpoint`, or a folder checkpoint_<step>")
  if len(files) > 1:
    raise UserError(f"{path} has several checkpoints", found=", ".join(str(p.relative_to(path)) for p in files))
  return files[0]


def _tensor(leaf: object, folder: Path, name: str) -> np.ndarray:
  """Returns an array stored in the index, or read from the zarr folder that it refers to."""
  if isinstance(leaf, Mapping):
    return _read_zarr(folder / leaf["kvstore"]["path"], name)
  if isinstance(leaf, str) and leaf.startswith(_PLACEHOLDER):
    return _read_zarr(folder / leaf.removeprefix(_PLACEHOLDER), name)
  return np.asarray(leaf)


def _read_zarr(folder: Path, name: str) -> np.ndarray:
  import tensorstore

  spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(folder)}}
  try:
    return np.asarray(tensorstore.open(spec).result().read().result())
  except ValueError as error:
    raise UserError(f"cannot read {name} of a T5X checkpoint", folder=folder, reason=error) from error
