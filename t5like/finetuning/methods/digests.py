"""Identifies the parameters of a base, independently of where and how they are stored."""

from __future__ import annotations

import hashlib

import ml_dtypes
import numpy as np

from t5like.finetuning.methods.base import Arrays
from t5like.finetuning.variables import BACKBONE
from t5like.training.optimizers.rules import STACKED

_HEAD = "head/"


def parameter_digest(arrays: Arrays) -> str:
  """Returns a digest of a backbone's values, the same for float32 and bfloat16 and for stacked and separate layers."""
  layers: dict[str, np.ndarray] = {}
  for path, array in arrays.items():
    name = path.removeprefix(f"{BACKBONE}/")
    if name.startswith(_HEAD):
      continue
    if f"/{STACKED}/" in name:
      layers |= {name.replace(f"/{STACKED}/", f"/{STACKED}_{i}/"): layer for i, layer in enumerate(array)}
    else:
      layers[name] = array
  digest = hashlib.sha256()
  for name in sorted(layers):
    values = np.ascontiguousarray(layers[name].astype(ml_dtypes.bfloat16))
    digest.update(f"{name} {values.shape}".encode())
    digest.update(values.view(np.uint16).tobytes())
  return digest.hexdigest()[:16]
