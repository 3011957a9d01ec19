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


class AveragedState(NamedTuple):
  inner: Any  # state of the wrapped optimizer
  count: jax.Array  # int32 scalar: updates averaged so far
  average: Any  # like the parameters, in float32


def with_moving_average(transformation: optax.GradientTransformation, decay: float) -> optax.GradientTransformation:
  """Adds a moving average of the parameters after each update: average = decay * average + (1 - decay) * parameters.

  The weights are bias-corrected, (1 - decay) / (1 - decay^n) for the n-th, so that the initial parameters have no
  weight, which matters when a run starts from another's parameters.
  """

  def init(params):
    average = jax.tree.map(lambda p: jnp.array(p, jnp.float32, copy=True), params)
    return AveragedState(transformation.init(params), jnp.zeros((), jnp.int32), average)

  def update(updates, state, params=None):
    updates, inner = transformation.update(updates, state.inner, params)
    count = state.count + 1
    # expm1 keeps 1 - decay^n accurate for a decay near 1 and small n.
    weight = (1.0 - decay) / -jnp.expm1(count.astype(jnp.float32) * math.log(decay))
    average = jax.tree.map(
      lambda a, p: a + weight * (p.astype(jnp.float32) - a), state.average, optax.apply_updates(params, updates)
    )
    return updates, AveragedState(inner, count, average)

  return optax.GradientTransformation(init, update)


def has_average(opt_state: Any) -> bool:
  return _find(opt_state) is not None


def averaged_parameters(opt_state: Any, params: Any) -> Any:
  """Returns the averaged parameters, in the dtypes of `params`."""
  found = _find(opt_state)
  if found is None:
    raise UserError(
      "this optimizer state has no moving average of the parameters", try_="ema_decay of the optimizer, such as 0.999"
    )
  return jax.tree.map(lambda a, p: a.astype(p.dtype), found.average, params)


def _find(opt_state: Any) -> AveragedState | None:
  is_average = lambda node: isinstance(node, AveragedState)  # noqa: E731
  return next((node for node in jax.tree.leaves(opt_state, is_leaf=is_average) if is_average(node)), None)
