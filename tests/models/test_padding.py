"""With lengths, a padding token within a text is part of the text."""

import jax
import numpy as np
from random_parameters import random_parameters

from t5like.inference.batching import BatchShape
from t5like.inference.prompts import prompt_batch
from t5like.models.config import TransformerConfig
from t5like.models.padding import encoder_valid
from t5like.models.t5 import T5

ROWS = np.array([[5, 0, 7, 9, 1, 0, 0], [4, 1, 0, 0, 0, 0, 0]], np.int32)  # the first contains <pad>
LENGTHS = np.array([5, 2], np.int32)


def test_padding_is_determined_by_segment_then_length_then_id():
  tokens = {"encoder_input_tokens": ROWS}
  np.testing.assert_array_equal(encoder_valid(tokens), ROWS != 0)
  by_length = np.arange(7)[None] < LENGTHS[:, None]
  np.testing.assert_array_equal(encoder_valid({**tokens, "encoder_lengths": LENGTHS}), by_length)
  segments = np.array([[1, 1, 2, 2, 2, 2, 0], [0] * 7], np.int32)
  both = {**tokens, "encoder_lengths": LENGTHS, "encoder_segment_ids": segments}
  np.testing.assert_array_equal(encoder_valid(both), segments > 0)


def test_prompts_have_lengths_so_that_a_padding_token_in_the_text_is_read():
  config = TransformerConfig(
    vocab_size=16, embed_dim=8, mlp_dim=16, num_heads=2, num_encoder_layers=1, num_decoder_layers=1
  )
  model = T5(config)
  decoder = {"decoder_input_tokens": np.zeros((2, 1), np.int32)}
  prompts = (
    prompt_batch("encoder_decoder", [row[:n] for row, n in zip(ROWS, LENGTHS, strict=True)], BatchShape(2, 7)) | decoder
  )
  variables = {"params": random_parameters(model, prompts)}
  apply = jax.jit(model.apply)
  logits = lambda batch: np.asarray(apply(variables, {**batch, **decoder})["logits"])  # noqa: E731
  found = logits(prompts)
  alone = logits({"encoder_input_tokens": ROWS[:, :5], "encoder_segment_ids": (LENGTHS[:, None] > np.arange(5)) * 1})
  np.testing.assert_allclose(found, alone, atol=1e-5)
  masked = logits({"encoder_input_tokens": ROWS})
  assert np.abs(found[0] - masked[0]).max() > 1e-3  # the token with id 0 matters
  np.testing.assert_allclose(found[1], masked[1], atol=1e-5)
