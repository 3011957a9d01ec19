"""Weight decay and learning-rate multipliers by path: the first match wins, every variable must match."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5like.errors import UserError
from t5like.training import optimizers
from t5like.training.optimizers.assembly import methods_of
from t5like.training.optimizers.rules import path_rules
from t5like.training.optimizers.selection import Selection


def make_params():
  layer = lambda: {"mlp": {"wi": {"kernel": jnp.ones((2, 3))}}, "mlp_norm": {"scale": jnp.ones(2)}}  # noqa: E731
  return {
    "encoder": {f"layers_{i}": layer() for i in range(4)},
    "token_embedder": {"embedding": jnp.ones((5, 2))},
  }


def one_step(optimizer, gradient=0.0):
  params = make_params()
  state = optimizer.transformation.init(params)
  gradients = jax.tree.map(lambda p: jnp.full_like(p, gradient), params)
  with jax.numpy_dtype_promotion("standard"):  # as the train step does
    updates, _ = jax.jit(optimizer.transformation.update)(gradients, state, params)
  return optax.apply_updates(params, updates)


def test_the_first_match_sets_the_decay():
  # With gradients of 0 only decay is left: 1 - rate * decay.
  rules = [(".*scale", 0.0), ("encoder/layers_[01]/.*", 0.5), (".*", 0.2)]
  new = one_step(optimizers.adamw(0.1, weight_decay=rules))
  encoder = new["encoder"]
  np.testing.assert_allclose(encoder["layers_0"]["mlp"]["wi"]["kernel"], np.full((2, 3), 0.95), rtol=1e-6)
  np.testing.assert_allclose(encoder["layers_3"]["mlp"]["wi"]["kernel"], np.full((2, 3), 0.98), rtol=1e-6)
  np.testing.assert_allclose(new["token_embedder"]["embedding"], np.full((5, 2), 0.98), rtol=1e-6)
  np.testing.assert_array_equal(encoder["layers_0"]["mlp_norm"]["scale"], np.ones(2))


def test_multipliers_scale_the_complete_update_and_zero_freezes():
  rules = [("token_embedder/.*", 0), ("encoder/layers_3/.*", 2.0), (".*", 0.5)]
  new = one_step(optimizers.lion(0.1, learning_rate_multipliers=rules, weight_decay=1.0), 1.0)
  # The sign and the decay, 1 each, at rate .1.
  np.testing.assert_allclose(new["encoder"]["layers_3"]["mlp_norm"]["scale"], np.full(2, 0.6), rtol=1e-6)
  np.testing.assert_allclose(new["encoder"]["layers_0"]["mlp_norm"]["scale"], np.full(2, 0.9), rtol=1e-6)
  np.testing.assert_array_equal(new["token_embedder"]["embedding"], np.ones((5, 2)))
  broken = one_step(optimizers.adamw(0.1, learning_rate_multipliers=rules, clip_norm=None), float("nan"))
  np.testing.assert_array_equal(broken["token_embedder"]["embedding"], np.ones((5, 2)))


def test_a_frozen_layer_of_a_stack_stays_even_if_its_gradient_is_not_finite():
  optimizer = optimizers.adamw(0.1, learning_rate_multipliers=[(".*/layers_0/.*", 0), (".*", 1.0)], clip_norm=None)
  params = {"encoder": {"layers": {"kernel": jnp.ones((2, 3))}}}
  gradients = {"encoder": {"layers": {"kernel": jnp.array([[jnp.nan] * 3, [1.0] * 3])}}}
  with jax.numpy_dtype_promotion("standard"):
    updates, _ = jax.jit(optimizer.transformation.update)(gradients, optimizer.transformation.init(params), params)
  np.testing.assert_allclose(updates["encoder"]["layers"]["kernel"], [[0.0] * 3, [-0.1] * 3], rtol=1e-5)


def test_a_part_of_the_parameters_is_scaled_by_both_multipliers_and_by_lamb():
  params, selection = jax.tree.map(lambda x: 3 * x, make_params()), Selection({"token_embedder/embedding": None})
  rates = path_rules("rates", [("token_embedder/.*", 0.1), (".*", 1.0)])
  lamb = optimizers.lamb(0.1, learning_rate_multipliers=0.5, clip_norm=None)
  transformation = optimizers.restrict(lamb, params, selection, rates).transformation
  state, trained = transformation.init(params), selection.take(params)
  with jax.numpy_dtype_promotion("standard"):
    updates, _ = jax.jit(transformation.update)(trained, state, trained)
  # LAMB's first update has the norm of the parameters.
  np.testing.assert_allclose(updates["token_embedder"]["embedding"], np.full((5, 2), -0.1 * 0.5 * 0.1 * 3), rtol=1e-5)


def test_every_variable_is_listed_and_equal_layers_share_a_line():
  rules = [(".*scale", 0.0), (".*", 0.01)]
  multipliers = [(r"encoder/layers_[013]/.*", 0.5), (".*", 1.0)]
  optimizer = optimizers.adamw(0.1, weight_decay=rules, learning_rate_multipliers=multipliers)
  shapes = jax.eval_shape(make_params)
  assert optimizer.variable_table(shapes).splitlines() == [
    "variable                             weight decay    learning rate x",
    "encoder/layers_0-1,3/mlp/wi/kernel   0.01 by .*      0.5 by encoder/layers_[013]/.*",
    "encoder/layers_0-1,3/mlp_norm/scale  0.0 by .*scale  0.5 by encoder/layers_[013]/.*",
    "encoder/layers_2/mlp/wi/kernel       0.01 by .*      1.0 by .*",
    "encoder/layers_2/mlp_norm/scale      0.0 by .*scale  1.0 by .*",
    "token_embedder/embedding             0.01 by .*      1.0 by .*",
  ]


def test_muons_table_has_the_method_of_each_variable():
  table = optimizers.muon(0.1).variable_table(make_params())
  method = {line.split()[0]: line.split("  ")[-1].strip() for line in table.splitlines()}
  assert method["encoder/layers_0-3/mlp/wi/kernel"] == r"muon by .*/layers(_\d+)?/.*kernel"
  assert method["encoder/layers_0-3/mlp_norm/scale"] == "adamw by the rest"
  assert method["token_embedder/embedding"] == "adamw by the rest"


def test_muons_matrices_have_two_axes():
  kernels = {"qkv": {"kernel": jnp.ones((2, 3, 4))}, "out": {"kernel": jnp.ones((2, 3))}}
  for layers in ({"layers_0": kernels}, {"layers": jax.tree.map(lambda x: x[None], kernels)}):
    found = methods_of(layers, ".*kernel")
    assert jax.tree.leaves(found) == ["muon", "adamw"]  # out, qkv


def test_muon_trains_norms_alone_as_adamw_does():
  """Its matrices are then all frozen, which is no mistake in its expression."""
  norms = Selection({f"encoder/layers_{i}/mlp_norm/scale": None for i in range(4)})
  updates = []
  for optimizer in (optimizers.muon(0.1, b2=0.999), optimizers.adamw(0.1)):
    transformation = optimizers.restrict(optimizer, make_params(), norms).transformation
    state, given = transformation.init(make_params()), norms.take(make_params())
    with jax.numpy_dtype_promotion("standard"):
      updates.append(transformation.update(given, state, given)[0])
  assert len(jax.tree.leaves(updates[0])) == 4
  jax.tree.map(np.testing.assert_array_equal, *updates)


def initialize(optimizer):
  """Evaluates shapes only, as `state_spec` does before anything is compiled."""
  return jax.eval_shape(optimizer.transformation.init, jax.eval_shape(make_params))


def test_a_rule_that_matches_nothing_gets_the_nearest_paths():
  with pytest.raises(UserError, match="adamw.weight_decay applies to no variable") as error:
    initialize(optimizers.adamw(0.1, weight_decay=[("token_embeder/embedding", 0.0), (".*", 0.1)]))
  assert error.value.lines["nearest"] == "token_embedder/embedding"
  # A part of a path does not match: neither its end nor its beginning.
  for part in ("scale", "encoder/layers_0"):
    with pytest.raises(UserError, match=f"'{part}'") as error:
      initialize(optimizers.adamw(0.1, weight_decay=[(part, 0.0), (".*", 0.1)]))
    assert "complete path" in error.value.lines["hint"]


def test_a_rule_shadowed_by_an_earlier_one_is_an_error():
  with pytest.raises(UserError, match="encoder/layers_0") as error:
    initialize(optimizers.lion(0.1, learning_rate_multipliers=[(".*", 1.0), ("encoder/layers_0/.*", 0.0)]))
  assert "'.*'" in error.value.lines["because"]


def test_a_variable_without_a_rule_is_an_error():
  with pytest.raises(UserError, match="matches the variable token_embedder/embedding") as error:
    initialize(optimizers.adafactor(0.1, weight_decay=[("encoder/.*", 0.1)]))
  assert ".*" in error.value.lines["try"]


def test_the_rule_for_the_rest_may_match_nothing():
  rules = [("encoder/.*", 0.1), ("token_embedder/.*", 0.2), (".*", 0.3)]
  assert set(jax.tree.leaves(path_rules("decay", rules).values(make_params()))) == {0.1, 0.2}


def test_muon_without_matrices_is_an_error():
  with pytest.raises(UserError, match="matches no matrix") as error:
    initialize(optimizers.muon(0.1, matrices="encoder/layer_0/mlp/wi/kernel"))
  assert "encoder/layers_0/mlp/wi/kernel" in error.value.lines["nearest"]
