"""Reads a folder of Hugging Face's peft as a method and what it has trained."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import numpy as np

from t5like.errors import UserError
from t5like.finetuning.methods import IA3, LoRA, Method
from t5like.inference.parameters.peft_prompts import read_prefix, read_prompt
from t5like.interop.huggingface import tensor_rules
from t5like.interop.layouts import LAYER, expected_shapes, unstacked_shapes
from t5like.interop.peft_files import (
  PROMPTS,
  HFModule,
  PeftFolder,
  check_not_tied,
  check_scaled,
  linear_modules,
  matches,
  most_common,
  pattern_value,
)

# Settings of peft that change the result, and the values that have a counterpart here.
_SUPPORTED = {
  "bias": ("none", None),
  "lora_bias": (False, None),
  "layer_replication": (None,),
  "use_qalora": (False, None),
  "trainable_token_indices": (None,),
  "alora_invocation_tokens": (None,),
  **dict.fromkeys(("use_bdlora", "arrow_config", "kasa_config", "velora_config", "monteclora_config"), (None, False)),
  # Others (PiSSA, OLoRA, CorDA, LoftQ) change the base, too; peft does that again when it loads the folder.
  "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}
_LORA = ("lora_A.weight", "lora_B.weight", "lora_magnitude_vector")  # tensors of a module


@dataclasses.dataclass(frozen=True)
class Trained:
  """A method, and the arrays that it has trained by path, with separate layers."""

  method: Method
  arrays: dict[str, np.ndarray]


def import_peft(folder: PeftFolder, model: nn.Module, base: Mapping[str, np.ndarray] | None = None) -> Trained:
  """Returns what a peft folder holds for a plain model; raises UserError for what has no counterpart here.

  `base` are the model's parameters with separate layers: peft may save its copy of a tuned matrix.
  """
  for name, allowed in _SUPPORTED.items():
    if folder.config.get(name) not in allowed:
      raise UserError(f"peft's {name} = {folder.config[name]!r} is not supported", expected=str(allowed[0]))
  readers = {"LORA": _lora, "IA3": _ia3}
  prompt_readers = {"PROMPT_TUNING": read_prompt, "PREFIX_TUNING": read_prefix}
  rest = dict(folder.tensors)
  if folder.kind in readers:
    method, arrays = readers[folder.kind](folder.config, rest, linear_modules(model))
  elif folder.kind in prompt_readers and PROMPTS in rest:
    method, arrays = prompt_readers[folder.kind](folder.config, rest.pop(PROMPTS), model)
  else:
    raise UserError(f"unsupported peft_type: {folder.kind!r}", expected=", ".join(readers | prompt_readers))
  _drop_copies(rest, model, base or {})
  saved = _saved_modules(rest, model)
  if rest:
    tensors = "\n".join(sorted(rest)[:8])
    if any("lora_embedding" in name for name in rest):
      raise UserError(
        "LoRA of an embedding, or of an output that shares its matrix, cannot be imported",
        tensors=tensors,
        try_="peft's merge_and_unload(), then save_pretrained: a plain model",
      )
    raise UserError(f"{len(rest)} tensors of the peft folder do not belong to this model", tensors=tensors)
  _check_shapes(arrays, method.tune(model))
  also = _all_or_each([path for path in saved if not path.startswith("head/")], model)
  return Trained(dataclasses.replace(method, also=also), arrays | saved)


def _drop_copies(rest: dict[str, np.ndarray], model: nn.Module, base: Mapping[str, np.ndarray]) -> None:
  """Takes out copies of matrices of the base, which peft saves if an embedding or output is tuned."""
  for rule in tensor_rules(model):
    module, is_matrix, _ = rule.theirs.rpartition(".weight")
    name = f"{module}.base_layer.weight"
    if is_matrix and name in rest and all(path in base for path in rule.ours):
      found = rule.split(rest.pop(name))
      if not all(np.array_equal(array, base[path]) for path, array in found.items()):
        raise UserError(
          f"{name} of the peft folder differs from the base's {rule.theirs}",
          hint="is --base the model that peft tuned, with its vocabulary?",
        )


def _check_shapes(arrays: Mapping[str, np.ndarray], tuned: nn.Module) -> None:
  """Raises UserError for an array that does not have the shape of the tuned model's: of another base, most likely."""
  expected = unstacked_shapes(expected_shapes(tuned))
  for path, array in arrays.items():
    if expected.get(path, array.shape) != array.shape:
      raise UserError(
        f"the peft folder does not fit the base at {path}",
        given=array.shape,
        expected=expected[path],
        hint="is --base the model of base_model_name_or_path in adapter_config.json?",
      )


def _saved_modules(rest: dict[str, np.ndarray], model: nn.Module) -> dict[str, np.ndarray]:
  """Takes out the tensors of modules_to_save: the head, and modules of the base that were trained as a whole."""
  shapes, arrays = unstacked_shapes(expected_shapes(model)), {}
  for rule in tensor_rules(model):
    if rule.theirs not in rest:
      continue
    check_not_tied(rule)
    found = rule.split(rest.pop(rule.theirs))
    for path, array in found.items():
      if array.shape != shapes[path]:
        raise UserError(
          f"{rule.theirs} of the peft folder does not have the size of the base's",
          given=array.shape,
          expected=shapes[path],
          hint="resize the base first, as it was for peft's training, and save it with save_pretrained",
        )
    arrays |= found
  return arrays


def _all_or_each(paths: list[str], model: nn.Module) -> list[str]:
  """Returns expressions for exactly these paths: one for a part that trains in all layers, else one for each layer."""
  unnumbered = lambda path: LAYER.sub(r"\g<stack>/layers/\g<rest>", path)  # noqa: E731
  others = {unnumbered(path) for rule in tensor_rules(model) for path in rule.ours if path not in paths}
  escaped = lambda path: re.escape(path).replace("/layers/", r"/layers_\d+/")  # noqa: E731
  return list(dict.fromkeys(re.escape(p) if unnumbered(p) in others else escaped(unnumbered(p)) for p in paths))


def _lora(
  config: Mapping[str, Any], rest: dict[str, np.ndarray], modules: list[HFModule]
) -> tuple[LoRA, dict[str, np.ndarray]]:
  arrays, ranks, alphas = {}, {}, {}
  for module in modules:
    a, b, magnitude = (rest.pop(f"{module.name}.{name}", None) for name in _LORA)
    if a is None:
      continue
    alpha = _checked_alpha(config, module.name, a, b, magnitude)
    b = module.in_our_order(b)
    magnitude = None if magnitude is None else module.in_our_order(magnitude.reshape(-1))
    for number, path in enumerate(module.ours):
      width = len(b) // len(module.ours)
      rows = slice(number * width, (number + 1) * width)
      arrays |= {f"{path}/lora_a": a.T, f"{path}/lora_b": b[rows].T}
      if magnitude is not None:
        arrays[f"{path}/magnitude"] = magnitude[rows]
      ranks[path], alphas[path] = len(a), alpha
  if not ranks:
    raise UserError(
      "the peft folder has no LoRA of a linear layer of this model",
      its_base=config.get("base_model_name_or_path"),
      its_tensors=", ".join(sorted(rest)[:3]),
    )
  rank, alpha = most_common(ranks), most_common(alphas)
  method = LoRA(
    targets=_patterns(ranks, modules),
    rank=rank,
    alpha=alpha,
    ranks={re.escape(path): value for path, value in ranks.items() if value != rank},
    alphas={re.escape(path): value for path, value in alphas.items() if value != alpha},
    dropout=float(config.get("lora_dropout") or 0.0),
    rslora=bool(config.get("use_rslora")),
    dora=bool(config.get("use_dora")),
  )
  return method, arrays


def _checked_alpha(
  config: Mapping[str, Any], module: str, a: np.ndarray, b: np.ndarray | None, magnitude: np.ndarray | None
) -> float:
  """Returns the alpha of a module; raises UserError if its tensors contradict the settings."""
  if b is None:
    raise UserError(f"the peft folder has {module}.lora_A.weight, but no {module}.lora_B.weight")
  if (magnitude is not None) != bool(config.get("use_dora")):
    has = "no" if magnitude is None else "a"
    raise UserError(f"{module} has {has} magnitude, but use_dora = {config.get('use_dora')} in the peft folder")
  rank = pattern_value(config.get("rank_pattern") or {}, module, config.get("r"))
  if rank != len(a):
    raise UserError(f"{module}.lora_A.weight has rank {len(a)}, but the peft folder's settings say {rank!r}")
  alpha = pattern_value(config.get("alpha_pattern") or {}, module, config.get("lora_alpha"))
  if type(alpha) not in (int, float):
    raise UserError(f"invalid lora_alpha in the peft folder: {alpha!r}", expected="a number")
  return float(alpha)


def _ia3(
  config: Mapping[str, Any], rest: dict[str, np.ndarray], modules: list[HFModule]
) -> tuple[IA3, dict[str, np.ndarray]]:
  arrays, after, before = {}, {}, {}
  for module in modules:
    vector = rest.pop(f"{module.name}.ia3_l", None)
    if vector is None:
      continue
    is_input = _scales_inputs(vector, config.get("feedforward_modules"), module.name)
    outputs = module.in_our_order(vector.reshape(-1))
    parts = dict(zip(module.ours, np.split(outputs, len(module.ours)), strict=True))
    check_scaled(module, parts)
    for path, part in parts.items():
      if len(module.ours) == 1 or np.any(part != 1):  # c_attn also has queries, which are not scaled by default
        arrays[f"{path}/ia3"] = part
        (before if is_input else after)[path] = True
  return IA3(targets=_patterns(after, modules), feedforward=_patterns(before, modules)), arrays


def _scales_inputs(vector: np.ndarray, feedforward: str | list[str] | None, module: str) -> bool:
  """Returns whether a vector of (IA)3 scales the inputs of a module: peft gives it the shape [1, n], others [n, 1]."""
  if vector.ndim == 2 and vector.size > 1:
    return vector.shape[0] == 1
  return matches(feedforward, module)


def _patterns(paths: Mapping[str, Any], modules: list[HFModule]) -> list[str]:
  """Returns expressions for exactly these modules: by their last two names if that is enough, else one by one."""
  last = lambda path: "/".join(path.split("/")[-2:])  # noqa: E731
  others = {last(path) for module in modules for path in module.ours if path not in paths}
  chosen = dict.fromkeys(last(path) for path in paths)
  if not others & chosen.keys():
    return [name if name in paths else f".*/{name}" for name in chosen]  # a pooler is at the top
  return [re.escape(path) for path in paths]
