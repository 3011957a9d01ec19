"""Assembles optimizers from their parts: for all parameters, or only for those that train."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from t5like.errors import UserError
from t5like.training.optimizers.moving_average import with_moving_average
from t5like.training.optimizers.rules import (
  PathRules,
  leaves_by_path,
  nearest_paths,
  numbered_paths,
  path_text,
  rules_table,
  stack_equal_layers,
  variable_paths,
)
from t5like.training.optimizers.schedules import Schedule
from t5like.training.optimizers.selection import Selection, is_masked
from t5like.training.optimizers.updates import clip_by_global_norm, is_stacked


@dataclasses.dataclass(frozen=True)
class Parts:
  """The parts of an optimizer, from which `restrict` builds one for fewer parameters."""

  direction: optax.GradientTransformation
  clip_norm: float | None
  ema_decay: float | None
  assembled: optax.GradientTransformation  # of these parts
  rescale: optax.GradientTransformation | None = None  # of the update with its decay, as in LAMB


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """A gradient transformation, its learning rate (for the log) and its description (for the run card).

  Where a `selection` of the parameters trains, the transformation's `init` takes all parameters and its `update` takes
  gradients and parameters as `selection.take` returns them.
  """

  transformation: optax.GradientTransformation
  learning_rate: Schedule
  description: str
  weight_decay: PathRules
  multipliers: PathRules
  matrices: str | None = None  # Muon: expression for the paths that it updates
  # Name and arguments of the function that built it; None for one built by hand, which gin cannot name.
  factory_call: tuple[str, Mapping[str, Any]] | None = dataclasses.field(default=None, compare=False, repr=False)
  selection: Selection | None = None  # None: all parameters train
  rates: PathRules | None = None  # multipliers by layer, on top of `multipliers`
  parts: Parts | None = dataclasses.field(default=None, compare=False, repr=False)

  def variable_table(self, params: Any) -> str:
    """Returns a table of every variable's weight decay, multiplier and (Muon) method, with the rules that matched.

    Identical layers share a line. `params` may hold arrays or shapes.
    """
    columns = {
      "weight decay": self.weight_decay.choose(params),
      "learning rate x": self.multipliers.choose(params),
    }
    if self.rates is not None:
      columns["layer rate x"] = {path: (p, round(v, 6)) for path, (p, v) in self.rates.choose(params).items()}
    if self.matrices is not None:
      methods = leaves_by_path(methods_of(params, self.matrices))
      columns["method"] = {
        each: (self.matrices if methods[path] == "muon" else "the rest", methods[path])
        for path, numbered in numbered_paths(params).items()
        for each in numbered
      }
    if self.selection is not None:
      columns["trains"] = {
        each: ("TRAINABLE", "yes" if _trains(self.selection, path, number) else "frozen")
        for path, numbered in numbered_paths(params).items()
        for number, each in enumerate(numbered)
      }
    found = stack_equal_layers(list(columns.values()), params)
    return rules_table(list(zip(columns, found, strict=True)))


def _trains(selection: Selection, path: str, layer: int) -> bool:
  layers = selection.layers.get(path, ())
  return layers is None or layer in layers


def build_transformation(
  direction: optax.GradientTransformation,
  schedule: Schedule,
  decays: Callable[[Any], Any],
  multipliers: Callable[[Any], Any],
  clip_norm: float | None,
  ema_decay: float | None,
  selection: Selection | None = None,
  rescale: optax.GradientTransformation | None = None,
) -> optax.GradientTransformation:
  """Returns the chain of every optimizer. `decays` and `multipliers` return a value for each leaf of a tree."""
  parts = [direction, _add_decay(decays), *([rescale] if rescale else [])]
  parts += [optax.scale_by_learning_rate(schedule), _multiply(multipliers)]
  if clip_norm is not None:
    parts.insert(0, clip_by_global_norm(clip_norm))
  transformation = optax.chain(*parts)
  return transformation if ema_decay is None else with_moving_average(transformation, ema_decay, selection)


def restrict(
  optimizer: Optimizer,
  shapes: Any,
  selection: Selection | None = None,
  rates: PathRules | None = None,
  groups: Mapping[str, Selection] | None = None,
) -> Optimizer:
  """Returns the optimizer for a selection of the parameters, without state for the rest.

  Args:
    optimizer: for all parameters. Its rules are checked against these, so that one may match only frozen variables.
    shapes: of all parameters.
    selection: what trains; None: everything.
    rates: multipliers of the learning rate by layer.
    groups: a partition of the selection by name, for a run whose selection grows. Each group counts its own updates:
      one that starts to train later has the bias correction and decay of a first update. (An optimizer that was built
      by hand counts once for all.)
  """
  if selection is None and rates is None:
    return optimizer
  selection = selection or Selection(dict.fromkeys(variable_paths(shapes)))
  decays = selection.take(optimizer.weight_decay.values(shapes))
  multipliers = selection.take(optimizer.multipliers.values(shapes))
  if rates is not None:
    multipliers = jax.tree.map(operator.mul, multipliers, selection.take(rates.values(shapes)))
  parts = optimizer.parts
  known = parts is not None and parts.assembled is optimizer.transformation
  if known:
    direction = parts.direction
    if groups:
      direction = _in_groups(direction, {name: group.within(selection) for name, group in groups.items()})
    transformation = build_transformation(
      direction, optimizer.learning_rate, lambda _: decays, lambda _: multipliers, parts.clip_norm, parts.ema_decay,
      selection, parts.rescale,
    )  # fmt: skip
  else:
    transformation = optax.chain(optimizer.transformation, _multiply(lambda _: multipliers))
  if optimizer.matrices is not None:
    methods_of(shapes, optimizer.matrices)  # raises UserError
  everything = selection.covers(shapes)

  def init(params):
    # The moving average keeps all layers of a stacked variable: it takes its part itself.
    return transformation.init(params if known and parts.ema_decay is not None else selection.take(params))

  def update(updates, state, params=None):
    if not everything and not is_masked(updates) and _same_shapes(updates, shapes):
      raise UserError(
        "the custom train step computes gradients of frozen parameters",
        try_="loss_and_gradients(..., optimizer.selection) of t5like.training.step, or TRAINABLE = @Everything()",
      )
    return transformation.update(updates, state, params)

  return dataclasses.replace(
    optimizer,
    transformation=optax.GradientTransformation(init, update),
    selection=None if everything else selection,
    rates=rates,
    parts=None,
  )


def _same_shapes(tree: Any, shapes: Any) -> bool:
  return [x.shape for x in jax.tree.leaves(tree)] == [x.shape for x in jax.tree.leaves(shapes)]


def _in_groups(
  direction: optax.GradientTransformation, groups: Mapping[str, Selection]
) -> optax.GradientTransformation:
  """Applies a transformation to each group separately; its state is a dict by group."""

  def init(params):
    return {name: direction.init(group.take(params)) for name, group in groups.items()}

  def update(updates, state, params=None):
    # Directions are in float32 for any dtype of the gradients.
    result, new_state = jax.tree.map(lambda u: u.astype(jnp.float32), updates), {}
    for name, group in groups.items():
      part, new_state[name] = direction.update(group.take(updates), state[name], group.take(params))
      result = group.put(result, jax.tree.map(lambda u: u.astype(jnp.float32), part))
    return result, new_state

  return optax.GradientTransformation(init, update)


def methods_of(params: Any, matrices: str) -> Any:
  """Returns the method, "muon" or "adamw", of each variable, as a tree like `params`."""

  def method(path, leaf):
    is_matrix = leaf.ndim - is_stacked(path) == 2
    return "muon" if is_matrix and re.fullmatch(matrices, path_text(path)) else "adamw"

  chosen = jax.tree.map_with_path(method, params)
  if "muon" not in jax.tree.leaves(chosen) and not is_masked(params):
    raise UserError(
      f"muon.matrices = {matrices!r} matches no matrix",
      nearest=nearest_paths(matrices, variable_paths(params)),
      hint="it must match the complete path",
    )
  return chosen


def _add_decay(decays: Callable[[Any], Any]) -> optax.GradientTransformation:
  def update(updates, state, params=None):
    add = lambda u, p, d: u + d * p if np.any(d) else u  # noqa: E731
    return jax.tree.map(add, updates, params, decays(params)), state

  return optax.GradientTransformation(_check_at_init(decays), update)


def _multiply(multipliers: Callable[[Any], Any]) -> optax.GradientTransformation:
  def scale(update, factor):
    # Zeros, not a product: a frozen variable must not change even if its gradient is not finite.
    if not np.any(factor):
      return jnp.zeros_like(update)
    return update * factor if np.all(factor) else jnp.where(factor == 0, 0.0, update * factor)

  def update(updates, state, params=None):
    return jax.tree.map(scale, updates, multipliers(params)), state

  return optax.GradientTransformation(_check_at_init(multipliers), update)


def _check_at_init(values: Callable[[Any], Any]):
  """Returns an init function that checks the rules against the variables, before anything is compiled."""

  def init(params):
    values(params)
    return optax.EmptyState()

  return init
