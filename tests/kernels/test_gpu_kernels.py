"""GPU kernels, interpreted on a CPU: the gradient of T5's bias."""

import jax
import jax.numpy as jnp
import pytest
from attention_cases import inputs, relative_error

from t5like.kernels.attention import RelativeBias, mask_matrix
from t5like.kernels.attention.masks import mask_codes
from t5like.kernels.attention.relative_bias import bias_by_distance, skew
from t5like.kernels.gpu.bias_gradient import bias_gradient


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["bias, causal, odd length", "bias, packed", "bias, padded"])
def test_bias_gradient_is_that_of_the_matrix(name):
  query, key, value, gradient, mask, table = inputs(name, jnp.float32, heads=2, width=8)
  shape = query.shape[1], key.shape[1]
  by_distance = bias_by_distance(RelativeBias(table, bidirectional=not mask.causal), *shape)
  allowed = mask_matrix(mask, *shape)

  def attend(matrix):
    scores = 0.3 * jnp.einsum("bqhd,bkhd->bhqk", query, key) + matrix[None]
    scores = jnp.where(allowed, scores, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value), jax.nn.logsumexp(scores, axis=-1)

  def run(matrix):
    (out, log_sums), vjp = jax.vjp(attend, matrix)
    lengths = codes = None
    if mask.right_padded:
      lengths = jnp.sum(mask.key_valid, axis=1, dtype=jnp.int32)
    else:
      codes = mask_codes(mask, len(query), *shape)
    got = bias_gradient(
      query, key, value, out, gradient, log_sums, by_distance, codes, lengths, causal=mask.causal, scale=0.3,
      interpret=True,
    )  # fmt: skip
    return got, vjp((gradient, jnp.zeros_like(log_sums)))[0]

  got, expected = jax.jit(run)(skew(by_distance, *shape))
  assert relative_error(got, expected) < 2e-6
