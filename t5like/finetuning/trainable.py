"""Choices of trained variables: everything, the head, all above a layer, or by regular expressions."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import ClassVar

import flax.linen as nn

from t5like.errors import UserError, is_integer
from t5like.finetuning.variables import EMBEDDINGS, HEAD, LAYER, Variable, Variables
from t5like.training.optimizers.rules import check_pattern, nearest_paths
from t5like.training.optimizers.selection import Selection


@dataclasses.dataclass(frozen=True)
class Episode:
  """A part of a run with one selection of trained parameters.

  first_step  number of steps before it; None: it starts when the score of the previous episode stops improving
  selection   what trains
  title       for the run card
  """

  first_step: int | None
  selection: Selection
  title: str


@dataclasses.dataclass(frozen=True)
class Trainable:
  """The choice of trained variables in a run. Subclasses return its episodes; the first one starts at step 0."""

  tunes: ClassVar[bool] = False  # whether `tune` adds parameters: checkpoints then hold only what trains

  def tune(self, model: nn.Module) -> nn.Module:
    """Returns the model to train: the given one, or one with the additional parameters of a method."""
    return model

  def episodes(self, variables: Variables, steps: int) -> list[Episode]:
    """Returns the episodes of a run of `steps` steps; raises UserError for a model that does not fit."""
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Everything(Trainable):
  """Trains all parameters."""

  def episodes(self, variables: Variables, steps: int) -> list[Episode]:
    return [Episode(0, variables.select(lambda variable: True), "everything")]


@dataclasses.dataclass(frozen=True)
class HeadOnly(Trainable):
  """Trains the head on a frozen backbone."""

  def episodes(self, variables: Variables, steps: int) -> list[Episode]:
    require_head(variables, type(self).__name__)
    return [Episode(0, variables.select(lambda variable: variable.place == HEAD), "the head only")]


@dataclasses.dataclass(frozen=True)
class FrozenBelow(Trainable):
  """Freezes the embeddings and the layers below number `layer` of every stack, from 0 at the bottom.

  layer       the lowest layer that trains; -2 counts from the top: the last two layers train. The number of layers
              freezes all of them: what follows them trains, such as final norms and heads. 0 freezes nothing
  embeddings  True trains the embeddings, too
  """

  layer: int
  embeddings: bool = False

  def __post_init__(self):
    if not is_integer(self.layer):
      raise UserError(f"invalid FrozenBelow.layer: {self.layer!r}", expected="the number of a layer, such as 6 or -2")

  def episodes(self, variables: Variables, steps: int) -> list[Episode]:
    depth = variables.depth
    if not -depth <= self.layer <= depth:
      raise UserError(
        f"invalid FrozenBelow.layer: {self.layer}",
        expected=f"{-depth} to {depth}: the model has {_depths_text(variables)}",
      )

    def trains(variable: Variable) -> bool:
      if variable.place == EMBEDDINGS:
        return self.embeddings or self.layer in (0, -depth)
      if variable.place != LAYER:
        return True
      lowest = self.layer if self.layer >= 0 else variables.depths[variable.stack] + self.layer
      return variable.layer >= lowest

    where = f"layer {self.layer}" if self.layer >= 0 else f"the top {-self.layer} layers"
    title = f"all above the frozen layers, from {where} on" + (", and the embeddings" if self.embeddings else "")
    return [_checked(Episode(0, variables.select(trains), title), "FrozenBelow")]


@dataclasses.dataclass(frozen=True)
class Matching(Trainable):
  """Trains only the variables whose complete path matches an expression: ['head/.*', '.*/layers_11/.*'].

  Scanned layers have numbers, too: layer 11 of `encoder/layers/mlp/wi/kernel` is `encoder/layers_11/mlp/wi/kernel`.
  """

  patterns: Sequence[str]

  def __post_init__(self):
    check_patterns("Matching.patterns", self.patterns)

  def episodes(self, variables: Variables, steps: int) -> list[Episode]:
    matched = matching("Matching.patterns", self.patterns, variables)
    title = f"what matches {', '.join(self.patterns)}"
    return [Episode(0, variables.select(lambda variable: variable.numbered in matched), title)]


@dataclasses.dataclass(frozen=True)
class Frozen(Trainable):
  """Freezes the variables whose complete path matches an expression, and trains the rest; see `Matching`."""

  patterns: Sequence[str]

  def __post_init__(self):
    check_patterns("Frozen.patterns", self.patterns)

  def episodes(self, variables: Variables, steps: int) -> list[Episode]:
    matched = matching("Frozen.patterns", self.patterns, variables)
    title = f"all but what matches {', '.join(self.patterns)}"
    selection = variables.select(lambda variable: variable.numbered not in matched)
    return [_checked(Episode(0, selection, title), "Frozen")]


def require_head(variables: Variables, method: str) -> None:
  if not variables.has_head:
    modules = list(dict.fromkeys(variable.module for variable in variables.all))
    raise UserError(
      f"{method} needs a model with a head, but this one has none",
      modules=", ".join(modules if len(modules) <= 8 else [*modules[:4], "...", *modules[-3:]]),
      try_="a model with a head; or the top layer: --gin.TRAINABLE=@FrozenBelow() --gin.FrozenBelow.layer=-1",
    )


def check_patterns(name: str, patterns: Sequence[str]) -> None:
  """Raises UserError unless `patterns` is a list of regular expressions."""
  given = isinstance(patterns, list | tuple) and patterns and all(isinstance(pattern, str) for pattern in patterns)
  if not given:
    raise UserError(f"invalid {name}: {patterns!r}", expected="a list such as ['head/.*', '.*/layers_11/.*']")
  for pattern in patterns:
    check_pattern(name, pattern)


def matching(name: str, patterns: Sequence[str], variables: Variables) -> set[str]:
  """Returns the numbered paths that match any of the patterns; raises UserError for one without a match."""
  found: set[str] = set()
  for pattern in patterns:
    matched = {v.numbered for v in variables.all if re.fullmatch(pattern, v.numbered) or re.fullmatch(pattern, v.path)}
    if not matched:
      raise UserError(
        f"the pattern {pattern!r} of {name.partition('.')[0]} matches no variable",
        nearest=nearest_paths(pattern, variables.paths()),
        hint="a pattern must match the complete path",
      )
    found |= matched
  return found


def _checked(episode: Episode, name: str) -> Episode:
  if not episode.selection.layers:
    raise UserError(f"{name} leaves nothing to train", try_="fewer frozen layers or patterns")
  return episode


def _depths_text(variables: Variables) -> str:
  return ", ".join(f"{depth} layers in {stack}" for stack, depth in variables.depths.items()) or "no layers"
