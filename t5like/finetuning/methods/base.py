"""Methods that train a few new parameters on a frozen base."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import numpy as np
from flax import traverse_util

from t5like.errors import UserError, is_finite, is_integer, is_number
from t5like.finetuning.trainable import Episode, Trainable, check_patterns, matching
from t5like.finetuning.variables import BACKBONE, HEAD, Variable, Variables
from t5like.models.shapes import boxed_shapes
from t5like.models.tuning import Tuning
from t5like.training.optimizers.rules import STACKED, nearest_paths

Arrays = Mapping[str, np.ndarray]  # by path
Sites = dict[str, tuple[Any, ...]]  # extensions by site: see models/tuning.py


@dataclasses.dataclass(frozen=True)
class Matrix:
  """A matrix of the base that a method may extend: a dense layer's kernel, or the token embedding.

  path    of the module; of stacked layers, one for all: 'encoder/layers/attention/query'
  name    'kernel' or 'embedding'
  inputs, outputs   its sizes
  axes    their logical names, for sharding
  layers  the number of stacked layers; 0 if it is not stacked
  """

  path: str
  name: str
  inputs: int
  outputs: int
  axes: tuple[str | None, str | None]
  layers: int

  @property
  def is_table(self) -> bool:
    return self.name == "embedding"

  def names(self) -> list[str]:
    """Returns the names that a pattern may match: with layer numbers or without, with `backbone/` or without."""
    path = f"{self.path}/{self.name}" if self.is_table else self.path
    return [*_with_backbone(path), *(name for i in range(self.layers) for name in self._in_layer(i))]

  def matches(self, patterns: Sequence[str]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns for name in self.names())

  def matching_layers(self, pattern: str) -> list[int]:
    """Returns the numbers of the stacked layers that a pattern matches."""
    if any(re.fullmatch(pattern, name) for name in _with_backbone(self.path)):
      return list(range(self.layers))
    return [i for i in range(self.layers) if any(re.fullmatch(pattern, name) for name in self._in_layer(i))]

  def _in_layer(self, number: int) -> list[str]:
    return _with_backbone(self.path.replace(f"/{STACKED}/", f"/{STACKED}_{number}/"))


def _with_backbone(path: str) -> list[str]:
  return list(dict.fromkeys((path, path.removeprefix(f"{BACKBONE}/"))))


def read_matrices(model: nn.Module) -> list[Matrix]:
  """Returns the matrices of a model's backbone, without those of its head."""
  found = []
  for path, box in traverse_util.flatten_dict(boxed_shapes(model), sep="/").items():
    module, _, name = path.rpartition("/")
    stacked = STACKED in path.split("/")
    axes = box.names[stacked:] if isinstance(box, nn.LogicallyPartitioned) else (None, None)
    shape = nn.unbox(box).shape
    is_matrix = name == "kernel" or path.endswith("token_embedder/embedding")
    if is_matrix and len(shape) == 2 + stacked and not path.startswith("head/"):
      found.append(Matrix(module, name, *shape[-2:], axes, shape[0] if stacked else 0))
  return found


@dataclasses.dataclass(frozen=True)
class Method(Trainable):
  """Trains its own parameters; those of the base are frozen and not saved.

  A head is trained, too. `also` are expressions for variables of the base that train as in `Matching`.
  """

  also: Sequence[str] = ()

  tunes: ClassVar[bool] = True
  # Matches the last parts of the paths of its own parameters.
  OWN: ClassVar[str]

  def __post_init__(self):
    if self.also:
      check_patterns(f"{type(self).__name__}.also", self.also)

  def tune(self, model: nn.Module) -> nn.Module:
    """Returns the model with this method's extensions; raises UserError for a model that does not fit."""
    return model.clone(tuning=Tuning(tuple(sorted(self.sites(model).items()))))

  def sites(self, model: nn.Module) -> Sites:
    """Returns the extensions for a plain model."""
    raise NotImplementedError

  def initial(self, base: Arrays, model: nn.Module, vocabulary: Any) -> dict[str, np.ndarray]:
    """Returns initial values that depend on the parameters of the base; the others are drawn."""
    return {}

  def converted(self, base: Arrays) -> Arrays:
    """Returns the base's parameters in the form that the tuned model stores them in."""
    return base

  def check_rows(self, model: nn.Module, lengths: Mapping[str, int], packed: bool) -> None:
    """Raises UserError for rows that do not fit; `lengths` are the tokens that encoder and decoder read."""

  def owns(self, variable: Variable) -> bool:
    """Returns whether a variable is one of its own parameters, and trains."""
    return re.fullmatch(rf"(.*/)?({self.OWN})", variable.numbered) is not None

  def title(self, variables: Variables) -> str:
    raise NotImplementedError

  def episodes(self, variables: Variables, steps: int) -> list[Episode]:
    name = type(self).__name__
    also = matching(f"{name}.also", self.also, variables) if self.also else set()

    def trains(variable: Variable) -> bool:
      return variable.place == HEAD or variable.numbered in also or self.owns(variable)

    rest = ["the head"] * variables.has_head + [f"what matches {', '.join(self.also)}"] * bool(also)
    return [Episode(0, variables.select(trains), " and ".join([self.title(variables), *rest]))]


def select(name: str, patterns: Sequence[str], matrices: Sequence[Matrix], field: str = "targets") -> dict[Matrix, str]:
  """Returns the first matching pattern of every matrix that has one; raises UserError for a pattern without a match."""
  for pattern in patterns:
    if not any(matrix.matches([pattern]) for matrix in matrices):
      raise UserError(
        f"the pattern {pattern!r} of {name}.{field} matches no matrix",
        nearest=nearest_paths(pattern, [each for matrix in matrices for each in matrix.names()]),
        hint="a pattern must match the complete path",
      )
  chosen = {matrix: [p for p in patterns if matrix.matches([p])] for matrix in matrices}
  return {matrix: found[0] for matrix, found in chosen.items() if found}


def is_target(patterns: Sequence[str], variable: Variable) -> bool:
  """Returns whether the module of a variable is a target, in this layer."""
  path = variable.numbered.rpartition("/")[0]
  plain = variable.path.rpartition("/")[0]
  names = {name.removeprefix(f"{BACKBONE}/") for name in (path, plain)} | {path, plain}
  names |= {f"{name}/embedding" for name in names}
  return any(re.fullmatch(pattern, name) for pattern in patterns for name in names)


def layer_sites(model: nn.Module, name: str) -> list[str]:
  """Returns the site of a part of a block in all layers that have it: 'encoder/layers/mlp', or one per layer."""
  found = {path for matrix in read_matrices(model) if (path := matrix.path.rpartition("/")[0]).endswith(f"/{name}")}
  return sorted(found)


def positive(name: str, value: Any, whole: bool = True) -> None:
  if not (is_integer(value) if whole else is_finite(value)) or not value > 0:
    what = "an integer" if whole else "a finite number"
    raise UserError(f"invalid {name}: {value!r}", expected=f"{what} above 0")


def unit(name: str, value: Any) -> None:
  if not is_number(value) or not 0 <= value < 1:
    raise UserError(f"invalid {name}: {value!r}", expected="at least 0 and below 1")
