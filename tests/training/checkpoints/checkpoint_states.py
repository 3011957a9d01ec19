"""A small train state without a model, which is all that checkpoints need."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from t5like import parallel
from t5like.training.checkpoints import Checkpoints
from t5like.training.optimizers.moving_average import with_moving_average
from t5like.training.state import StateSpec, TrainState

FINGERPRINT = {"embed_dim": 16, "vocabulary": "abc"}
ADAM = optax.adamw(1e-3)
AVERAGED = with_moving_average(ADAM, 0.9)


def parameters(seed=0, layers=2, width=16):
  """Returns random values, which do not compress: 'encoder/layers_0/kernel' and so on, 'embedding', 'scale'."""
  rng = np.random.default_rng(seed)
  draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
  return {
    "encoder": {f"layers_{i}": {"kernel": draw(width, 32), "bias": draw(32)} for i in range(layers)},
    "embedding": draw(64, width),
    "scale": draw(width).astype(jnp.bfloat16),
  }


def make_state(params=None, step=1, optimizer=ADAM, axes=None):
  """Returns a state on a mesh and its spec. Vectors are replicated, matrices are sharded.

  The optimizer state is random, except for counts.
  """
  params = parameters() if params is None else params
  mesh = parallel.make_mesh(parallel.MeshAxes(**(axes or {})))
  rng = np.random.default_rng(step)
  opt_state = jax.tree.map(
    lambda x: np.asarray(rng.normal(size=x.shape) if x.ndim else 3, x.dtype), jax.eval_shape(optimizer.init, params)
  )
  state = TrainState(step=np.int32(step), params=params, opt_state=opt_state, seed=np.uint32(5))
  split = NamedSharding(mesh, PartitionSpec("fsdp", "tensor"))
  shardings = jax.tree.map(lambda x: split if x.ndim == 2 else parallel.replicated(mesh), state)
  shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
  return jax.device_put(state, shardings), StateSpec(shapes, shardings)


def save(folder, *states, retention=3, metrics=None):
  checkpoints = Checkpoints(folder, retention)
  for state in states:
    assert checkpoints.save(state, FINGERPRINT, metrics)
  checkpoints.close()


def bits(tree):
  """Returns the bytes of every array, by path."""
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf).tobytes()
    for path, leaf in jax.tree.leaves_with_path(tree)
  }
