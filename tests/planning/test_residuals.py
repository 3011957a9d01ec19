"""What a backward pass keeps, of functions small enough to say it by hand."""

import jax
import jax.numpy as jnp
import pytest
from train_steps import Step, gpt

from t5like.planning.activations import count_activations
from t5like.planning.residuals import ROWS, kept_arrays, row_bytes, with_rows

WEIGHTS = {"a": jax.ShapeDtypeStruct((8, 32), jnp.float32), "b": jax.ShapeDtypeStruct((32, 4), jnp.float32)}
INPUTS = {"x": jax.ShapeDtypeStruct((ROWS, 8), jnp.float32)}


def kept(function, fused=True):
  return row_bytes(kept_arrays(function, WEIGHTS, INPUTS, fused))


def test_the_operand_of_a_product_is_kept_and_what_is_cheap_is_not():
  # 32 sums a row; their half is what the second product reads, and the first is not needed again.
  assert kept(lambda w, i: (0.5 * (i["x"] @ w["a"])) @ w["b"]) == 32 * 4
  # A square's derivative needs what was squared: both are kept.
  assert kept(lambda w, i: jnp.square(i["x"] @ w["a"]) @ w["b"]) == 2 * 32 * 4
  # The exponential is what the product reads, and its own derivative.
  assert kept(lambda w, i: jnp.exp(i["x"] @ w["a"]) @ w["b"]) == 32 * 4

  # Cheap steps between do not matter once fused; JAX itself would keep them.
  def long(w, i):
    h = i["x"] @ w["a"]
    return (h * h * (h + 1.0)) @ w["b"]

  assert kept(long) == 2 * 32 * 4 < kept(long, fused=False)


def test_of_dropout_one_byte_is_kept():
  def dropped(w, i):
    h = i["x"] @ w["a"]
    keep = jax.random.bernoulli(jax.random.key(0), 0.9, h.shape)
    return jnp.where(keep, h / 0.9, 0.0) @ w["b"]

  assert kept(dropped) == 32 * (4 + 1)


def test_layers_by_hand():
  # Floats a token, 256 wide with an MLP of 1,024: as in test_step_time, and what plain attention writes: for each of 4
  # heads the softmax over 128 keys, before and after it is divided by its sum. Then what a CPU puts off: 1,024.
  batch = with_rows(Step(gpt(), 1).batch(), 1)
  shallow, deep = (count_activations(gpt(n), batch, platform="cpu").kept for n in (2, 5))
  assert (deep - shallow) / 3 == pytest.approx(128 * 4 * (8 * 256 + 2 * 1024 + 2 * 4 * 128 + 1024), rel=0.02)
  # With "dots" the stream and the products: query, key, value, out, and the MLP's first.
  shallow, deep = (count_activations(gpt(n, remat="dots"), batch, platform="cpu").kept for n in (2, 5))
  assert (deep - shallow) / 3 == pytest.approx(128 * 4 * (256 + 4 * 256 + 1024), rel=0.02)
  # Over two devices of a tensor axis, heads and MLP are halved; the streams and norms are not.
  halved = [count_activations(gpt(n), batch, tensor=2, platform="cpu").kept for n in (2, 5)]
  assert (halved[1] - halved[0]) / 3 == pytest.approx(128 * 4 * (4 * 256 + 4 * 128 + 2 * 512 + 4 * 128 + 512), rel=0.02)
