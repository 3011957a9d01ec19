"""Norms: GPU kernels, interpreted on a CPU, compared with plain JAX, and plain JAX with the definition."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like.kernels import norms
from t5like.kernels.gpu import norm as gpu_norm
from t5like.kernels.platform import compile_for

EPSILON = 1e-6


def arrays(shape, centered):
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
  x = 2.0 * draw(*shape) + draw(*shape[:-1], 1)
  return x, draw(shape[-1]), draw(shape[-1]) if centered else None, draw(*shape), draw(*shape)


def gradients(run, x, scale, bias, d_y, d_x):
  """Returns the gradients of a weighted sum of the result and, if returned, the input."""

  def loss(x, scale, bias):
    results = run(x, scale, bias)
    return sum(jnp.sum(r.astype(jnp.float32) * w) for r, w in zip(results, (d_y, d_x), strict=False))

  return jax.grad(loss, argnums=(0, 1) if bias is None else (0, 1, 2))(x, scale, bias)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("centered", [False, True], ids=["rms", "layer"])
def test_plain_norm_by_definition(centered):
  x, scale, bias, *_ = arrays((3, 5, 48), centered)
  y = norms.norm(x, scale, bias, epsilon=EPSILON, centered=centered, dtype=jnp.dtype("float32"))
  exact = np.asarray(x, np.float64)
  exact = exact - exact.mean(-1, keepdims=True) if centered else exact
  expected = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + EPSILON) * np.asarray(scale)
  np.testing.assert_allclose(y, expected + (np.asarray(bias) if centered else 0.0), rtol=1e-5, atol=1e-5)


# Widths of three pieces, one piece, and one partly filled piece; rows that end inside a block, and more blocks than
# programs.
@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", [(3, 7, 96), (2, 1200, 64), (5, 100)])
@pytest.mark.parametrize("centered", [False, True], ids=["rms", "layer"])
@pytest.mark.parametrize("with_input, overwritten", [(False, False), (True, False), (True, True)])
def test_the_gpu_kernel_equals_plain_jax(shape, centered, with_input, overwritten, monkeypatch):
  tuning = dataclasses.replace(gpu_norm.Tuning.of_backward(centered, with_input), programs=7)
  monkeypatch.setattr(gpu_norm.Tuning, "of_backward", lambda *_: tuning)
  given = arrays(shape, centered)
  settings = EPSILON, centered, jnp.dtype("float32")

  def kernel(x, scale, bias):
    result = norms._on_gpu(x, scale, bias, *settings, with_input, overwritten, True)
    return result if with_input else (result,)

  def plain(x, scale, bias):
    return norms._plain(x, scale, bias, *settings), *((x,) if with_input else ())

  for got, expected in zip(kernel(*given[:3]), plain(*given[:3]), strict=True):
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
  for got, expected in zip(gradients(kernel, *given), gradients(plain, *given), strict=True):
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_bfloat16_rows_are_normalized_in_float32():
  x, scale, bias, *_ = arrays((4, 64), True)
  x = x.astype(jnp.bfloat16)
  got = norms._on_gpu(x, scale, bias, EPSILON, True, jnp.dtype("bfloat16"), False, False, True)
  expected = norms._plain(x, scale, bias, EPSILON, True, jnp.dtype("bfloat16"))
  assert got.dtype == jnp.bfloat16
  np.testing.assert_array_equal(got, expected)


def test_kernels_are_used_on_a_single_gpu_only():
  x = jax.ShapeDtypeStruct((8, 512, 768), jnp.bfloat16)
  assert not norms._has_kernel(x)  # a CPU
  with compile_for("gpu"):
    assert norms._has_kernel(x)
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((2,), ("data",))):
      assert not norms._has_kernel(x)
    for shape in ((512, 16384), (64, 1, 768)):  # rows too long; a decoding step
      assert not norms._has_kernel(jax.ShapeDtypeStruct(shape, jnp.bfloat16))


def test_kernels_lower_for_gpus_once_for_all_layers():
  x, scale = jax.ShapeDtypeStruct((64, 768), jnp.bfloat16), jax.ShapeDtypeStruct((768,), jnp.float32)

  def loss(x, scale, bias):
    for _ in range(8):
      y, x = norms._on_gpu(x, scale, bias, EPSILON, True, jnp.dtype("bfloat16"), True, True, False)
      x = x + y
    return jnp.sum(x.astype(jnp.float32))

  gpu = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")
  with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=gpu)):
    traced = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2))).trace(x, scale, scale)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
  assert 2 <= text.count("xla.gpu.triton") <= 4  # forward and backward; the outermost ones have unused results
