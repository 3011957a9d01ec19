"""The loss, the state and one update, compared with hand computations."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from padded_examples import padded_examples
from random_parameters import random_parameters

from t5like import parallel
from t5like.data.layouts import encoder_decoder
from t5like.errors import UserError
from t5like.models.auxiliary import Auxiliary
from t5like.models.config import TransformerConfig
from t5like.models.gpt import GPT
from t5like.models.t5 import T5
from t5like.objectives import Lengths
from t5like.training import optimizers
from t5like.training import step as training_step
from t5like.training.losses import add_auxiliary
from t5like.training.optimizers import schedules
from t5like.training.optimizers.selection import Selection
from t5like.training.state import create_state, state_spec
from t5like.training.step import (
  LossSettings,
  compile_eval_step,
  compile_train_step,
  layer_norms,
  loss_and_metrics,
  random_key,
)

CONFIG = TransformerConfig(
  vocab_size=64, embed_dim=16, mlp_dim=32, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, dropout_rate=0.1
)


def make_batch(rows=8):
  rng = np.random.default_rng(0)
  targets = rng.integers(2, 60, (rows, 6)).astype(np.int32)
  targets[:, 4:] = 0
  inputs = rng.integers(2, 60, (rows, 10)).astype(np.int32)
  return encoder_decoder(padded_examples(inputs, targets), Lengths(0, 10, 6))


def initialize(model, optimizer, mesh):
  spec = state_spec(model, optimizer, make_batch(), mesh)
  return create_state(model, optimizer, make_batch(), 0, spec), spec


def build(optimizer, settings=LossSettings(), config=CONFIG):  # noqa: B008
  mesh = parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:1])
  model, batch = T5(config), make_batch()
  state, spec = initialize(model, optimizer, mesh)
  step = compile_train_step(model, optimizer, settings, spec, batch, mesh)
  rows = parallel.batch_sharding(mesh)
  return state, step, {k: jax.device_put(v, rows) for k, v in batch.items()}


def test_loss_is_the_mean_over_real_target_tokens():
  logits = jnp.log(jnp.array([[[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [0.2, 0.3, 0.5]]]))
  batch = {
    "decoder_target_tokens": jnp.array([[0, 2, 1]], jnp.int32),
    "decoder_loss_weights": jnp.array([[1.0, 1.0, 0.0]]),
  }
  loss, metrics = loss_and_metrics({"logits": logits}, batch, LossSettings(z_loss=0.0))
  assert loss == pytest.approx(-(np.log(0.5) + np.log(0.8)) / 2, rel=1e-6)
  assert float(metrics["target_tokens"]) == 2 and float(metrics["accuracy"]) == 2
  loss, _ = loss_and_metrics({"logits": logits}, batch | {"decoder_loss_weights": jnp.zeros((1, 3))}, LossSettings())
  assert loss == 0


@pytest.mark.parametrize(
  "given", [{"z_loss": -1e-4}, {"z_loss": float("nan")}, {"z_loss": float("inf")}, {"label_smoothing": -0.1},
            {"label_smoothing": 1.0}, {"label_smoothing": 1.5}, {"microbatches": 0}],
)  # fmt: skip
def test_invalid_loss_settings_are_refused(given):
  with pytest.raises(UserError, match=next(iter(given)).split("_")[-1]):
    LossSettings(**given)
  LossSettings(z_loss=0.0, label_smoothing=0.999, microbatches=1)
  assert LossSettings().z_loss == 1e-4  # T5's


def test_a_fixed_normalizer_divides_the_sum_and_metrics_stay_sums():
  logits = jnp.log(jnp.array([[[0.5, 0.5], [0.25, 0.75]]]))
  batch = {"decoder_target_tokens": jnp.zeros((1, 2), jnp.int32), "decoder_loss_weights": jnp.ones((1, 2))}
  loss, metrics = loss_and_metrics({"logits": logits}, batch, LossSettings(z_loss=0.0, normalizer=16.0))
  assert loss == pytest.approx(np.log(8) / 16, rel=1e-6)
  assert float(metrics["loss"]) / float(metrics["target_tokens"]) == pytest.approx(np.log(8) / 2, rel=1e-6)
  with pytest.raises(UserError, match="invalid loss normalizer: 0"):
    LossSettings(normalizer=0.0)


def test_next_sentence_prediction_adds_its_own_mean():
  batch = {
    "encoder_target_tokens": jnp.array([[0], [1]], jnp.int32),
    "encoder_loss_weights": jnp.array([[1.0], [0.0]]),
    "labels": jnp.array([0, 1], jnp.int32),
  }
  outputs = {
    "logits": jnp.log(jnp.array([[[0.5, 0.5]], [[0.9, 0.1]]])),
    "nsp_logits": jnp.log(jnp.array([[0.8, 0.2], [0.6, 0.4]])),
  }
  loss, metrics = loss_and_metrics(outputs, batch, LossSettings(z_loss=0.0))
  assert loss == pytest.approx(-np.log(0.5) - (np.log(0.8) + np.log(0.4)) / 2, rel=1e-6)
  assert float(metrics["sentence_accuracy"]) == 0.5
  tokens = jnp.array([[5, 0], [0, 0]], jnp.int32)  # a row with padding, and one of padding alone
  loss, metrics = loss_and_metrics(outputs, batch | {"encoder_input_tokens": tokens}, LossSettings(z_loss=0.0))
  assert loss == pytest.approx(-np.log(0.5) - np.log(0.8), rel=1e-6)
  assert float(metrics["sentence_accuracy"]) == 1


@pytest.mark.parametrize(
  "weights, divide_by, mean", [((1, 0, 1), {}, 4), ((1, 0, 1), {"balance": 16.0}, 0.5), ((0, 0, 0), {}, 0)]
)
def test_a_loss_that_the_model_adds_has_its_own_divisor(weights, divide_by, mean):
  term = Auxiliary(jnp.array([[2.0, 4.0, 6.0]]), jnp.array([weights], jnp.float32), 0.25)
  loss, metrics = add_auxiliary(jnp.float32(1.0), {}, {"balance": term}, divide_by)
  assert float(metrics["balance"]) == mean and float(loss) == 1 + 0.25 * mean


def test_steps_reduce_the_loss_and_count_and_the_old_state_is_donated():
  state, step, batch = build(optimizers.adafactor(schedules.constant_rate(0.01)))
  first = None
  for _ in range(20):
    old = state
    state, metrics = step(old, batch)
    assert jax.tree.leaves(old.params)[0].is_deleted()
    loss = float(metrics["loss"]) / float(metrics["target_tokens"])
    first = first or loss
  assert int(state.step) == 20 and loss < first - 0.5


@pytest.mark.slow
@pytest.mark.parametrize("make", [optimizers.adafactor, optimizers.adamw])
def test_parameters_and_optimizer_state_are_sharded_over_fsdp(make):
  mesh = parallel.make_mesh(parallel.MeshAxes(data=1, fsdp=8))
  state, spec = initialize(T5(CONFIG), make(schedules.constant_rate(0.01)), mesh)
  kernel = state.params["encoder"]["layers_0"]["mlp"]["wi"]["kernel"]
  assert kernel.sharding.shard_shape(kernel.shape) == (2, 32)
  for leaf, sharding in zip(jax.tree.leaves(state.opt_state), jax.tree.leaves(spec.shardings.opt_state), strict=True):
    assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
  if make is optimizers.adamw:
    moments = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.shape == (64, 16)]
    assert len(moments) == 2
    assert all(leaf.sharding.shard_shape(leaf.shape) == (64, 2) for leaf in moments)


SCANNED = dataclasses.replace(CONFIG, scan_layers=True, num_encoder_layers=2)


@pytest.fixture(scope="module")
def guarded():
  """A model of two scanned layers with AdamW, its norms reported."""
  return build(optimizers.adamw(0.01), LossSettings(layer_norms=True), SCANNED)


@pytest.fixture(scope="module")
def guarded_as_on_gpus():
  """The same with `where` between new and old values instead of a branch."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(training_step, "target_platform", lambda: "gpu")
    return build(optimizers.adamw(0.01), LossSettings(layer_norms=True), SCANNED)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["guarded", "guarded_as_on_gpus"])
def test_a_step_that_is_not_finite_changes_nothing_but_the_counter(kind, request):
  fresh, step, batch = request.getfixturevalue(kind)
  state, metrics = step(jax.tree.map(jnp.copy, fresh), batch)
  assert float(metrics["finite"]) == 1.0
  table = ("token_embedder", "embedding")
  assert not np.array_equal(state.params[table[0]][table[1]], fresh.params[table[0]][table[1]])
  before = jax.device_get(state)
  weights = batch["decoder_loss_weights"]
  bad = batch | {"decoder_loss_weights": weights.at[0, 0].set(jnp.inf)}
  bad = {k: jax.device_put(v, batch[k].sharding) for k, v in bad.items()}
  state, metrics = step(state, bad)
  assert float(metrics["norms"]["update/token_embedder/embedding"]) == 0.0
  assert float(metrics["finite"]) == 0.0 and int(state.step) == int(before.step) + 1
  jax.tree.map(np.testing.assert_array_equal, (state.params, state.opt_state), (before.params, before.opt_state))
  state, metrics = step(state, batch)
  assert float(metrics["finite"]) == 1.0 and np.isfinite(float(metrics["parameter_norm"]))


def test_norms_of_every_layer(guarded):
  fresh, step, batch = guarded
  state, metrics = step(jax.tree.map(jnp.copy, fresh), batch)
  norms, params = jax.device_get(metrics["norms"]), jax.device_get(state.params)
  path = "encoder/layers/mlp/wi/kernel"
  kernel = params["encoder"]["layers"]["mlp"]["wi"]["kernel"]
  old = np.asarray(fresh.params["encoder"]["layers"]["mlp"]["wi"]["kernel"])
  for i in range(2):
    np.testing.assert_allclose(norms[f"parameter/{path}"][i], np.linalg.norm(kernel[i]), rtol=1e-5)
    np.testing.assert_allclose(norms[f"update/{path}"][i], np.linalg.norm(kernel[i] - old[i]), rtol=1e-3)
  assert norms["parameter/token_embedder/embedding"].shape == () and len(norms) == 3 * len(jax.tree.leaves(params))
  total = sum(np.sum(np.square(v)) for k, v in norms.items() if k.startswith("gradient/"))
  assert total**0.5 == pytest.approx(float(metrics["gradient_norm"]), rel=1e-5)


def test_layers_that_do_not_train_have_norm_0():
  kernels = {"layers": {"kernel": jnp.array([[3.0, 4.0], [5.0, 12.0]])}, "scale": jnp.array([2.0])}
  norms = layer_norms("update", kernels, Selection({"layers/kernel": (1, 2), "scale": None}))
  assert norms["update/layers/kernel"].tolist() == [0, 5, 13] and float(norms["update/scale"]) == 2


@pytest.mark.slow
def test_the_guard_costs_no_copy_of_the_parameters():
  """Nor of their moments, unlike `where` between old and new values."""
  model = GPT(dataclasses.replace(CONFIG, vocab_size=16_384, embed_dim=32))
  batch = {k: v for k, v in make_batch().items() if k.startswith("decoder")}
  mesh, optimizer = parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:1]), optimizers.adamw(0.01)
  spec = state_spec(model, optimizer, batch, mesh)
  sizes = []
  for guard in (True, False):
    memory = compile_train_step(model, optimizer, LossSettings(guard=guard), spec, batch, mesh).memory_analysis()
    sizes.append(memory.temp_size_in_bytes)
    assert memory.alias_size_in_bytes == sum(x.size * 4 for x in jax.tree.leaves(spec.shapes))
  parameters = 4 * sum(x.size for x in jax.tree.leaves(spec.shapes.params))
  assert sizes[0] - sizes[1] < 0.02 * parameters


def test_evaluation_is_plain_cross_entropy_without_dropout():
  mesh = parallel.make_mesh(parallel.MeshAxes(data=4, fsdp=2))
  model, batch, optimizer = T5(CONFIG), make_batch(), optimizers.adamw(0.01)
  spec = state_spec(model, optimizer, batch, mesh)
  params = random_parameters(model, batch)
  step = compile_eval_step(model, LossSettings(z_loss=0.1, label_smoothing=0.1), spec, batch, mesh)
  rows = parallel.batch_sharding(mesh)
  sums = step(jax.device_put(params, spec.shardings.params), {k: jax.device_put(v, rows) for k, v in batch.items()})
  logits = np.asarray(jax.jit(model.apply)({"params": params}, batch)["logits"], np.float64)
  probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  targets, weights = batch["decoder_target_tokens"], batch["decoder_loss_weights"]
  chosen = np.take_along_axis(probabilities, targets[..., None], -1)[..., 0]
  assert float(sums["loss"]) == pytest.approx(-(np.log(chosen) * weights).sum(), rel=1e-5)
  assert float(sums["accuracy"]) == ((logits.argmax(-1) == targets) * weights).sum()
  assert float(sums["target_tokens"]) == weights.sum() and set(sums) == {"loss", "accuracy", "target_tokens"}


def test_keys_depend_on_seed_step_and_purpose():
  keys = {
    tuple(jax.random.key_data(random_key(jnp.uint32(seed), jnp.int32(step), purpose)).tolist())
    for seed in (0, 1) for step in (0, 1) for purpose in ("dropout", "other")
  }  # fmt: skip
  assert len(keys) == 8


@pytest.mark.slow
def test_dropout_differs_from_step_to_step_and_repeats_on_restart():
  model, batch = T5(CONFIG), make_batch()
  variables = nn.meta.unbox(jax.jit(model.init)(jax.random.key(0), batch))

  @jax.jit
  def logits(step):
    key = random_key(jnp.uint32(0), step, "dropout")
    return model.apply(variables, batch, deterministic=False, rngs={"dropout": key})["logits"]

  assert np.array_equal(logits(3), logits(3)) and not np.array_equal(logits(3), logits(4))


def test_schedules_at_hand_computed_steps():
  at = lambda schedule, step: float(schedule(jnp.int32(step)))  # noqa: E731
  assert at(schedules.inverse_square_root(), 0) == pytest.approx(0.01)
  assert at(schedules.inverse_square_root(), 10_000) == pytest.approx(0.01)
  assert at(schedules.inverse_square_root(), 1_000_000) == pytest.approx(0.001)
  assert at(schedules.constant_rate(0.001), 123) == pytest.approx(0.001)
  linear = schedules.warmup_linear(peak=1.0, warmup_steps=10, total_steps=110)
  assert [at(linear, s) for s in (0, 9, 10, 60, 110)] == pytest.approx([0.1, 1.0, 1.0, 0.5, 0.0])
