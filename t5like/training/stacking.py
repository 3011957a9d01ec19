"""Several runs of one shape as one program: stacked states and batches, and a step that is mapped over the runs.

A small model spends most of a step on launching small kernels, more than half of them in the optimizer. A step that
`jax.vmap` maps over k runs launches the same number of kernels, each of which does the work of all k.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t5like import parallel
from t5like.training.state import StateSpec, TrainState

# The runs are at the same step. Everything else, also the seed, has a leading axis of runs.
_RUNS_AXIS = TrainState(step=None, params=0, opt_state=0, seed=0, carry=0)


def stacked_step(step: Callable) -> Callable:
  """Returns the step of stacked states and batches; its metrics are [runs]."""

  def steps(model: Any, optimizer: Any, settings: Any, state: TrainState, batch: Any) -> tuple[TrainState, Any]:
    one = functools.partial(step, model, optimizer, settings)
    return jax.vmap(one, in_axes=(_RUNS_AXIS, 0), out_axes=(_RUNS_AXIS, 0))(state, batch)

  return steps


def stacked_spec(spec: StateSpec, runs: int) -> StateSpec:
  """Returns shapes and shardings of the stacked state of `runs` runs: no device holds a part of the runs only."""
  add_axis = lambda x: jax.ShapeDtypeStruct((runs, *x.shape), x.dtype)  # noqa: E731
  return StateSpec(_outside_step(add_axis, spec.shapes), _outside_step(_with_runs, spec.shardings))


def stacked_batch_sharding(mesh: Mesh) -> NamedSharding:
  return _with_runs(parallel.batch_sharding(mesh))


def stack_states(states: Sequence[TrainState], spec: StateSpec) -> TrainState:
  """Stacks states of the same step; `spec` is the spec of one."""
  steps = {int(state.step) for state in states}
  assert len(steps) == 1, f"states of different steps: {sorted(steps)}"
  shardings = stacked_spec(spec, len(states)).shardings
  stack = lambda states: _outside_step(lambda *x: jnp.stack(x), *states)  # noqa: E731
  return jax.jit(stack, out_shardings=shardings)(list(states))


def unstack_function(spec: StateSpec, runs: int) -> Callable[[TrainState], list[TrainState]]:
  """Returns a compiled function that splits a stacked state; `spec` is the spec of one run."""
  split = lambda state: [_outside_step(lambda x, n=n: x[n], state) for n in range(runs)]  # noqa: E731
  return jax.jit(split, out_shardings=[spec.shardings] * runs)


def stack_batches(batches: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
  return {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}


def _outside_step(function: Callable, state: TrainState, *others: TrainState) -> TrainState:
  """Maps a function over everything but the step."""
  parts = [(each.params, each.opt_state, each.seed, each.carry) for each in (state, *others)]
  return TrainState(state.step, *jax.tree.map(function, *parts))


def _with_runs(sharding: NamedSharding) -> NamedSharding:
  return NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
