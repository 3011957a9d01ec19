"""QLoRA: NF4 by the published table, the size in bits, and a model on a quantized base."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from random_parameters import random_parameters

from t5like.errors import UserError
from t5like.finetuning import read_variables
from t5like.finetuning.methods import NormsOnly, QLoRA, Together
from t5like.finetuning.methods.quantized import LEVELS, dequantize, quantize
from t5like.models import GPT, TransformerConfig
from t5like.models.tuning import merge
from t5like.planning.forecast import parameters_by_part
from t5like.training.state import parameter_count

SIZES = dict(vocab_size=32, embed_dim=8, num_heads=2, head_dim=4, mlp_dim=16)
MODEL = GPT(TransformerConfig(**SIZES, num_decoder_layers=2, scan_layers=True, gated_mlp=True))
TOKENS = np.random.default_rng(0).integers(1, 32, (2, 6), np.int32)
BATCH = {"decoder_input_tokens": TOKENS}


def test_weights_at_the_levels_are_kept_exactly():
  """Every column of 64 weights has the levels of the table times one scale, the same for all: no rounding anywhere."""
  kernel = 0.5 * np.tile(LEVELS, 8)[:, None] * np.ones((1, 4), np.float32)  # [128, 4]
  np.testing.assert_allclose(dequantize(quantize(kernel)), kernel, rtol=1e-6)


def test_rounding_is_to_the_nearest_level():
  kernel = np.random.default_rng(0).normal(size=(3, 128, 512)).astype(np.float32)
  stored = quantize(kernel)
  found = np.asarray(dequantize(stored))
  scales = np.abs(kernel.reshape(3, 2, 64, 512)).max(axis=2, keepdims=True)
  error = np.abs(found - kernel).reshape(3, 2, 64, 512) / scales
  widest = np.diff(LEVELS).max() / 2
  assert error.max() < widest + 0.02 and error.mean() < 0.04  # the scales are rounded, too
  bits = 8 * sum(x.nbytes for x in stored.values()) / kernel.size
  assert bits == pytest.approx(4 + 8 / 64 + 32 / (64 * 256), rel=1e-3)


@pytest.fixture(scope="module")
def tuned():
  method = QLoRA(rank=2)
  base = traverse_util.flatten_dict(random_parameters(MODEL, BATCH), sep="/")
  model = method.tune(MODEL)
  params = traverse_util.flatten_dict(random_parameters(model, BATCH), sep="/")
  converted = method.converted(base)
  assert {path for path in params if "lora" not in path} == set(converted)
  return method, model, traverse_util.unflatten_dict(params | converted, sep="/")


def test_the_base_is_quantized_next_to_another_method():
  base = {"decoder/layers/mlp/wo/kernel": np.ones((2, 16, 8), np.float32)}
  method = QLoRA(rank=2)
  found = Together(methods=[method, NormsOnly()]).converted(base)
  assert found.keys() == method.converted(base).keys() != base.keys()


def test_a_quantized_model_equals_its_merged_form_and_trains(tuned):
  method, model, params = tuned
  selection = method.episodes(read_variables(params), 1)[0].selection
  assert all("lora" in path for path in selection.layers)
  trained = jax.tree.map(lambda x: x + 0.1, selection.take(params))
  changed = selection.put(params, trained)
  left, merged = merge(model.tuning, changed)
  assert left is None
  logits = jax.jit(model.apply)({"params": changed}, BATCH)["logits"]
  np.testing.assert_allclose(jax.jit(MODEL.apply)({"params": merged}, BATCH)["logits"], logits, atol=1e-5)

  def loss(trained, model):
    return jnp.mean(jnp.square(model.apply({"params": selection.put(params, trained)}, BATCH)["logits"]))

  remat = model.clone(config=dataclasses.replace(model.config, remat="full"))
  one, two = (jax.jit(jax.grad(loss), static_argnums=1)(trained, each) for each in (model, remat))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6), one, two)
  assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(one)) > 0


def test_parameters_are_counted_as_weights(tuned):
  """Two to a byte of codes; the constants of quantization are none."""
  plain = sum(x.size for x in jax.tree.leaves(random_parameters(MODEL, BATCH)))
  _, model, params = tuned
  own = sum(x.size for path, x in jax.tree.leaves_with_path(params) if "lora" in jax.tree_util.keystr(path))
  assert parameter_count(params) == plain + own
  assert read_variables(params).size == plain + own
  assert sum(parameters_by_part(params).values()) == plain + own


def test_quantized_matrices_are_not_trained(tuned):
  with pytest.raises(UserError, match="is quantized and cannot be trained"):
    QLoRA(rank=2, also=[".*wo/codes"]).episodes(read_variables(tuned[2]), 1)
  with pytest.raises(UserError, match="only matrices of layers"):
    QLoRA(rank=2, quantized=["token_embedder/embedding"]).tune(MODEL)
  with pytest.raises(UserError, match="does not support DoRA"):
    QLoRA(dora=True)
