"""Optimizer state is sharded like its parameters; eight devices compute the update of one; checkpoints restore it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5like import parallel
from t5like.models.config import TransformerConfig
from t5like.models.t5 import T5
from t5like.training import optimizers
from t5like.training.checkpoints import Checkpoints, find_checkpoint, restore_state
from t5like.training.optimizers import schedules
from t5like.training.optimizers.moving_average import averaged_parameters
from t5like.training.optimizers.updates import FactoredMoments
from t5like.training.state import TrainState, state_spec

SIZES = dict(vocab_size=64, embed_dim=16, mlp_dim=32, num_heads=2, num_encoder_layers=2, num_decoder_layers=1)
OPTIMIZERS = {
  "adafactor": dict(min_dim_size_to_factor=16, clip_norm=1.0),
  "adamw": dict(weight_decay=[(".*scale", 0.0), (".*", 0.1)]),
  "adamw_scaled": dict(ema_decay=0.9),
  "lion": dict(learning_rate_multipliers=[("encoder/.*", 0.5), (".*", 1.0)]),
  "muon": dict(ema_decay=0.9),
}


def make_optimizer(name):
  return getattr(optimizers, name)(schedules.warmup_cosine(0.01, 4, 20, start=0.005), **OPTIMIZERS[name])


def make_spec(optimizer, scan, axes, devices=None):
  batch = {f"{side}_input_tokens": np.zeros((8, 4), np.int32) for side in ("encoder", "decoder")}
  mesh = parallel.make_mesh(axes, devices)
  return state_spec(T5(TransformerConfig(**SIZES, scan_layers=scan)), optimizer, batch, mesh)


def random_like(shapes, seed):
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda x: rng.standard_normal(x.shape).astype(np.float32), shapes)


def two_updates(optimizer, spec):
  """Returns the state after two compiled updates with the same gradients on every mesh."""

  def update(state, gradients):
    with jax.numpy_dtype_promotion("standard"):
      updates, opt_state = optimizer.transformation.update(gradients, state.opt_state, state.params)
      params = optax.apply_updates(state.params, updates)
    return state.replace(step=state.step + 1, params=params, opt_state=opt_state)

  def start(params):
    return TrainState(jnp.int32(0), params, optimizer.transformation.init(params), jnp.uint32(0))

  places = (spec.shardings, spec.shardings.params)
  update = jax.jit(update, in_shardings=places, out_shardings=spec.shardings, donate_argnums=0)
  put = lambda seed: jax.device_put(random_like(spec.shapes.params, seed), spec.shardings.params)  # noqa: E731
  state = jax.jit(start, out_shardings=spec.shardings)(put(0))
  for seed in (1, 2):
    state = update(state, put(seed))
  return state


def by_path(tree):
  return {jax.tree_util.keystr(p, simple=True, separator="/"): leaf for p, leaf in jax.tree.leaves_with_path(tree)}


def moments_split(state):
  """Checks that moments of a parameter's shape are sharded like it; returns the number of sharded ones."""
  params, split = by_path(state.params), 0
  for path, leaf in by_path(state.opt_state).items():
    owners = [p for p in params if path.endswith(f"/{p}")]
    if not owners:
      assert leaf.ndim == 0, f"{path} {leaf.shape} belongs to no parameter"
      continue
    parameter = params[max(owners, key=len)]
    if leaf.shape == parameter.shape:
      assert leaf.sharding.is_equivalent_to(parameter.sharding, leaf.ndim), path
      split += leaf.sharding.shard_shape(leaf.shape) != leaf.shape
  return split


# Scanning matters only to optimizers that are not elementwise. Moments of AdamW and Lion are sharded by the same code
# as those of adamw_scaled.
SLOW = pytest.mark.slow(reason="three more pairs of programs")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
  "name, scan",
  [
    *(pytest.param(name, False, marks=[SLOW] if name in ("adamw", "lion") else []) for name in OPTIMIZERS),
    ("adafactor", True),
    pytest.param("muon", True, marks=SLOW),
  ],
)
def test_eight_devices_compute_the_updates_of_one(name, scan, tmp_path):
  optimizer = make_optimizer(name)
  one = two_updates(optimizer, make_spec(optimizer, scan, parallel.MeshAxes(), jax.devices()[:1]))
  spec = make_spec(optimizer, scan, parallel.MeshAxes(data=1, fsdp=8))
  eight = two_updates(optimizer, spec)

  # Everything but the two position tables, [heads, buckets], has an axis that fsdp shards.
  variables = len(by_path(eight.params)) - 2
  matrices = sum(path.endswith("kernel") for path in by_path(eight.params))
  expected = {
    "adafactor": variables - matrices - 1,  # norms: kernels and the embedding are factored
    "adamw": 2 * variables,
    "adamw_scaled": 3 * variables,  # and the average
    "lion": variables,
    "muon": matrices + 2 * (variables - matrices) + variables,
  }
  assert moments_split(eight) == expected[name]

  start = by_path(random_like(spec.shapes.params, 0))
  for path, parameter in by_path(eight.params).items():
    np.testing.assert_allclose(by_path(one.params)[path], parameter, rtol=0, atol=1e-6, err_msg=path)
    assert np.abs(np.asarray(parameter) - start[path]).max() > 1e-4, f"{path} did not move"
  for path, leaf in by_path(eight.opt_state).items():
    np.testing.assert_allclose(by_path(one.opt_state)[path], leaf, rtol=1e-5, atol=1e-6, err_msg=path)

  checkpoints = Checkpoints(tmp_path)
  checkpoints.save(eight, {})
  checkpoints.close()
  restored = restore_state(find_checkpoint(tmp_path), spec, {})
  assert jax.tree.structure(restored) == jax.tree.structure(eight)
  jax.tree.map(np.testing.assert_array_equal, restored.opt_state, eight.opt_state)
  if "ema_decay" in OPTIMIZERS[name]:
    average = by_path(averaged_parameters(restored.opt_state, restored.params))
    embedding = average["token_embedder/embedding"]
    assert embedding.sharding.is_equivalent_to(restored.params["token_embedder"]["embedding"].sharding, 2)


def test_adafactors_factors_are_sharded_along_the_parameters_axis():
  spec = make_spec(make_optimizer("adafactor"), False, parallel.MeshAxes(data=1, fsdp=8))
  is_moments = lambda node: isinstance(node, FactoredMoments)  # noqa: E731
  pick = lambda t: next(n for n in jax.tree.leaves(t, is_leaf=is_moments) if is_moments(n))  # noqa: E731
  shapes, shardings = pick(spec.shapes.opt_state), pick(spec.shardings.opt_state)
  kernel = lambda part: part["encoder"]["layers_0"]["mlp"]["wi"]["kernel"]  # noqa: E731
  # wi is [embed 16, mlp 32], embed over fsdp: the row means (over mlp) are sharded 8 ways, the column means replicated.
  assert kernel(shapes.row).shape == (16,) and kernel(shardings.row).shard_shape((16,)) == (2,)
  assert kernel(shapes.column).shape == (32,) and kernel(shardings.column).shard_shape((32,)) == (32,)
