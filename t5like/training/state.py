"""The train state: a plain pytree, initialized directly on its devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import Mesh

from t5like import parallel
from t5like.training.initialization import initialize
from t5like.training.optimizers import Optimizer
from t5like.training.optimizers.rules import leaves_by_path, path_text


class TrainState(struct.PyTreeNode):
  step: jax.Array  # int32 scalar: completed steps
  params: Any
  opt_state: Any
  seed: jax.Array  # uint32 scalar: everything random is derived from it, the step and a purpose
  # What a recurrent model carries from batch to batch, [rows, ...]; None unless batches have `decoder_continues`.
  carry: Any = None


@dataclasses.dataclass(frozen=True)
class StateSpec:
  """Shapes and shardings of a state, before any of it is allocated."""

  shapes: TrainState
  shardings: TrainState


def initial_state(model: nn.Module, optimizer: Optimizer, batch: Any, seed: int) -> TrainState:
  return _started(model, nn.meta.unbox(model.init(jax.random.key(seed), batch))["params"], optimizer, batch, seed)


def _started(model: nn.Module, params: Any, optimizer: Optimizer, batch: Any, seed: int) -> TrainState:
  return TrainState(
    step=jnp.zeros((), jnp.int32),
    params=params,
    opt_state=optimizer.transformation.init(params),
    seed=jnp.asarray(seed, jnp.uint32),
    carry=model.initial_carry(batch["decoder_continues"].shape[0]) if "decoder_continues" in batch else None,
  )


def state_spec(model: nn.Module, optimizer: Optimizer, batch: Any, mesh: Mesh) -> StateSpec:
  """Returns shapes and shardings of the state without allocating memory. `batch` may hold arrays or shapes."""
  boxed = parallel.parameter_shapes(model, batch)
  shapes = jax.eval_shape(lambda boxed: _started(model, nn.meta.unbox(boxed), optimizer, batch, 0), boxed)
  params = parallel.parameter_shardings(boxed, mesh)
  shardings = TrainState(
    step=parallel.replicated(mesh),
    params=params,
    opt_state=parallel.shardings_like_parameters(shapes.opt_state, shapes.params, params, mesh),
    seed=parallel.replicated(mesh),
    carry=jax.tree.map(lambda _: parallel.batch_sharding(mesh), shapes.carry),
  )
  return StateSpec(shapes, shardings)


def with_optimizer(spec: StateSpec, optimizer: Optimizer, mesh: Mesh) -> StateSpec:
  """Returns the spec of the same parameters with the state of another optimizer."""
  opt_state = jax.eval_shape(optimizer.transformation.init, spec.shapes.params)
  shardings = parallel.shardings_like_parameters(opt_state, spec.shapes.params, spec.shardings.params, mesh)
  return StateSpec(spec.shapes.replace(opt_state=opt_state), spec.shardings.replace(opt_state=shardings))


def change_optimizer(state: TrainState, optimizer: Optimizer, spec: StateSpec) -> TrainState:
  """Returns the state for another selection of trained parameters, `spec`.

  Parameters that trained before keep their optimizer state, by path; the others start with a fresh one.
  """
  initialize_all = jax.jit(optimizer.transformation.init, out_shardings=spec.shardings.opt_state)
  before = leaves_by_path(state.opt_state)

  def choose(path: tuple, fresh: jax.Array) -> jax.Array:
    kept = before.get(path_text(path))
    return kept if kept is not None and kept.shape == fresh.shape else fresh

  return state.replace(opt_state=jax.tree.map_with_path(choose, initialize_all(state.params)))


def create_state(
  model: nn.Module,
  optimizer: Optimizer,
  batch: Any,
  seed: int,
  spec: StateSpec,
  part: Callable[[TrainState], TrainState] = lambda state: state,
) -> TrainState:
  """Initializes every array directly on its devices; the values do not depend on the mesh.

  With `part`, only that part of the state, whose spec is given.
  """
  # Initialization depends on the shapes of the batch only.
  zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), batch)
  return initialize(lambda: part(initial_state(model, optimizer, zeros, seed)), spec.shardings)


def parameter_count(params: Any) -> int:
  return sum(weight_count(path, leaf) for path, leaf in leaves_by_path(params).items())


def weight_count(path: str, array: jax.Array | jax.ShapeDtypeStruct) -> int:
  """Returns the number of weights that a parameter holds: QLoRA's codes are two each, and their scales none."""
  name = path.rpartition("/")[2]
  if name == "codes" and array.dtype == np.uint8:
    return 2 * array.size
  return 0 if name in ("scales", "groups", "mean") else array.size
