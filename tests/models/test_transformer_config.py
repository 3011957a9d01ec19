"""An invalid config is rejected with the name of the field."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from t5like.errors import UserError
from t5like.models import BERT, GPT, T5, TransformerConfig

SIZE = dict(vocab_size=50, embed_dim=16, mlp_dim=24, num_heads=2, num_encoder_layers=1, num_decoder_layers=1)


@pytest.mark.parametrize(
  "fields, words",
  [
    (dict(num_heads=3), ["num_heads: 3", "divisor of embed_dim = 16"]),
    (dict(num_heads=0), ["num_heads: 0", "positive"]),
    (dict(positions="learned"), ["max_positions: None", "512"]),
    (dict(positions="rotary", head_dim=5), ["head_dim: 5", "even"]),
    (dict(positions="absolut"), ["positions: 'absolut'", "relative_bias, learned"]),
    (dict(activation="gelu_new"), ["activation: 'gelu_new'", "nearest", "gelu"]),
    (dict(dropout_rate=1.0), ["dropout_rate: 1.0", "rate < 1"]),
    (dict(layer_loop="unroll"), ["layer_loop: 'unroll'", "auto, loop, unrolled", "nearest"]),
    (dict(remat="some"), ["remat: 'some'", "none, elementwise, dots, full"]),
    (dict(compute_dtype="float8"), ["compute_dtype: 'float8'", "bfloat16"]),
    (dict(attention_backend="cudn"), ["'cudn'", "auto, xla"]),
    (dict(share_encoder_decoder=True, num_encoder_layers=2), ["num_encoder_layers: 2", "equal stacks"]),
    (dict(nsp_head=True), ["nsp_head", "pooler"]),
    (dict(relative_buckets=3), ["relative_buckets: 3", "at least 4"]),
    (dict(num_heads=True), ["num_heads: True", "a whole number"]),
    (dict(dropout_rate="0.1"), ["dropout_rate: '0.1'", "a number"]),
    (dict(norm_epsilon=float("inf")), ["norm_epsilon: inf", "a number"]),
    (dict(use_bias=1), ["use_bias: 1", "True or False"]),
    (dict(vocab_size=2**31), ["vocab_size", "32 bits"]),
    (dict(num_decoder_layers=5000), ["num_decoder_layers: 5000", "at most 4,096"]),
    (dict(relative_max_distance=16), ["relative_max_distance: 16", "more than 16"]),
  ],
)
def test_invalid_fields_are_named(fields, words):
  with pytest.raises(UserError) as error:
    TransformerConfig(**SIZE | fields)
  assert all(word in str(error.value) for word in words), str(error.value)


def test_head_dim_is_filled_in_and_the_config_is_json():
  config = TransformerConfig(**SIZE)
  assert config.head_dim == 8
  assert TransformerConfig(**json.loads(json.dumps(dataclasses.asdict(config)))) == config


@pytest.mark.parametrize(
  "model, missing", [(T5, "num_encoder_layers"), (BERT, "num_encoder_layers"), (GPT, "num_decoder_layers")]
)
def test_models_need_their_stacks(model, missing):
  config = TransformerConfig(**SIZE | {missing: 0})
  token = np.ones((1, 1), np.int32)
  with pytest.raises(UserError, match=missing):
    jax.eval_shape(
      model(config).init, jax.random.key(0), {"encoder_input_tokens": token, "decoder_input_tokens": token}
    )


def test_rows_longer_than_the_learned_positions_are_rejected():
  config = TransformerConfig(**SIZE | dict(positions="learned", max_positions=4))
  row = np.ones((1, 5), np.int32)
  batch = {"encoder_input_tokens": row, "encoder_positions": np.zeros_like(row)}
  with pytest.raises(UserError, match="rows of 5 tokens are too long for a model with 4 learned positions"):
    jax.eval_shape(BERT(config).init, jax.random.key(0), batch)
