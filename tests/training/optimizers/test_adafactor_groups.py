"""Adafactor on a GPU updates the same variable of all layers together: fewer kernels, the same values."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5like.kernels.platform import compile_for
from t5like.training import optimizers
from t5like.training.optimizers import updates

SHAPES = {"query": (16, 12), "wi": (16, 40), "scale": (16,), "table": (4, 2)}


@pytest.fixture(scope="module")
def trees():
  """Parameters of two stacks of layers, an embedding and a number, and three steps of gradients."""
  rng = np.random.default_rng(0)

  def tree():
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape) * rng.uniform(0.1, 3.0), jnp.float32)  # noqa: E731
    stacks = {
      stack: {f"layers_{i}": {name: draw(*shape) for name, shape in SHAPES.items()} for i in range(layers)}
      for stack, layers in (("encoder", 3), ("decoder", 2))
    }
    return stacks | {"embedding": draw(50, 16), "number": draw()}

  return tree(), [tree() for _ in range(3)]


def run(trees, platform, **options):
  params, gradients = trees
  transformation = optimizers.adafactor(0.1, min_dim_size_to_factor=8, **options).transformation
  with compile_for(platform):
    state = transformation.init(params)
    update = jax.jit(lambda *given: transformation.update(*given))  # a new function: traces are not cached by platform
    with jax.numpy_dtype_promotion("standard"):
      for gradient in gradients:
        changes, state = update(gradient, state, params)
        params = optax.apply_updates(params, changes)
  return params, state


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [{}, {"multiply_by_parameter_scale": False}])
def test_grouped_updates_equal_separate_ones(trees, options):
  together, apart = run(trees, "gpu", **options), run(trees, "cpu", **options)
  assert jax.tree.structure(together) == jax.tree.structure(apart)
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6), together, apart)


def test_layers_are_summed_together(trees):
  """There is one reduction per kind of variable, not per variable."""
  params, gradients = trees
  transformation = optimizers.adafactor(0.1, min_dim_size_to_factor=8).transformation

  def count(platform, operation):
    with compile_for(platform), jax.numpy_dtype_promotion("standard"):
      update = lambda *given: transformation.update(*given)  # noqa: E731
      jaxpr = jax.make_jaxpr(update)(gradients[0], transformation.init(params), params)
    return str(jaxpr).count(operation)

  # The mean square of each matrix' update, and on a GPU of the matrix: 3 matrices per layer and an embedding.
  wide_sum = "reduce_sum[axes=(1, 2)"
  assert (count("cpu", wide_sum), count("gpu", wide_sum)) == (3 * (3 + 2) + 1, 2 * (3 * 2 + 1))
  # The moments of all layers of a kind of variable: a layer's own are slices of them.
  assert (count("cpu", "optimization_barrier"), count("gpu", "optimization_barrier")) == (0, len(SHAPES) * 2)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("small", [0, updates._SMALL])  # sums of rows first; of copies
def test_the_norm_of_a_tree(trees, small, together, monkeypatch):
  monkeypatch.setattr(updates, "_SMALL", small)
  params, _ = trees
  expected = np.linalg.norm(np.concatenate([np.ravel(x) for x in jax.tree.leaves(params)]))
  for platform in ("cpu", "gpu"):
    with compile_for(platform):
      norm = jax.jit(lambda tree: updates.global_norm(tree, together))(params)
    np.testing.assert_allclose(norm, expected, rtol=1e-6)


def test_gradients_are_read_once_for_their_norm_and_their_rows(trees, monkeypatch):
  """The norm of gradients starts from the sums that Adafactor needs: the compiler finds that they are the same."""
  monkeypatch.setattr(updates, "_SMALL", 0)
  params, (gradients, *_) = trees
  transformation = optimizers.adafactor(0.1, min_dim_size_to_factor=8).transformation

  def step(together):
    def both(gradients, state, params):
      return updates.global_norm(gradients, together), transformation.update(gradients, state, params)

    with compile_for("gpu"), jax.numpy_dtype_promotion("standard"):
      text = jax.jit(both).lower(gradients, transformation.init(params), params).compile().as_text()
    return len(re.findall(r" reduce\(", text))

  assert step(together=True) < step(together=False)


@pytest.mark.parametrize("limit", [1.0, 1000.0])
def test_gradients_are_clipped_as_by_optax(trees, limit):
  _, (gradients, *_) = trees
  expected, _ = optax.clip_by_global_norm(limit).update(gradients, optax.EmptyState())
  for platform in ("cpu", "gpu"):
    clip = updates.clip_by_global_norm(limit)
    with compile_for(platform):
      got, _ = jax.jit(lambda tree, clip=clip: clip.update(tree, clip.init(tree)))(gradients)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), got, expected)
  assert (updates.global_norm(expected) < updates.global_norm(gradients)) == (limit == 1.0)


def test_small_arrays_share_the_condition_of_a_choice(trees, monkeypatch):
  monkeypatch.setattr(updates, "_SMALL", 16 * 12)
  params, (gradients, *_) = trees
  choose = jax.jit(updates.choose_in_few_kernels)
  for condition, expected in ((True, params), (False, gradients)):
    jax.tree.map(np.testing.assert_array_equal, choose(jnp.asarray(condition), params, gradients), expected)
  text = str(jax.make_jaxpr(updates.choose_in_few_kernels)(jnp.asarray(True), params, gradients))
  # "wi" and the embedding are large, the number needs no array: one condition for each of the other three shapes.
  assert text.count("optimization_barrier") == 3
