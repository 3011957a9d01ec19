"""The shapes of a model's parameters, without computing any."""

import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from t5like.models.heads import WithHead
from t5like.models.stack import shapes_only


def boxed_shapes(model: nn.Module, batch: Mapping[str, Any] | None = None) -> dict:
  """Returns the tree of a model's parameters as shapes with logical axes.

  `batch` holds arrays or shapes, for models that read more than a token.
  """
  if batch is None:
    token = jax.ShapeDtypeStruct((model.texts_per_row if isinstance(model, WithHead) else 1, 1), np.int32)
    batch = {"encoder_input_tokens": token, "decoder_input_tokens": token}
  described = tuple((name, x.shape, np.dtype(x.dtype)) for name, x in batch.items())
  try:
    shapes = _traced_once(model, described)
  except TypeError:  # a field that cannot be hashed
    shapes = _traced(model, described)
  return jax.tree.map(lambda shape: shape, shapes)  # a copy, which callers may change


def _traced(model: nn.Module, described: tuple) -> dict:
  batch = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape, dtype in described}
  with shapes_only():
    return jax.eval_shape(model.init, jax.random.key(0), batch)["params"]


_traced_once = functools.lru_cache(maxsize=8)(_traced)  # loading a model asks several times, as do runs of a sweep
