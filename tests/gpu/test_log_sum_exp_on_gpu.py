"""The kernel of log-sum-exps and largest entries on a GPU, compared with float64."""

import jax
import jax.numpy as jnp
import numpy as np

from t5like.kernels.gpu.log_sum_exp import log_sum_exp


def test_it_equals_float64():
  logits = 3.0 * np.random.default_rng(0).normal(size=(70, 50_257)).astype(np.float32)
  logits[1] += 5000.0
  logits[2] -= 5000.0
  logits[3, 10:] = -np.inf
  logits[4, [7, 9_000, 50_256]] = 90.0
  logits[5, 3] = np.nan
  for dtype in (jnp.float32, jnp.bfloat16):
    x = jnp.asarray(logits, dtype)
    exact = np.asarray(x, np.float64)
    largest = exact.max(-1)
    log_z, best = log_sum_exp(x, 50_257)
    expected = largest + np.log(np.exp(exact - largest[:, None]).sum(-1))
    np.testing.assert_allclose(log_z, expected, rtol=1e-6, err_msg=str(dtype))
    real = np.arange(70) != 5
    np.testing.assert_array_equal(best[real], exact.argmax(-1)[real], err_msg=str(dtype))
    padded = log_sum_exp(jnp.pad(x, ((0, 0), (0, 7)), constant_values=1e9), 50_257)
    np.testing.assert_allclose(padded[0][real], expected[real], rtol=1e-6, err_msg=str(dtype))
    np.testing.assert_array_equal(padded[1][real], best[real], err_msg=str(dtype))


def test_more_than_four_gigabytes():
  """Offsets need 64 bits."""
  rows, columns = 22_000, 50_257
  x = jax.lax.broadcasted_iota(jnp.float32, (rows, columns), 0) / rows  # a row has one value, its own
  log_z, best = log_sum_exp(x, columns)
  np.testing.assert_allclose(log_z, np.arange(rows) / rows + np.log(columns), rtol=1e-5)
  assert not np.any(best)
