"""An exponential moving average of the parameters, stored in the optimizer state.

There it is saved in checkpoints and sharded like the parameters, without an extra field in the train state.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from t5like.errors import UserError
from t5like.training.optimizers.rules import leaves_by_path, path_text
from t5like.training.optimizers.selection import Selection


class AveragedState(NamedTuple):
  inner: Any  # state of the wrapped optimizer
  count: jax.Array  # int32 scalar: updates averaged so far
  average: Any  # like the parameters, in float32


def with_moving_average(
  transformation: optax.GradientTransformation, decay: float, selection: Selection | None = None
) -> optax.GradientTransformation:
  """Adds a moving average of the parameters after each update: average = decay * average + (1 - decay) * parameters.

  The weights are bias-corrected, (1 - decay) / (1 - decay^n) for the n-th, so that the initial parameters have no
  weight, which matters when a run starts from another's parameters.

  Where only a selection trains, the average has the variables that train, with all layers of stacked ones.
  """

  def init(params):
    averaged = params if selection is None else selection.take_whole(params)
    trained = params if selection is None else selection.take(params)
    average = jax.tree.map(lambda p: jnp.array(p, jnp.float32, copy=True), averaged)
    return AveragedState(transformation.init(trained), jnp.zeros((), jnp.int32), average)

  def update(updates, state, params=None):
    updates, inner = transformation.update(updates, state.inner, params)
    count = state.count + 1
    # expm1 keeps 1 - decay^n accurate for a decay near 1 and small n.
    weight = (1.0 - decay) / -jnp.expm1(count.astype(jnp.float32) * math.log(decay))
    before = state.average if selection is None else selection.take(state.average)
    average = jax.tree.map(
      lambda a, p: a + weight * (p.astype(jnp.float32) - a), before, optax.apply_updates(params, updates)
    )
    average = average if selection is None else selection.put(state.average, average)
    return updates, AveragedState(inner, count, average)

  return optax.GradientTransformation(init, update)


def has_average(opt_state: Any) -> bool:
  return _find(opt_state) is not None


def averaged_parameters(opt_state: Any, params: Any) -> Any:
  """Returns the averaged parameters, in the dtypes of `params`; frozen ones are their own average."""
  found = _find(opt_state)
  if found is None:
    raise UserError(
      "this optimizer state has no moving average of the parameters", try_="ema_decay of the optimizer, such as 0.999"
    )
  averages = leaves_by_path(found.average)
  return jax.tree.map_with_path(lambda path, p: averages.get(path_text(path), p).astype(p.dtype), params)


def _find(opt_state: Any) -> AveragedState | None:
  is_average = lambda node: isinstance(node, AveragedState)  # noqa: E731
  return next((node for node in jax.tree.leaves(opt_state, is_leaf=is_average) if is_average(node)), None)
