"""Writes T5X checkpoints from our parameters, for tests."""

from pathlib import Path

import numpy as np
import tensorstore
from flax import serialization, traverse_util

from t5like.interop.layouts import flatten

# Ours -> T5X's, written apart from the library's own table so that one checks the other.
RENAMED = [
  ("decoder/final_norm", "decoder/decoder_norm"),
  ("encoder/final_norm", "encoder/encoder_norm"),
  ("logits_dense", "decoder/logits_dense"),
  ("cross_attention_norm", "pre_cross_attention_layer_norm"),
  ("cross_attention/", "encoder_decoder_attention/"),
  ("mlp_norm", "pre_mlp_layer_norm"),
]


def t5x_tree(params) -> dict[str, np.ndarray]:
  tree = {}
  for path, value in flatten(params).items():
    for ours, theirs in RENAMED:
      path = path.replace(ours, theirs)
    if path.startswith("decoder/layers"):
      path = path.replace("/attention/", "/self_attention/").replace(
        "/attention_norm", "/pre_self_attention_layer_norm"
      )
    else:
      path = path.replace("/attention_norm", "/pre_attention_layer_norm")
    tree[path] = value
  return tree


def write_msgpack(path: Path, tree: dict, wrap=lambda target: {"optimizer": {"target": target, "state": {"step": 3}}}):
  path.write_bytes(serialization.msgpack_serialize(wrap(traverse_util.unflatten_dict(tree, sep="/"))))


def write_zarr(folder: Path, name: str, value: np.ndarray) -> None:
  metadata = {"shape": value.shape, "chunks": [max(1, n // 2) for n in value.shape], "dtype": value.dtype.str}
  spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(folder / name)}, "metadata": metadata}
  tensorstore.open(spec, create=True).result().write(value).result()
