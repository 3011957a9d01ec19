"""Calls of cuDNN, with a plain JAX implementation in its place: masks, lengths and T5's bias arrive as it expects."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import CASES, relative_error, value_and_gradients

from t5like.kernels.attention import Alibi, Mask, alibi_slopes
from t5like.kernels.attention import cudnn as kernel
from t5like.kernels.attention.xla import xla_attention

KINDS = kernel.cudnn.MaskType
# Odd lengths wherever cuDNN receives a score matrix, whose sizes must be even.
LENGTHS = {
  "bias, padded": (16, 15),
  "bias, causal, odd length": (15, 15),
  "bias, prefix": (15, 15),
  "causal, packed, odd length": (21, 21),
  "cross, padded": (15, 20),
}


def fake_forward(
  query, key, value, matrix, query_lengths, key_lengths, *unused, scale, variadic_args, mask_type, **settings
):
  """Implements cuDNN's contract: scaled scores plus a matrix, with a causal mask or lengths of queries and keys.

  Keys may have fewer heads; a window goes with a causal mask.
  """
  key, value = (jnp.repeat(x, query.shape[2] // x.shape[2], axis=2) for x in (key, value))
  assert all(x.size == 0 for x in unused) and settings.pop("dropout_rate") == 0.0
  scores = scale * jnp.einsum("bqhd,bkhd->bhqk", query, key)
  if variadic_args[0]:
    assert matrix.dtype == query.dtype and not (matrix.shape[2] % 2 or matrix.shape[3] % 2)
    scores = scores + matrix
  at_query, at_key = jnp.arange(query.shape[1])[:, None], jnp.arange(key.shape[1])[None, :]
  if mask_type in (KINDS.CAUSAL, KINDS.PADDING_CAUSAL):
    scores = jnp.where((at_key <= at_query)[None, None], scores, -jnp.inf)
  if settings["sliding_window_length"]:
    assert mask_type == KINDS.CAUSAL and not variadic_args[0]
    scores = jnp.where((at_key > at_query - settings["sliding_window_length"])[None, None], scores, -jnp.inf)
  if mask_type in (KINDS.PADDING, KINDS.PADDING_CAUSAL):
    assert query_lengths.shape == key_lengths.shape == query.shape[:1]
    inside = (at_query[None] < query_lengths[:, None, None]) & (at_key[None] < key_lengths[:, None, None])
    scores = jnp.where(inside[:, None], scores, -jnp.inf)
  out = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)
  return out, jax.nn.logsumexp(scores, axis=-1)


def fake_backward(query, key, value, *more, **settings):
  *operands, _, _, gradient = more
  return jax.vjp(lambda *given: fake_forward(*given, *operands, **settings)[0], query, key, value)[1](gradient)


@pytest.fixture(autouse=True)
def fake_cudnn(monkeypatch):
  forward, backward = (types.SimpleNamespace(bind=function) for function in (fake_forward, fake_backward))
  fake = types.SimpleNamespace(
    MaskType=KINDS, AttentionLayout=kernel.cudnn.AttentionLayout, _dot_product_attention_fwd_p_wrapper=forward,
    _dot_product_attention_bwd_p_wrapper=backward,
  )  # fmt: skip
  monkeypatch.setattr(kernel, "cudnn", fake)
  monkeypatch.setattr(kernel, "bias_gradient", functools.partial(kernel.bias_gradient, interpret=True))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", LENGTHS)
def test_values_and_gradients_equal_xla_attention(name):
  _, _, _, has_bias, mask = CASES[name]
  rng, (query, key) = np.random.default_rng(0), LENGTHS[name]
  given = [jnp.asarray(rng.normal(size=(3, n, 2, 8)), jnp.float32) for n in (query, key, key, query)]
  given += [mask(rng, 3, query, key), jnp.asarray(rng.normal(size=(32, 2)), jnp.float32) if has_bias else None]
  got, expected = value_and_gradients(kernel.cudnn_attention, *given), value_and_gradients(xla_attention, *given)
  assert {key: relative_error(got[key], expected[key]) < 2e-6 for key in expected} == dict.fromkeys(expected, True)


def test_masks_are_passed_in_the_form_that_lets_cudnn_skip_most(monkeypatch):
  """Padding as lengths of at least 1, causality as a mask type, and a matrix only if neither suffices."""
  calls = []

  def record(*operands, **settings):
    calls.append((settings["mask_type"], settings["variadic_args"][0], operands[5].tolist()))
    return operands[0], operands[0]

  monkeypatch.setattr(kernel.cudnn, "_dot_product_attention_fwd_p_wrapper", types.SimpleNamespace(bind=record))
  x = jnp.ones((2, 6, 1, 8))
  valid = jnp.asarray(np.arange(6)[None] < np.array([[4], [0]]))
  segments = jnp.ones((2, 6), jnp.int32)
  for mask in (
    kernel.Mask(),
    kernel.Mask(causal=True),
    kernel.Mask(key_valid=valid, right_padded=True),
    kernel.Mask(causal=True, key_valid=valid, right_padded=True),
    kernel.Mask(key_valid=valid),
    kernel.Mask(causal=True, query_segments=segments, key_segments=segments),
    kernel.Mask(causal=True, prefix=valid),
    kernel.Mask(causal=True, prefix=valid, key_valid=valid, right_padded=True),
  ):
    kernel.cudnn_attention(x, x, x, mask, None, 1.0)
  odd = x[:, :5]
  kernel.cudnn_attention(odd, odd, odd, kernel.Mask(), kernel.RelativeBias(jnp.ones((32, 1))), 1.0)
  assert calls == [
    (KINDS.NO_MASK, False, []),
    (KINDS.CAUSAL, False, []),
    (KINDS.PADDING, False, [4, 1]),
    (KINDS.PADDING_CAUSAL, False, [4, 1]),
    (KINDS.NO_MASK, True, []),
    (KINDS.CAUSAL, True, []),
    (KINDS.NO_MASK, True, []),
    (KINDS.NO_MASK, True, []),
    (KINDS.PADDING, True, [5, 5]),
  ]


@pytest.mark.parametrize("packed, alibi", [(False, False), (True, False), (False, True)])
def test_grouped_heads_a_window_and_alibi(packed, alibi):
  """A window is cuDNN's own if causality is the only other condition, else a part of the matrix."""
  rng = np.random.default_rng(0)
  query, key, value, weights = (jnp.asarray(rng.normal(size=(2, 21, heads, 8)), jnp.float32) for heads in (4, 2, 2, 4))
  segments = jnp.asarray(np.tile(1 + (np.arange(21) > 9), (2, 1)), jnp.int32) if packed else None
  mask = Mask(causal=True, window=6, query_segments=segments, key_segments=segments)
  bias = Alibi(jnp.asarray(alibi_slopes(4))[None]) if alibi else None

  def run(attend):
    weighted = lambda *qkv: jnp.sum(attend(*qkv, mask, bias, 0.3) * weights)  # noqa: E731
    return jax.jit(jax.value_and_grad(weighted, (0, 1, 2)))(query, key, value)

  got, expected = run(kernel.cudnn_attention), run(xla_attention)
  np.testing.assert_allclose(got[0], expected[0], rtol=1e-5)
  assert max(map(relative_error, got[1], expected[1])) < 2e-6
