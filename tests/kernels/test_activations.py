"""Biases, activations and gates: the GPU's kernels, interpreted on a CPU, and the joined form against plain JAX."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from activation_cases import inputs, plain, plain_gradient

from t5like.kernels import activations
from t5like.kernels.activation_functions import ACTIVATIONS
from t5like.kernels.activations import activate, activate_joined, add_bias
from t5like.kernels.gpu import activation as gpu_activation
from t5like.kernels.platform import compile_for


@pytest.mark.parametrize("gated, rate", [(False, 0.0), (True, 0.3)])
def test_the_kernel_equals_plain_jax(gated, rate, monkeypatch):
  """Rows and columns end inside a tile; programs have several tiles, and not equally many."""
  monkeypatch.setattr(gpu_activation, "_PROGRAMS", 4)
  x, gradient, dropout = inputs(gated, rate, rows=75, columns=300)
  for name, act in ACTIVATIONS.items():
    got, sums = gpu_activation.activation_gradient(act, x, gradient, gated, not gated, dropout, interpret=True)
    expected = plain_gradient(name, x, gradient, dropout, gated)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-5, err_msg=name)
    if gated:
      assert sums is None
    else:
      np.testing.assert_allclose(sums, expected.sum(0), rtol=1e-5, atol=2e-4, err_msg=name)


def test_the_gradient_of_a_bias_is_summed_in_float32():
  x, bias = jnp.zeros((1000, 3), jnp.bfloat16), jnp.zeros(3)
  gradient = jax.vjp(add_bias, x, bias)[1](jnp.ones_like(x))[1]  # bfloat16 counts to 256
  np.testing.assert_array_equal(gradient, 1000.0)


def test_column_sums_of_bfloat16_are_float32(monkeypatch):
  monkeypatch.setattr(gpu_activation, "_PROGRAMS", 6)
  x = jnp.full((4099, 300), 1.0, jnp.bfloat16)  # bfloat16 counts to 256
  sums = gpu_activation.column_sums(x, interpret=True)
  assert sums.dtype == jnp.float32
  np.testing.assert_array_equal(sums, 4099.0)


def test_erf_of_kernels():
  x = np.linspace(-5, 5, 1001)
  expected = [math.erf(value) for value in x]
  np.testing.assert_allclose(gpu_activation._erf(jnp.asarray(x, jnp.float32)), expected, atol=3e-7)
  slope = jax.vmap(jax.grad(gpu_activation._erf))(jnp.asarray(x, jnp.float32))
  np.testing.assert_allclose(slope, 2 / math.sqrt(math.pi) * np.exp(-(x**2)), atol=3e-7)


@pytest.mark.parametrize("name", ["gelu", "silu"])
@pytest.mark.parametrize("gated, rate", [(False, 0.3), (True, 0.0), (True, 0.3)])
def test_joined_equals_separate(name, gated, rate):
  """With a bias: results and the gradients of products and biases, where the kernel does not apply."""
  x, gradient, dropout = inputs(gated, rate, rows=6, columns=20)
  bias = jnp.asarray(np.random.default_rng(1).normal(size=x.shape[-1:]), jnp.float32)
  parts = 1 + gated

  def joined(x, bias):
    return activate_joined(ACTIVATIONS[name], gated, x, bias, dropout)

  def separate(x, bias):
    projected = [add_bias(*each) for each in zip(jnp.split(x, parts, -1), jnp.split(bias, parts), strict=True)]
    return activate(ACTIVATIONS[name], projected, dropout)

  (got, pull_back), (expected, expected_pull) = (jax.vjp(f, x, bias) for f in (joined, separate))
  np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
  np.testing.assert_array_equal(joined(x, bias), got)  # without a gradient
  np.testing.assert_allclose(got, plain(name, x + bias[None], dropout, gated), rtol=1e-6, atol=1e-6)
  for mine, theirs in zip(pull_back(gradient), expected_pull(gradient), strict=True):
    np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


def test_kernels_are_used_for_large_arrays_on_one_gpu():
  large, small = (jax.ShapeDtypeStruct((n, 1024), jnp.bfloat16) for n in (1024, 1023))
  assert not activations._has_kernel(large)  # a CPU
  with compile_for("gpu"):
    assert activations._has_kernel(large) and not activations._has_kernel(small)
    assert not activations._has_kernel(jax.ShapeDtypeStruct((2**21, 1024), jnp.bfloat16))
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((2,), ("data",))):
      assert not activations._has_kernel(large)


def lowered(function, *shapes):
  """Returns the program of a function of bfloat16 arrays, lowered for GPUs."""
  gpu = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")
  given = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
  mesh = jax.sharding.AbstractMesh((), (), abstract_device=gpu)
  with compile_for("gpu"), jax.sharding.use_abstract_mesh(mesh):
    return jax.jit(function).trace(*given).lower(lowering_platforms=("cuda",)).as_text()


def test_every_activation_lowers_for_gpus():
  def pull_back(act, x, gradient):
    return jax.vjp(lambda x: activate_joined(act, True, x, None, None), x)[1](gradient)

  for name, act in ACTIVATIONS.items():
    text = lowered(functools.partial(pull_back, act), (2048, 1024), (2048, 512))
    assert text.count("xla.gpu.triton") == 1 and "t5like_activation_gradient" in text, name


def test_one_kernel_sums_the_gradient_of_the_bias():
  def pull_back(act, x, bias, gradient):
    return jax.vjp(lambda x, bias: act(x, bias), x, bias)[1](gradient)

  shapes = (2048, 512), (512,), (2048, 512)
  joined = lambda x, bias: activate_joined(ACTIVATIONS["gelu"], False, x, bias, None)  # noqa: E731
  text = lowered(functools.partial(pull_back, joined), *shapes)
  assert text.count("xla.gpu.triton") == 1 and "t5like_activation_gradient" in text
  text = lowered(functools.partial(pull_back, add_bias), *shapes)
  assert text.count("xla.gpu.triton") == 1 and "t5like_column_sums" in text
