"""Train steps with frozen parameters: bytes, gradients, optimizer state and FLOPs, in both layouts of the layers."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_parameters import random_parameters

from t5like import parallel
from t5like.errors import UserError
from t5like.finetuning import (
  Everything,
  FrozenBelow,
  GradualUnfreezing,
  HeadOnly,
  LayerwiseDecay,
  Matching,
  plan_training,
)
from t5like.interop.layouts import flatten, stack_layers, unstack_layers
from t5like.models import BERT, GPT, T5, TransformerConfig
from t5like.models.heads import ClassificationHead, attach_head
from t5like.models.layers import Dropout
from t5like.models.stack import frozen_layers
from t5like.planning.flops import forward_flops
from t5like.runs.trained_flops import flops_shares
from t5like.training import optimizers
from t5like.training.optimizers.moving_average import averaged_parameters
from t5like.training.optimizers.rules import path_text
from t5like.training.state import TrainState, change_optimizer, state_spec, with_optimizer
from t5like.training.step import LossSettings, compile_train_step, loss_and_gradients

LAYERS = 3
SIZES = dict(vocab_size=32, embed_dim=16, mlp_dim=24, num_heads=2, head_dim=8, dropout_rate=0.0)
ROWS = 8


def model_of(family, scan, **settings):
  if family == "bert":
    positions = dict(positions="learned", max_positions=8, norm_position="post", pooler=True)
    config = TransformerConfig(**SIZES | positions, num_encoder_layers=LAYERS, scan_layers=scan, **settings)
    return attach_head(BERT(config), ClassificationHead(labels=("no", "yes", "maybe")))
  sizes = dict(num_decoder_layers=LAYERS, num_encoder_layers=LAYERS if family == "t5" else 0, scan_layers=scan)
  return (T5 if family == "t5" else GPT)(TransformerConfig(**SIZES | sizes, **settings))


def batch_of(family):
  rng = np.random.default_rng(0)
  tokens = rng.integers(2, 30, (ROWS, 6)).astype(np.int32)
  if family == "bert":
    ones = np.ones_like(tokens)
    labels = {"labels": rng.integers(0, 3, ROWS).astype(np.int32)}
    return {"encoder_input_tokens": tokens, "encoder_segment_ids": ones} | labels
  batch = {
    "decoder_input_tokens": tokens,
    "decoder_target_tokens": np.roll(tokens, -1, axis=1),
    "decoder_loss_weights": np.ones(tokens.shape, np.float32),
  }
  return batch | ({"encoder_input_tokens": tokens} if family == "t5" else {})


@functools.cache
def unstacked_parameters(family):
  """Random parameters, negative zeros included: adding an update of 0 would change their bytes."""
  params = random_parameters(model_of(family, False), batch_of(family))
  return {path: np.where(np.abs(x) < 1e-3, -0.0, x).astype(x.dtype) for path, x in flatten(params).items()}


def parameters(family, scan):
  flat = unstacked_parameters(family)
  return nested(stack_layers(flat) if scan else flat)


def nested(flat):
  tree = {}
  for path, array in flat.items():
    *parents, name = path.split("/")
    node = tree
    for parent in parents:
      node = node.setdefault(parent, {})
    node[name] = array
  return tree


def layer_by_layer(params):
  """Returns arrays by numbered path, from either layout."""
  return {path: np.asarray(x) for path, x in unstack_layers(flatten(jax.device_get(params))).items()}


def plan_of(family, scan, trainable, optimizer, rates=None, steps=100):
  return plan_training(trainable, rates, optimizer, parameters(family, scan), steps)


def mesh_of(axes=None):
  """Returns a mesh of 8 devices, or of one."""
  return parallel.make_mesh(axes) if axes else parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:1])


def run(family, scan, episode, steps=2, axes=None, state=None, settings=LossSettings()):  # noqa: B008
  """Returns the state before and after some steps of an episode, the spec and the compiled step."""
  model, batch, mesh = model_of(family, scan), batch_of(family), mesh_of(axes)
  spec = state_spec(model, episode.optimizer, batch, mesh)
  if state is None:
    params = parameters(family, scan)
    state = TrainState(jnp.int32(0), params, episode.optimizer.transformation.init(params), jnp.uint32(0))
    state = jax.device_put(state, spec.shardings)
  before = jax.device_get(state)
  with frozen_layers(episode.frozen_layers):
    step = compile_train_step(model, episode.optimizer, settings, spec, batch, mesh)
  rows = {name: jax.device_put(x, parallel.batch_sharding(mesh)) for name, x in batch.items()}
  for _ in range(steps):
    state, _ = step(state, rows)
  return before, state, spec, step


def paths_of_arrays(opt_state):
  return {path_text(path) for path, leaf in jax.tree.leaves_with_path(opt_state) if leaf.ndim}


@pytest.mark.slow
@pytest.mark.parametrize(
  ("family", "scan", "trainable", "trained"),
  [
    ("bert", False, HeadOnly(), ["head/"]),
    ("t5", True, FrozenBelow(2), ["/layers_2/", "/final_norm/"]),
    ("gpt", True, Matching([".*/layers_[02]/mlp/.*"]), ["_0/mlp/", "_2/mlp/"]),
  ],
)
def test_frozen_bytes_stay_and_the_optimizer_holds_only_the_trained(family, scan, trainable, trained):
  """On a mesh of 8 devices."""
  optimizer = optimizers.adamw(0.1, weight_decay=0.1)
  (episode,) = plan_of(family, scan, trainable, optimizer).episodes
  axes = parallel.MeshAxes(data=2, fsdp=2, tensor=2)
  before, state, _, _ = run(family, scan, episode, axes=axes)
  old, new = layer_by_layer(before.params), layer_by_layer(state.params)
  for path in old:
    is_trained = any(part in f"{path}/" for part in trained)
    assert (old[path].tobytes() == new[path].tobytes()) != is_trained, path
  sizes = sum(x.size for path, x in old.items() if any(part in f"{path}/" for part in trained))
  moments = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim]
  assert sum(leaf.size for leaf in moments) == 2 * sizes
  matrices = [leaf for leaf in moments if leaf.ndim == 3 and leaf.shape[-1] >= 16]
  assert all(leaf.addressable_shards[0].data.size * 4 == leaf.size for leaf in matrices)  # fsdp and tensor


@pytest.mark.slow
@pytest.mark.parametrize(("loop", "remat"), [("loop", "none"), ("unrolled", "full")])
def test_gradients_of_trained_layers_are_those_of_training_everything(loop, remat):
  """Of T5, whose frozen decoder layers pass gradients on to the encoder."""
  settings = dict(layer_loop=loop, remat=remat)
  model, batch, params = model_of("t5", True, **settings), batch_of("t5"), parameters("t5", True)
  (episode,) = plan_of("t5", True, FrozenBelow(2), optimizers.adamw(0.1)).episodes
  assert episode.frozen_layers == {"encoder": 2, "decoder": 2}
  state = TrainState(jnp.int32(0), jax.tree.map(jnp.asarray, params), (), jnp.uint32(0))
  selection = episode.optimizer.selection
  everything = jax.jit(lambda: loss_and_gradients(model, LossSettings(), state, batch)[2])()
  with frozen_layers(episode.frozen_layers):
    found = jax.jit(lambda: loss_and_gradients(model, LossSettings(), state, batch, selection)[2])()
  assert jax.tree.leaves(found)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, selection.take(everything))
  assert found["encoder"]["layers"]["mlp"]["wi"]["kernel"].shape == (1, 16, 24)


@pytest.mark.slow
def test_layers_have_different_dropout_also_in_two_scans():
  """Both scans count their layers from 0: their random keys must not repeat."""
  config = dict(num_decoder_layers=2, num_encoder_layers=0, scan_layers=True)
  model = GPT(TransformerConfig(**SIZES | config | {"dropout_rate": 0.5}))
  tokens = {"decoder_input_tokens": np.ones((1, 4), np.int32)}
  params = nn.unbox(model.init(jax.random.key(0), tokens))["params"]
  seen = []

  def record(next_method, args, kwargs, context):
    if isinstance(context.module, Dropout) and "layers" not in context.module.path and len(context.module.path) == 1:
      key = jax.random.key_data(context.module.make_rng("dropout"))
      jax.debug.callback(lambda k: seen.append(k.tobytes()), key, ordered=True)
    return next_method(*args, **kwargs)

  with nn.intercept_methods(record), frozen_layers({"decoder": 1}):
    model.apply({"params": params}, tokens, deterministic=False, rngs={"dropout": jax.random.key(0)})
    jax.effects_barrier()
  assert len(seen) >= 4 and len(set(seen)) == len(seen)


@functools.cache
def flops_share(family, scan, trainable):
  plan = plan_of(family, scan, trainable, optimizers.adamw(0.1))
  return flops_shares(model_of(family, scan), plan, parameters(family, scan), batch_of(family))[0]


@pytest.mark.parametrize(
  ("family", "trainable"),
  [("bert", HeadOnly()), ("gpt", FrozenBelow(2)), pytest.param("t5", FrozenBelow(2), marks=pytest.mark.slow)],
)
def test_a_scan_also_computes_the_gradient_of_its_first_layers_input(family, trainable):
  extra = flops_share(family, True, trainable) - flops_share(family, False, trainable)
  assert 0 <= extra < 1 / (3 * LAYERS)


def test_the_backward_pass_stops_at_the_lowest_trained_layer():
  """FLOPs of the traced gradients, by hand: a trained layer counts three times, a frozen one below all trained once."""
  forward = forward_flops(model_of("gpt", False).config, 1, decoder_length=6)
  output = 2 * 6 * 16 * 32
  layer = (forward - output) // LAYERS
  # Of the tied, frozen output only the gradient of its input is computed.
  by_hand = forward + output + 2 * layer
  assert flops_share("gpt", False, FrozenBelow(2)) == pytest.approx(by_hand / (3 * forward), rel=0.08)
  assert flops_share("bert", False, HeadOnly()) == pytest.approx(1 / 3, rel=0.02)


@pytest.mark.slow  # the test above counts them in the traced step
def test_compiled_steps_need_fewer_flops():
  optimizer = optimizers.adamw(0.1)
  flops = {}
  for name, trainable in {"all": Everything(), "top": FrozenBelow(2), "head": HeadOnly()}.items():
    (episode,) = plan_of("bert", False, trainable, optimizer).episodes
    *_, step = run("bert", False, episode, steps=0)
    flops[name] = step.cost_analysis()["flops"]
  assert flops["head"] < 0.5 * flops["all"] and flops["head"] < flops["top"] < 0.7 * flops["all"]


@pytest.mark.slow
@pytest.mark.parametrize("make", [optimizers.adafactor, optimizers.muon])
def test_layerwise_decay_is_the_same_with_scanned_layers(make):
  found = {}
  for scan in (False, True):
    (episode,) = plan_of("gpt", scan, FrozenBelow(1), make(0.05), LayerwiseDecay(0.5)).episodes
    before, state, _, _ = run("gpt", scan, episode)
    found[scan] = layer_by_layer(state.params)
  for path, array in found[False].items():
    np.testing.assert_allclose(found[True][path], array, rtol=1e-4, atol=1e-5, err_msg=path)


def test_the_rate_of_each_layer_is_a_power_of_the_decay():
  """Lion's updates are the learning rate in every entry."""
  (episode,) = plan_of("gpt", True, Everything(), optimizers.lion(0.01), LayerwiseDecay(0.5)).episodes
  before, state, _, _ = run("gpt", True, episode, steps=1)
  moved = jax.tree.map(lambda a, b: np.abs(np.asarray(b) - a), before.params, jax.device_get(state.params))
  for layer in range(LAYERS):
    largest = moved["decoder"]["layers"]["mlp"]["wi"]["kernel"][layer].max()
    assert largest == pytest.approx(0.01 * 0.5 ** (LAYERS + 1 - layer), rel=1e-3)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scan", [False, True])
def test_unfreezing_keeps_the_old_state_and_starts_new_layers_with_a_first_update(scan):
  """A first update of Adam is the learning rate in every entry, thanks to its bias correction."""
  plan = plan_of("gpt", scan, GradualUnfreezing(period=3), optimizers.adamw(0.01, eps=1e-30, clip_norm=None))
  first, second = plan.episodes[:2]
  _, state, spec, _ = run("gpt", scan, first, steps=3)
  mesh = mesh_of()
  entered = change_optimizer(state, second.optimizer, with_optimizer(spec, second.optimizer, mesh))
  before = {path_text(p): np.asarray(x) for p, x in jax.tree.leaves_with_path(state.opt_state)}
  after = {path_text(p): np.asarray(x) for p, x in jax.tree.leaves_with_path(entered.opt_state)}
  assert set(before) < set(after)
  assert all(before[path].tobytes() == after[path].tobytes() for path in before)
  assert all(not after[path].any() for path in set(after) - set(before))
  old, state, _, _ = run("gpt", scan, second, steps=1, state=entered)
  old, new = layer_by_layer(old.params), layer_by_layer(state.params)
  moved = {path: np.abs(new[path] - old[path]) for path in old}
  assert {path.split("/")[1] for path in moved if "layers_" in path and moved[path].any()} == {"layers_1", "layers_2"}
  np.testing.assert_allclose(moved["decoder/layers_1/mlp/wi/kernel"].max(), 0.01, rtol=1e-3)
  assert "token_embedder/embedding" in moved and moved["token_embedder/embedding"].any()


def test_the_moving_average_of_frozen_parameters_is_their_value(scan=True):
  (episode,) = plan_of("gpt", scan, FrozenBelow(2), optimizers.adamw(0.1, ema_decay=0.5)).episodes
  before, state, _, _ = run("gpt", scan, episode, steps=2)
  average = layer_by_layer(averaged_parameters(state.opt_state, state.params))
  old, new = layer_by_layer(before.params), layer_by_layer(state.params)
  assert average["decoder/layers_0/mlp/wi/kernel"].tobytes() == old["decoder/layers_0/mlp/wi/kernel"].tobytes()
  assert not np.array_equal(average["decoder/layers_2/mlp/wi/kernel"], new["decoder/layers_2/mlp/wi/kernel"])
  assert not any("token_embedder" in path for path in paths_of_arrays(state.opt_state))


@pytest.mark.slow
def test_microbatches_and_norms_with_frozen_layers(scan=True):
  (episode,) = plan_of("gpt", scan, FrozenBelow(2), optimizers.adamw(0.1)).episodes
  one = run("gpt", scan, episode, axes=parallel.MeshAxes(data=4, tensor=2))[1]
  settings = LossSettings(microbatches=2, layer_norms=True)
  two = run("gpt", scan, episode, axes=parallel.MeshAxes(data=4, tensor=2), settings=settings)[1]
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), one.params, two.params)


def test_a_custom_step_with_gradients_of_everything_is_an_error():
  (episode,) = plan_of("gpt", False, FrozenBelow(2), optimizers.adamw(0.1)).episodes
  params = parameters("gpt", False)
  state = episode.optimizer.transformation.init(params)
  with pytest.raises(UserError, match="gradients of frozen parameters") as error:
    episode.optimizer.transformation.update(params, state, params)
  assert "optimizer.selection" in error.value.lines["try"]
