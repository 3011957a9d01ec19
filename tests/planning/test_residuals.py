"""Saved residuals of small functions, computed by hand."""

import jax
import jax.numpy as jnp
import pytest
from train_steps import Step, gpt

from t5like.models.config import TransformerConfig
from t5like.models.t5 import T5
from t5like.planning.activations import _extrapolate_layers, count_activations
from t5like.planning.residuals import ROWS, row_bytes, saved_residuals, with_rows

WEIGHTS = {"a": jax.ShapeDtypeStruct((8, 32), jnp.float32), "b": jax.ShapeDtypeStruct((32, 4), jnp.float32)}
INPUTS = {"x": jax.ShapeDtypeStruct((ROWS, 8), jnp.float32)}


def saved(function, fused=True):
  return row_bytes(saved_residuals(function, WEIGHTS, INPUTS, fused))


def test_operands_of_products_are_saved_and_cheap_values_are_not():
  # 32 sums per row; the second product reads their half, and the sums are not needed again.
  assert saved(lambda w, i: (0.5 * (i["x"] @ w["a"])) @ w["b"]) == 32 * 4
  # A square's derivative needs its input: both are saved.
  assert saved(lambda w, i: jnp.square(i["x"] @ w["a"]) @ w["b"]) == 2 * 32 * 4
  # The exponential is the operand of the product, and its own derivative.
  assert saved(lambda w, i: jnp.exp(i["x"] @ w["a"]) @ w["b"]) == 32 * 4

  # Cheap intermediate values do not count once fused; JAX itself would save them.
  def long(w, i):
    h = i["x"] @ w["a"]
    return (h * h * (h + 1.0)) @ w["b"]

  assert saved(long) == 2 * 32 * 4 < saved(long, fused=False)


def test_dropout_saves_one_byte():
  def dropped(w, i):
    h = i["x"] @ w["a"]
    keep = jax.random.bernoulli(jax.random.key(0), 0.9, h.shape)
    return jnp.where(keep, h / 0.9, 0.0) @ w["b"]

  assert saved(dropped) == 32 * (4 + 1)


def test_layers_by_hand():
  # Floats per token, 256 wide with an MLP of 1,024: as in test_step_time, and those of plain attention: for each of 4
  # heads the softmax over 128 keys, before and after the division by its sum. Then the deferred gradient: 1,024.
  batch = with_rows(Step(gpt(), 1).batch(), 1)
  shallow, deep = (count_activations(gpt(n), batch, platform="cpu").saved for n in (2, 5))
  assert (deep - shallow) / 3 == pytest.approx(128 * 4 * (8 * 256 + 2 * 1024 + 2 * 4 * 128 + 1024), rel=0.02)
  # With "dots" the stream and the products: query, key, value, out, and the MLP's first.
  shallow, deep = (count_activations(gpt(n, remat="dots"), batch, platform="cpu").saved for n in (2, 5))
  assert (deep - shallow) / 3 == pytest.approx(128 * 4 * (256 + 4 * 256 + 1024), rel=0.02)
  # Over two devices of a tensor axis, heads and MLP are halved; the streams and norms are not.
  halved = [count_activations(gpt(n), batch, tensor=2, platform="cpu").saved for n in (2, 5)]
  assert (halved[1] - halved[0]) / 3 == pytest.approx(128 * 4 * (4 * 256 + 4 * 128 + 2 * 512 + 4 * 128 + 512), rel=0.02)


@pytest.mark.parametrize(
  ("layers", "shared", "largest"), [((3, 4), False, 5), ((4, 4), True, 8), ((0, 6), False, 5), ((6, 0), False, 3)]
)
def test_the_bytes_of_all_layers_follow_from_models_of_one_and_two(layers, shared, largest):
  """10 bytes outside the layers, 3 in each of the encoder's, 5 in each of the decoder's."""
  sizes = dict(num_encoder_layers=layers[0], num_decoder_layers=layers[1], share_encoder_decoder=shared)
  model = T5(TransformerConfig(vocab_size=8, embed_dim=4, mlp_dim=4, num_heads=1, **sizes))

  def trace(model):
    return 10 + 3 * model.config.num_encoder_layers + 5 * model.config.num_decoder_layers

  assert _extrapolate_layers(model, trace) == (trace(model), largest)
