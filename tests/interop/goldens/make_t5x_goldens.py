"""Writes tests/data/golden/t5x_*.npz: what Hugging Face's T5 computes with T5X's real weights.

Not a test; needs torch, transformers and msgpack:

    python tests/interop/goldens/make_t5x_goldens.py CHECKPOINTS

It reads the checkpoints with plain msgpack and gzip and names the tensors by the table that Hugging
Face's own converter documents, sharing no code with t5like. T5X itself needs TensorFlow and a pinned
JAX; the two implementations compute the same function.
"""

import gzip
import json
import sys
from pathlib import Path

import msgpack
import numpy as np
import torch
import transformers

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
NORMS = {
  "encoder": ["pre_attention_layer_norm", "pre_mlp_layer_norm"],
  "decoder": ["pre_self_attention_layer_norm", "pre_cross_attention_layer_norm", "pre_mlp_layer_norm"],
}


def read(folder: Path) -> dict:
  """T5X path -> array."""
  index = next(p for p in (*folder.glob("checkpoint_*/checkpoint"), *folder.glob("checkpoint_*")) if p.is_file())
  tree = msgpack.unpackb(index.read_bytes(), ext_hook=array, strict_map_key=False)

  def walk(node, path):
    if not isinstance(node, dict):
      yield "/".join(path), node
    elif "kvstore" in node:
      yield "/".join(path), zarr(index.parent / node["kvstore"]["path"])
    else:
      for name, child in node.items():
        yield from walk(child, [*path, name])

  return dict(walk(tree["optimizer"]["target"], []))


def array(_, data: bytes) -> np.ndarray:
  shape, dtype, buffer = msgpack.unpackb(data)
  return np.frombuffer(buffer, dtype).reshape(shape)


def zarr(folder: Path) -> np.ndarray:
  spec = json.loads((folder / ".zarray").read_text())
  result = np.zeros(spec["shape"], spec["dtype"])
  for chunk in folder.glob("[0-9]*"):
    at = [int(i) * size for i, size in zip(chunk.name.split("."), spec["chunks"], strict=False)]
    block = np.frombuffer(gzip.decompress(chunk.read_bytes()), spec["dtype"]).reshape(spec["chunks"])
    where = tuple(
      slice(a, min(a + size, limit)) for a, size, limit in zip(at, spec["chunks"], spec["shape"], strict=False)
    )
    result[where] = block[tuple(slice(0, w.stop - w.start) for w in where)]
  return result


def build(x: dict) -> torch.nn.Module:
  heads, buckets = x["encoder/relpos_bias/rel_embedding"].shape
  vocab, width = x["token_embedder/embedding"].shape
  config = transformers.T5Config(
    vocab_size=vocab, d_model=width, num_heads=heads, num_layers=2, num_decoder_layers=2,
    d_kv=x["encoder/layers_0/attention/query/kernel"].shape[1] // heads,
    d_ff=x["encoder/layers_0/mlp/wo/kernel"].shape[0],
    relative_attention_num_buckets=buckets, feed_forward_proj="gated-gelu", tie_word_embeddings=False,
    decoder_start_token_id=0, attn_implementation="eager",
  )  # fmt: skip
  model = transformers.T5ForConditionalGeneration(config)
  state = {"shared.weight": x["token_embedder/embedding"], "lm_head.weight": x["decoder/logits_dense/kernel"].T}
  for stack, self_attention in (("encoder", "attention"), ("decoder", "self_attention")):
    state[f"{stack}.embed_tokens.weight"] = state["shared.weight"]
    state[f"{stack}.final_layer_norm.weight"] = x[f"{stack}/{stack}_norm/scale"]
    bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    state[bias] = x[f"{stack}/relpos_bias/rel_embedding"].T
    for i in range(2):
      theirs, ours = f"{stack}/layers_{i}", f"{stack}.block.{i}.layer"
      for j, norm in enumerate(NORMS[stack]):
        state[f"{ours}.{j}.layer_norm.weight"] = x[f"{theirs}/{norm}/scale"]
      attentions = {0: ("SelfAttention", self_attention)}
      if stack == "decoder":
        attentions[1] = ("EncDecAttention", "encoder_decoder_attention")
      for j, (module, name) in attentions.items():
        for letter, kernel in zip("qkvo", ("query", "key", "value", "out"), strict=False):
          state[f"{ours}.{j}.{module}.{letter}.weight"] = x[f"{theirs}/{name}/{kernel}/kernel"].T
      for kernel in ("wi_0", "wi_1", "wo"):
        state[f"{ours}.{len(NORMS[stack]) - 1}.DenseReluDense.{kernel}.weight"] = x[f"{theirs}/mlp/{kernel}/kernel"].T
  model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
  model.load_state_dict({name: torch.tensor(np.array(value)) for name, value in state.items()})
  return model.eval()


def main(checkpoints: Path) -> None:
  for name in ("t5x_tiny_msgpack", "t5x_tiny_zarr"):
    model = build(read(checkpoints / name))
    torch.manual_seed(0)
    inputs = torch.randint(1, 32000, (2, 40))
    inputs[1, 25:] = 0
    decoder = torch.randint(1, 32000, (2, 30))
    decoder[:, 0] = 0
    with torch.no_grad():
      out = model(
        input_ids=inputs, attention_mask=(inputs > 0).long(), decoder_input_ids=decoder, output_hidden_states=True
      )
    np.savez_compressed(
      GOLDEN / f"{name}.npz", encoder_input_tokens=inputs.int(), decoder_input_tokens=decoder.int(),
      encoded=out.encoder_last_hidden_state, hidden=out.decoder_hidden_states[-1], logits=out.logits[:, :, ::640],
    )  # fmt: skip


if __name__ == "__main__":
  main(Path(sys.argv[1]))
