"""Cross entropy, z-loss and label smoothing by hand, and the gradient by differences."""

import jax
import jax.numpy as jnp
import numpy as np

from t5like.kernels.cross_entropy import cross_entropy

LOGITS = jnp.array([[2.0, 0.0, -1.0], [0.5, 0.5, 3.0]])
TARGETS = jnp.array([0, 1], jnp.int32)
LOG_Z = np.log(np.exp(np.asarray(LOGITS)).sum(-1))


def test_plain():
  loss, z_part = cross_entropy(LOGITS, TARGETS)
  np.testing.assert_allclose(loss, LOG_Z - np.array([2.0, 0.5]), rtol=1e-6)
  np.testing.assert_array_equal(z_part, [0, 0])


def test_z_loss_is_the_squared_log_normaliser():
  loss, z_part = cross_entropy(LOGITS, TARGETS, z_loss=0.01)
  np.testing.assert_allclose(z_part, 0.01 * LOG_Z**2, rtol=1e-6)
  np.testing.assert_allclose(loss, LOG_Z - np.array([2.0, 0.5]) + 0.01 * LOG_Z**2, rtol=1e-6)


def test_label_smoothing_is_the_divergence_from_the_smoothed_target():
  loss, _ = cross_entropy(LOGITS, TARGETS, label_smoothing=0.1)
  q = np.full((2, 3), 0.05)
  q[[0, 1], [0, 1]] = 0.9
  log_p = np.asarray(LOGITS) - LOG_Z[:, None]
  np.testing.assert_allclose(loss, (q * (np.log(q) - log_p)).sum(-1), rtol=1e-5)


def test_the_gradient_is_softmax_minus_target():
  gradient = jax.grad(lambda x: cross_entropy(x, TARGETS)[0].sum())(LOGITS)
  expected = np.exp(np.asarray(LOGITS) - LOG_Z[:, None])
  expected[[0, 1], [0, 1]] -= 1
  np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_bfloat16_logits_are_summed_in_float32():
  loss, _ = cross_entropy(LOGITS.astype(jnp.bfloat16), TARGETS)
  assert loss.dtype == jnp.float32
