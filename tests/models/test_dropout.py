"""The places and rates of dropout, in layers whose weights are ones, zeros and identities."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like.kernels.attention import Mask
from t5like.models import BERT, GPT, T5, TransformerConfig
from t5like.models.attention import Attention, Context
from t5like.models.blocks import MLP, Block
from t5like.models.embedder import Embedder
from t5like.models.stack import Stack

WIDTH = 8
X = jnp.ones((4, 6, WIDTH))  # its RMS norm is itself


def config(**fields):
  size = dict(vocab_size=9, embed_dim=WIDTH, mlp_dim=WIDTH, num_heads=1, num_decoder_layers=1, positions="none")
  return TransformerConfig(**size | fields)


def run(module, params, *args, **options):
  rngs = {"dropout": jax.random.key(0, impl="rbg")}
  return module.apply({"params": params}, *args, **options, rngs=rngs)


def kernels(**values):
  return {name: {"kernel": value * jnp.eye(WIDTH)} for name, value in values.items()}


def context(deterministic=False):
  return Context(mask=Mask(causal=True), deterministic=deterministic)


def block_params(attention: float, mlp: float):
  norm = {"scale": jnp.ones(WIDTH)}
  return {
    "attention": kernels(query=0.0, key=0.0, value=1.0, out=attention),
    "mlp": kernels(wi=1.0, wo=mlp),
    "attention_norm": norm,
    "mlp_norm": norm,
  }


def shares(values) -> dict[float, float]:
  found, counts = np.unique(np.asarray(values).round(5), return_counts=True)
  return dict(zip(found.tolist(), (counts / counts.sum()).tolist(), strict=True))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  "fields, drops",
  [
    (dict(dropout_rate=0.5), True),
    (dict(dropout_rate=0.5, mlp_dropout_rate=0.0), False),
    (dict(dropout_rate=0.0, mlp_dropout_rate=0.5), True),
    (dict(dropout_rate=0.5, attention_dropout_rate=0.0), True),
  ],
)
def test_between_an_mlps_two_products(fields, drops):
  params = kernels(wi=1.0, wo=1.0)
  found = shares(run(MLP(config(**fields)), params, X, False))
  assert set(found) == ({0.0, 2.0} if drops else {1.0})
  assert 0.35 < found.get(0.0, 0.5) < 0.65
  assert set(shares(run(MLP(config(**fields)), params, X, True))) == {1.0}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  "fields, drops",
  [
    (dict(dropout_rate=0.5), True),
    (dict(dropout_rate=0.5, attention_dropout_rate=0.0), False),
    (dict(dropout_rate=0.0, attention_dropout_rate=0.5), True),
    (dict(dropout_rate=0.5, mlp_dropout_rate=0.0), True),
  ],
)
def test_on_attention_weights(fields, drops):
  """All keys are equal and all values 1: the output is the sum of the remaining weights."""
  attention, params = Attention(config(**fields)), kernels(query=0.0, key=0.0, value=1.0, out=1.0)
  sums, _ = run(attention, params, X, context(), None)
  assert (len(shares(sums)) > 3) == drops and (drops or set(shares(sums)) == {1.0})
  assert set(shares(sums[:, 0])) == ({0.0, 2.0} if drops else {1.0})  # the first token sees one key
  assert set(shares(run(attention, params, X, context(deterministic=True), None)[0])) == {1.0}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("attention, mlp", [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)])
def test_on_residual_branches_and_not_on_the_residual_stream(attention, mlp):
  """A branch adds 0, or 1 of which half are dropped and half doubled, to 1."""
  branches_only = dict(mlp_dropout_rate=0.0, attention_dropout_rate=0.0)
  block, params = Block(config(dropout_rate=0.5, **branches_only)), block_params(attention, mlp)
  found = shares(run(block, params, X, None, context())[0])
  assert set(found) == ({1.0, 3.0} if attention or mlp else {1.0})
  assert not (attention or mlp) or 0.35 < found[1.0] < 0.65
  assert set(shares(run(block, params, X, None, context(deterministic=True))[0])) == {1.0 + attention + mlp}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("final_dropout", [True, False])
def test_after_the_final_norm_if_enabled(final_dropout):
  stack = Stack(config(dropout_rate=0.5, final_dropout=final_dropout), 1)
  params = {"layers_0": block_params(0.0, 0.0), "final_norm": {"scale": jnp.ones(WIDTH)}}
  assert set(shares(run(stack, params, X, context())[0])) == ({0.0, 2.0} if final_dropout else {1.0})
  assert set(shares(run(stack, params, X, context(deterministic=True))[0])) == {1.0}


def count_masks(jaxpr) -> int:
  """Counts dropout masks in a traced function, including nested ones: each has a barrier after its hashes."""
  inner = [x for eqn in jaxpr.eqns for x in jax.tree.leaves(eqn.params) if hasattr(x, "eqns")]
  return sum(eqn.primitive.name == "optimization_barrier" for eqn in jaxpr.eqns) + sum(map(count_masks, inner))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  "model, count",
  [
    (T5, 2 + 4 + 6 + 2),  # embeddings; attention weights, MLP, their branches; also cross-attention; final norms
    (GPT, 1 + 4 + 1),
    (BERT, 1 + 4 + 1),
  ],
)
def test_the_number_of_dropouts_in_a_model_of_one_layer(model, count):
  model = model(config(dropout_rate=0.1, num_encoder_layers=1))
  tokens = np.ones((1, 2), np.int32)
  batch = {"encoder_input_tokens": tokens, "decoder_input_tokens": tokens}
  params = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), batch))["params"]

  def hidden(params, key, deterministic):
    return model.apply({"params": params}, batch, deterministic, method="hidden_states", rngs={"dropout": key})

  for deterministic, expected in ((False, count), (True, 0)):
    traced = jax.make_jaxpr(hidden, static_argnums=2)(params, jax.random.key(0), deterministic)
    assert count_masks(traced.jaxpr) == expected


def test_layers_in_a_loop_draw_independently():
  """Branches add 1, of which half are dropped and half doubled: two equal draws would give 1 and 5, but never 3."""
  rates = dict(dropout_rate=0.5, mlp_dropout_rate=0.0, attention_dropout_rate=0.0, final_dropout=False)
  stack = Stack(config(use_bias=True, scan_layers=True, **rates), 2)
  shapes = nn.unbox(jax.eval_shape(stack.init, jax.random.key(0), X, context(deterministic=True)))["params"]
  params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
  params["layers"]["mlp"]["wo"]["bias"][:] = 1.0
  params["final_norm"]["scale"][:] = 1.0
  found = run(stack, params, X, context())[0]  # a norm divides all of a row by one number
  assert 3.0 in shares(found / jnp.min(found, axis=-1, keepdims=True))


def test_on_embeddings():
  embedder, params = Embedder(config(dropout_rate=0.5)), {"embedding": jnp.ones((9, WIDTH))}
  tokens = jnp.zeros((4, 6), jnp.int32)
  assert set(shares(run(embedder, params, tokens, deterministic=False))) == {0.0, 2.0}
  assert set(shares(run(embedder, params, tokens, deterministic=True))) == {1.0}
