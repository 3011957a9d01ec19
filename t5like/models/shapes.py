"""The shapes of a model's parameters, without computing any."""

import functools

import flax.linen as nn
import jax
import numpy as np

from t5like.models.heads import WithHead


def boxed_shapes(model: nn.Module) -> dict:
  """Returns the tree of a model's parameters as shapes with logical axes."""
  try:
    shapes = _traced_once(model)
  except TypeError:  # a field that cannot be hashed
    shapes = _traced(model)
  return jax.tree.map(lambda shape: shape, shapes)  # a copy, which callers may change


def _traced(model: nn.Module) -> dict:
  texts = model.texts_per_row if isinstance(model, WithHead) else 1
  token = np.ones((texts, 1), np.int32)
  batch = {"encoder_input_tokens": token, "decoder_input_tokens": token}
  return jax.eval_shape(model.init, jax.random.key(0), batch)["params"]


_traced_once = functools.lru_cache(maxsize=8)(_traced)  # loading a model asks several times
