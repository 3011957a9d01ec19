"""On GPUs one product computes queries, keys and values, and one both inputs of a gate: with the same results."""

import contextlib
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like import parallel
from t5like.finetuning.methods.lora import LowRank
from t5like.kernels import attention
from t5like.kernels.gpu.attention import TileSizes, gpu_attention
from t5like.kernels.gpu.tiles import Blocks
from t5like.kernels.platform import compile_for
from t5like.models import BERT, GPT, T5, TransformerConfig
from t5like.models.tuning import Tuning

LENGTH = 128  # the shortest rows for which kernels are used
SIZE = dict(vocab_size=32, embed_dim=32, mlp_dim=48, num_heads=2, head_dim=32, compute_dtype="float16")
LEARNED = dict(positions="learned", max_positions=LENGTH, use_bias=True, activation="gelu", norm="layer")


def build(family: str, **fields):
  """Returns a model and a batch of it."""
  tokens = np.random.default_rng(0).integers(2, 32, (2, LENGTH)).astype(np.int32)
  if family == "T5":
    layers = dict(num_encoder_layers=1, num_decoder_layers=1, gated_mlp=True, activation="gelu")
    model, names = T5(TransformerConfig(**SIZE | layers | fields)), ("encoder_input_tokens", "decoder_input_tokens")
  elif family == "BERT":
    model, names = BERT(TransformerConfig(**SIZE | LEARNED | fields, num_encoder_layers=1)), ("encoder_input_tokens",)
  else:
    model, names = GPT(TransformerConfig(**SIZE | LEARNED | fields, num_decoder_layers=1)), ("decoder_input_tokens",)
  return model, dict.fromkeys(names, tokens)


def parameters(model, batch):
  params = nn.unbox(model.init(jax.random.key(0), batch)["params"])
  leaves, treedef = jax.tree.flatten(params)
  rng = np.random.default_rng(1)
  return treedef.unflatten([x + 0.1 * rng.normal(size=x.shape).astype(np.float32) for x in leaves])


@pytest.mark.parametrize("family, rate", [("T5", 0.0), ("T5", 0.3), ("BERT", 0.3)])
def test_results_and_gradients_are_those_of_separate_products(family, rate, monkeypatch):
  """The GPU's attention is interpreted. With the same dropout, they differ by the rounding of float16."""
  tile_sizes = TileSizes(*[Blocks(64, 64, 4, 2)] * 3)
  kernel = functools.partial(gpu_attention, tile_sizes=tile_sizes, interpret=True)
  monkeypatch.setitem(attention._KERNELS, "pallas_gpu", lambda: kernel)
  model, batch = build(family, dropout_rate=rate)
  params = parameters(model, batch)

  def loss(params):
    rngs = {"dropout": jax.random.key(2)}
    hidden = model.apply({"params": params}, batch, deterministic=False, rngs=rngs, method="hidden_states")
    return jnp.sum(jnp.sin(jax.tree.leaves(hidden)[0].astype(jnp.float32)))

  expected, expected_gradients = jax.value_and_grad(loss)(params)
  with compile_for("gpu"):
    got, gradients = jax.jit(jax.value_and_grad(lambda params: loss(params)))(params)
  np.testing.assert_allclose(got, expected, rtol=0.01)
  least = 0.05 * np.median([np.linalg.norm(x) for x in jax.tree.leaves(expected_gradients)])
  for (path, a), b in zip(jax.tree.leaves_with_path(gradients), jax.tree.leaves(expected_gradients), strict=True):
    assert np.linalg.norm(a - b) < 0.01 * max(np.linalg.norm(b), least), jax.tree_util.keystr(path)


def count_products(jaxpr) -> int:
  """Returns the number of products outside of kernels."""
  count = 0
  for eqn in jaxpr.eqns:
    count += eqn.primitive.name == "dot_general"
    if eqn.primitive.name != "pallas_call":
      inner = [getattr(value, "jaxpr", value) for value in eqn.params.values()]
      count += sum(count_products(each) for each in inner if hasattr(each, "eqns"))
  return count


def products(model, batch, platform="gpu", mesh=None) -> int:
  """Returns the number of products in a forward pass."""
  params = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), batch)["params"])
  context = contextlib.nullcontext() if mesh is None else parallel.sharding_context(mesh)
  with compile_for(platform), context:
    return count_products(jax.make_jaxpr(lambda params: model.apply({"params": params}, batch)["logits"])(params))


# Queries, keys and values, the result, two of the MLP, the logits.
SEPARATE, JOINED, IN_ATTENTION = 7, 5, 2


@pytest.mark.parametrize(
  "fields",
  [dict(qk_norm=True), dict(num_kv_heads=1), dict(head_dim=24)],
  ids=["norms of queries and keys", "shared keys", "cuDNN's attention"],
)
def test_products_of_other_models_are_separate(fields):
  assert products(*build("GPT", **fields)) == SEPARATE


def test_keys_that_are_rotated_are_separate():
  model, batch = build("GPT", positions="rotary", max_positions=None)
  assert products(model, batch) == products(model, batch, platform="cpu") - IN_ATTENTION


def test_products_on_gpus_are_joined():
  model, batch = build("GPT")
  assert products(model, batch) == JOINED
  assert products(model, batch, platform="cpu") == SEPARATE + IN_ATTENTION
  assert products(*build("GPT", gated_mlp=True)) == JOINED  # wi_0 and wi_1


def test_layers_that_are_extended_have_products_of_their_own():
  model, batch = build("GPT")
  low_rank = LowRank(2, 1.0, 0.0, False, inputs=32, outputs=64, axes=("embed", "heads"))
  tuned = model.clone(tuning=Tuning((("decoder/layers_0/attention/query", (low_rank,)),)))
  assert products(tuned, batch) == SEPARATE + 2


@pytest.mark.parametrize("tensor, expected", [(1, JOINED), (2, SEPARATE)])
def test_products_are_not_joined_across_shards(tensor, expected):
  mesh = parallel.make_mesh(parallel.MeshAxes(tensor=tensor))
  assert products(*build("GPT"), mesh=mesh) == expected
  # The kernel of a gate is for one GPU.
  assert products(*build("GPT", gated_mlp=True), mesh=mesh) == expected + 1
