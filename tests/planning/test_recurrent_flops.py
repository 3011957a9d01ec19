"""FLOPs of recurrent models, against the products that JAX traces, and by hand."""

import jax
import numpy as np

from t5like.models.recurrent import AWDLSTM, AWDLSTMConfig, ELMo, ELMoConfig
from t5like.planning.flops import model_flops_by_part, traced_flops


def test_products_are_those_that_run():
  batch = {"decoder_input_tokens": jax.ShapeDtypeStruct((2, 5), np.int32)}
  for model in (AWDLSTM(AWDLSTMConfig(31, 6, 10, 3)), ELMo(ELMoConfig(31, 6, 10, 2, filters=((1, 3), (2, 4))))):
    params = jax.eval_shape(model.init, jax.random.key(0), batch)
    parts = model_flops_by_part(model, 2, decoder_length=5)
    traced = traced_flops(model.apply, params, batch)
    if isinstance(model, ELMo):  # it reads one more word; convolutions are no products in the trace
      words, convolved = 2 * 6, 16 * (50 * 3 + 49 * 2 * 4)
      assert parts["characters"] == 2 * 10 * (convolved + 2 * 2 * 7 * 7 + 7 * 6)
      traced -= 2 * words * (2 * 2 * 7 * 7 + 7 * 6)
      parts.pop("characters")
    assert sum(parts.values()) == traced


def test_awd_lstm_by_hand():
  """A token of fastai's model: 8 x 1152 x (400 + 1152) + 8 x 1152 x 2304 + 8 x 400 x 1552, and the output."""
  parts = model_flops_by_part(AWDLSTM(AWDLSTMConfig(60_000, 400, 1152, 3)), 1, decoder_length=1)
  assert parts == {"LSTMs": 8 * (1152 * 1552 + 1152 * 2304 + 400 * 1552), "output": 2 * 400 * 60_000}
