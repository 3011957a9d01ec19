"""The shapes of a model's parameters, without computing any."""

import flax.linen as nn
import jax
import numpy as np

from t5like import parallel
from t5like.models.heads import WithHead


def boxed_shapes(model: nn.Module) -> dict:
  """Returns the tree of a model's parameters as shapes with logical axes."""
  token = jax.ShapeDtypeStruct((model.texts_per_row if isinstance(model, WithHead) else 1, 1), np.int32)
  return parallel.parameter_shapes(model, {"encoder_input_tokens": token, "decoder_input_tokens": token})
