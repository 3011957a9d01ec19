"""Where dropout is and how much, on layers whose weights are ones, zeros and identities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like.kernels.attention import Mask
from t5like.models import TransformerConfig
from t5like.models.attention import Attention, Context
from t5like.models.blocks import MLP, Block
from t5like.models.embedder import Embedder
from t5like.models.stack import Stack

WIDTH = 8
X = jnp.ones((4, 6, WIDTH))  # its RMS norm is itself


def config(**fields):
  size = dict(vocab_size=9, embed_dim=WIDTH, mlp_dim=WIDTH, num_heads=1, num_decoder_layers=1)
  return TransformerConfig(**size, positions="none", **fields)


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
  """All keys alike and all values 1: the output is the sum of the weights that are left."""
  attention, params = Attention(config(**fields)), kernels(query=0.0, key=0.0, value=1.0, out=1.0)
  sums, _ = run(attention, params, X, context(), None)
  assert (len(shares(sums)) > 3) == drops and (drops or set(shares(sums)) == {1.0})
  assert set(shares(sums[:, 0])) == ({0.0, 2.0} if drops else {1.0})  # the first token sees one key
  assert set(shares(run(attention, params, X, context(deterministic=True), None)[0])) == {1.0}


@pytest.mark.parametrize("attention, mlp", [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)])
def test_on_branches_and_not_on_the_stream_that_they_are_added_to(attention, mlp):
  """1 and what a branch adds to it: nothing, or 1, of which half are dropped and half doubled."""
  only_there = dict(mlp_dropout_rate=0.0, attention_dropout_rate=0.0)
  block, params = Block(config(dropout_rate=0.5, **only_there)), block_params(attention, mlp)
  found = shares(run(block, params, X, None, context())[0])
  assert set(found) == ({1.0, 3.0} if attention or mlp else {1.0})
  assert not (attention or mlp) or 0.35 < found[1.0] < 0.65
  assert set(shares(run(block, params, X, None, context(deterministic=True))[0])) == {1.0 + attention + mlp}


@pytest.mark.parametrize("final_dropout", [True, False])
def test_after_the_last_norm_where_asked_for(final_dropout):
  stack = Stack(config(dropout_rate=0.5, final_dropout=final_dropout), 1)
  params = {"layers_0": block_params(0.0, 0.0), "final_norm": {"scale": jnp.ones(WIDTH)}}
  assert set(shares(run(stack, params, X, context())[0])) == ({0.0, 2.0} if final_dropout else {1.0})
  assert set(shares(run(stack, params, X, context(deterministic=True))[0])) == {1.0}


def test_on_embeddings():
  embedder, params = Embedder(config(dropout_rate=0.5)), {"embedding": jnp.ones((9, WIDTH))}
  tokens = jnp.zeros((4, 6), jnp.int32)
  assert set(shares(run(embedder, params, tokens, deterministic=False))) == {0.0, 2.0}
  assert set(shares(run(embedder, params, tokens, deterministic=True))) == {1.0}
