"""The shapes of a model's parameters, without computing any."""

import contextvars
import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np

_SHAPES_ONLY: contextvars.ContextVar[bool] = contextvars.ContextVar("shapes_only", default=False)


def parameter_shapes(model: nn.Module, batch: Mapping[str, Any]) -> dict:
  """Returns the tree of a model's parameters as shapes with logical axes. `batch` may hold arrays or shapes."""
  described = tuple((name, x.shape, np.dtype(x.dtype)) for name, x in batch.items())
  try:
    shapes = _traced_once(model, described)
  except TypeError:  # a field that cannot be hashed
    shapes = _traced(model, described)
  return jax.tree.map(lambda shape: shape, shapes)  # a copy, which callers may change


def shapes_only() -> bool:
  """Returns whether a model is traced for the shapes of its parameters: of layers that are alike, one is enough."""
  return _SHAPES_ONLY.get()


def _traced(model: nn.Module, described: tuple) -> dict:
  batch = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape, dtype in described}
  token = _SHAPES_ONLY.set(True)
  try:
    return jax.eval_shape(lambda batch: model.init(jax.random.key(0), batch)["params"], batch)
  finally:
    _SHAPES_ONLY.reset(token)


_traced_once = functools.lru_cache(maxsize=8)(_traced)  # loading a model asks several times, as do runs of a sweep
