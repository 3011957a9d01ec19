"""Tiny models of every family."""

import jax
import numpy as np
import pytest
from random_parameters import random_parameters

from t5like.models import BERT, GPT, T5, TransformerConfig

SIZE = dict(vocab_size=50, embed_dim=16, mlp_dim=24, num_heads=2, head_dim=8)
ENCODER_DECODER = SIZE | dict(num_encoder_layers=2, num_decoder_layers=2)
DECODER = SIZE | dict(num_decoder_layers=2)
LEARNED = dict(norm="layer", use_bias=True, scale_attention=True, positions="learned", max_positions=24,
               scale_logits=False)  # fmt: skip
HEADS = dict(num_encoder_layers=2, num_token_types=2, embedding_norm=True, norm_position="post", pooler=True,
             mlm_head=True, nsp_head=True)  # fmt: skip


class Built:
  """A model with random parameters, including biases and norms; calls are compiled.

  Parameters come from numpy: compiling an initializer takes longer than most tests.
  """

  def __init__(self, model):
    self.model = model
    self.config = model.config
    token = np.ones((1, 2), np.int32)
    batch = {"encoder_input_tokens": token, "decoder_input_tokens": token}
    self.params = random_parameters(model, batch)
    self._apply = self.jit(lambda params, batch: model.apply({"params": params}, batch))

  @staticmethod
  def jit(function):
    """Compiles without XLA's slower optimizations, because these models run once."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})

  def __call__(self, batch):
    return self._apply(self.params, batch)


@pytest.fixture
def t5():
  return lambda **fields: Built(T5(TransformerConfig(**ENCODER_DECODER | fields)))


@pytest.fixture
def gpt():
  return lambda **fields: Built(GPT(TransformerConfig(**DECODER | LEARNED | fields)))


@pytest.fixture
def t5_lm():
  """Builds decoder-only models with T5's blocks, as in table 2 of its paper."""
  return lambda **fields: Built(GPT(TransformerConfig(**DECODER | fields)))


@pytest.fixture
def bert():
  return lambda **fields: Built(BERT(TransformerConfig(**SIZE | LEARNED | HEADS | fields)))


@pytest.fixture
def tokens():
  """Draws random ids without padding, [rows, length]."""
  rng = np.random.default_rng(0)
  return lambda rows, length: rng.integers(2, 50, (rows, length)).astype(np.int32)
