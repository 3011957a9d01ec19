"""Cross entropy, z-loss and label smoothing by hand, and the gradient by differences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like.kernels import cross_entropy as module
from t5like.kernels.cross_entropy import cross_entropy
from t5like.kernels.gpu import log_sum_exp as gpu_kernel
from t5like.kernels.platform import compile_for

LOGITS = jnp.array([[2.0, 0.0, -1.0], [0.5, 0.5, 3.0]])
TARGETS = jnp.array([0, 1], jnp.int32)
LOG_Z = np.log(np.exp(np.asarray(LOGITS)).sum(-1))


def test_plain():
  loss, z_part, best = cross_entropy(LOGITS, TARGETS)
  np.testing.assert_allclose(loss, LOG_Z - np.array([2.0, 0.5]), rtol=1e-6)
  np.testing.assert_array_equal(z_part, [0, 0])
  np.testing.assert_array_equal(best, [0, 2])


def test_z_loss_is_the_squared_log_normalizer():
  loss, z_part, _ = cross_entropy(LOGITS, TARGETS, z_loss=0.01)
  np.testing.assert_allclose(z_part, 0.01 * LOG_Z**2, rtol=1e-6)
  np.testing.assert_allclose(loss, LOG_Z - np.array([2.0, 0.5]) + 0.01 * LOG_Z**2, rtol=1e-6)


def test_label_smoothing_is_the_divergence_from_the_smoothed_target():
  loss, *_ = cross_entropy(LOGITS, TARGETS, label_smoothing=0.1)
  q = np.full((2, 3), 0.05)
  q[[0, 1], [0, 1]] = 0.9
  log_p = np.asarray(LOGITS) - LOG_Z[:, None]
  np.testing.assert_allclose(loss, (q * (np.log(q) - log_p)).sum(-1), rtol=1e-5)


def test_the_gradient_is_softmax_minus_target():
  gradient = jax.grad(lambda x: cross_entropy(x, TARGETS)[0].sum())(LOGITS)
  expected = np.exp(np.asarray(LOGITS) - LOG_Z[:, None])
  expected[[0, 1], [0, 1]] -= 1
  np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_one_pass_on_gpus(monkeypatch):
  """Sums of exponentials next to the largest so far, for large, small and excluded logits."""
  logits = np.random.default_rng(0).normal(size=(6, 1000)).astype(np.float32)
  logits[1] += 5000.0
  logits[2] -= 5000.0
  logits[3, 10:] = -np.inf
  logits[4, 7] = 90.0
  logits[5, 3] = np.nan
  targets = jnp.full(6, 5, jnp.int32)
  exact = logits.astype(np.float64)
  largest = exact.max(-1)
  expected = largest + np.log(np.exp(exact - largest[:, None]).sum(-1)) - exact[:, 5]
  with compile_for("gpu"):
    loss, *_ = jax.jit(lambda logits: cross_entropy(logits, targets))(logits)
  np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-3)
  # The kernel: rows end inside a tile, and several tiles have the largest logit.
  monkeypatch.setattr(gpu_kernel, "_COLUMNS", 128)
  logits[0, [3, 130, 700]] = 20.0
  log_z, best = gpu_kernel.log_sum_exp(logits, 1000, interpret=True)
  np.testing.assert_allclose(log_z, jax.nn.logsumexp(logits, axis=-1), rtol=1e-6)
  np.testing.assert_array_equal(best[:5], logits.argmax(-1)[:5])
  assert best[0] == 3


def test_the_kernel_is_used_for_large_logits_on_one_gpu(monkeypatch):
  """Values and gradients are those of plain JAX."""
  logits = np.random.default_rng(0).normal(size=(2, 5, 300)).astype(np.float32)
  targets = np.random.default_rng(1).integers(300, size=(2, 5)).astype(np.int32)
  run = jax.value_and_grad(lambda x: cross_entropy(x, targets, 0.01, 0.1)[0].sum())
  expected = cross_entropy(logits, targets, 0.01, 0.1), run(logits)
  monkeypatch.setattr(module, "_LARGE", 3001)
  with compile_for("gpu"):
    assert not lowers_kernel(logits, targets)
    monkeypatch.setattr(module, "_LARGE", 3000)
    assert lowers_kernel(logits, targets)
    monkeypatch.setattr(gpu_kernel, "log_sum_exp", functools.partial(gpu_kernel.log_sum_exp, interpret=True))
    got = cross_entropy(logits, targets, 0.01, 0.1), run(logits)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, expected)
  with compile_for("gpu"):
    outside = cross_entropy(logits, np.full((2, 5), 300, np.int32))
  assert np.isnan(outside[0]).all()


def lowers_kernel(logits, targets) -> bool:
  traced = jax.make_jaxpr(lambda x: cross_entropy(x, targets))(logits)
  return "t5like_log_sum_exp" in str(traced)


@pytest.mark.parametrize("kernel", [False, True])
def test_columns_of_padding_are_ignored(monkeypatch, kernel):
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(2, 5, 300)).astype(np.float32)
  targets = rng.integers(300, size=(2, 5)).astype(np.int32)
  padded = np.concatenate([logits, np.full((2, 5, 4), 50.0, np.float32)], axis=-1)
  expected = cross_entropy(logits, targets, 0.01, 0.1)
  gradient = jax.grad(lambda x: cross_entropy(x, targets, 0.01, 0.1)[0].sum())(logits)
  if kernel:
    monkeypatch.setattr(module, "_LARGE", 3000)
    monkeypatch.setattr(gpu_kernel, "log_sum_exp", functools.partial(gpu_kernel.log_sum_exp, interpret=True))
  with compile_for("gpu" if kernel else "cpu"):
    got = cross_entropy(padded, targets, 0.01, 0.1, 300)
    got_gradient = jax.grad(lambda x: cross_entropy(x, targets, 0.01, 0.1, 300)[0].sum())(padded)
    outside = cross_entropy(padded, np.full((2, 5), 300, np.int32), vocab=300)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, expected)
  np.testing.assert_allclose(got_gradient[..., :300], gradient, atol=1e-6)
  assert not np.any(got_gradient[..., 300:])
  assert np.isnan(outside[0]).all()


def test_bfloat16_logits_are_summed_in_float32():
  loss, *_ = cross_entropy(LOGITS.astype(jnp.bfloat16), TARGETS)
  assert loss.dtype == jnp.float32


def test_the_gradient_of_smoothed_targets_and_the_z_loss():
  """softmax * (1 + 2 z log Z) - smoothed target, by hand; 2 z log Z softmax for the z-loss part."""
  softmax = np.exp(np.asarray(LOGITS) - LOG_Z[:, None])
  pull = 2 * 0.01 * LOG_Z[:, None] * softmax
  target = np.full((2, 3), 0.15)
  target[[0, 1], [0, 1]] = 0.7
  weights = jnp.array([1.0, 3.0])

  def total(x, d_loss, d_z):
    loss, z_part, _ = cross_entropy(x, TARGETS, z_loss=0.01, label_smoothing=0.3)
    return jnp.sum(weights * (d_loss * loss + d_z * z_part))

  rows = np.asarray(weights)[:, None]
  np.testing.assert_allclose(jax.grad(total)(LOGITS, 1.0, 0.0), rows * (softmax - target + pull), atol=1e-6)
  np.testing.assert_allclose(jax.grad(total)(LOGITS, 0.0, 1.0), rows * pull, atol=1e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_targets_outside_the_vocabulary_give_nan(label_smoothing):
  logits = jnp.zeros((5, 3))
  loss, z_part, _ = cross_entropy(logits, jnp.array([-1, 0, 2, 3, 2**30]), 0.01, label_smoothing)
  assert np.isnan(loss).tolist() == [True, False, False, True, True] and np.isfinite(z_part).all()


def test_a_position_without_weight_changes_neither_the_loss_nor_the_gradient():
  """Its target is the padding id 0, and its logits are extreme."""
  logits = jnp.concatenate([LOGITS, jnp.array([[-1e4, 1e4, 0.0]])])
  weights = jnp.array([1.0, 1.0, 0.0])

  def total(x):
    return jnp.sum(weights * cross_entropy(x, jnp.array([0, 1, 0]), 1e-4, 0.1)[0])

  loss, gradient = jax.value_and_grad(total)(logits)
  np.testing.assert_allclose(loss, cross_entropy(LOGITS, TARGETS, 1e-4, 0.1)[0].sum(), rtol=1e-6)
  assert np.isfinite(gradient).all() and not gradient[2].any()


def test_bfloat16_logits_have_a_bfloat16_gradient():
  logits = LOGITS.astype(jnp.bfloat16)
  gradient = jax.grad(lambda x: cross_entropy(x, TARGETS)[0].sum())(logits)
  assert gradient.dtype == jnp.bfloat16
