"""The variables of a model by their place in it: embeddings, a layer, what follows the layers, output or head.

Layers have numbers in both layouts: `encoder/layers_3/...`, and index 3 of `encoder/layers/...`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from t5like.training.optimizers.rules import STACKED, numbered_paths, path_text
from t5like.training.optimizers.selection import Selection
from t5like.training.state import weight_count

BACKBONE = "backbone"  # of a model with a head: its parameters without the head
EMBEDDINGS, LAYER, TOP, OUTPUT, HEAD = "embeddings", "layer", "top", "output", "head"
_STACKS = ("encoder", "decoder", "shared", "forward", "backward")  # the last two are ELMo's
# Modules of the families in models/; any other module is a head.
_PLACES = {"pooler": TOP}
_PLACES |= dict.fromkeys(("token_embedder", "decoder_embedder", "embedding_delta"), EMBEDDINGS)
_PLACES |= dict.fromkeys(
  (
    "mlm_head",
    "nsp_head",
    "logits_dense",
    "logits_bias",
    "logits_mixture",
    "output_bias",
    "generator",
    "discriminator_head",
    "boundary_head",
    "distillation",
  ),
  OUTPUT,
)
_LAYER = re.compile(rf"{STACKED}_(\d+)")
# Relative positions shared by all layers of a stack: Hugging Face's T5 keeps them in the first layer.
_FIRST_LAYER = ("relpos_bias", "relative_embedding")


@dataclasses.dataclass(frozen=True)
class Variable:
  """A variable, or one layer of a stacked variable.

  path      in the tree of parameters
  numbered  the same with the number of the layer
  index     on the leading axis of a stacked variable, else None
  module    the part of `numbered` that has one place: 'encoder/layers_3', 'token_embedder', 'head'
  place     embeddings, layer, top (final norms, pooler), output (of the backbone) or head
  stack     'encoder', 'backbone/decoder', ...; '' outside of stacks
  layer     number of the layer from 0 at the bottom, for place 'layer'
  size      number of parameters
  """

  path: str
  numbered: str
  index: int | None
  module: str
  place: str
  stack: str
  layer: int
  size: int

  @property
  def is_stacked(self) -> bool:
    return self.index is not None


@dataclasses.dataclass(frozen=True)
class Variables:
  """All variables of a model."""

  all: Sequence[Variable]
  depths: dict[str, int]  # the number of layers of each stack

  @property
  def size(self) -> int:
    return sum(variable.size for variable in self.all)

  @property
  def depth(self) -> int:
    """The number of layers of the deepest stack."""
    return max(self.depths.values(), default=0)

  @property
  def has_head(self) -> bool:
    return any(variable.place == HEAD for variable in self.all)

  def paths(self) -> list[str]:
    """Returns all paths that an expression may match, without duplicates."""
    return list(dict.fromkeys(path for v in self.all for path in (v.path, v.numbered)))

  def layers_above(self, variable: Variable) -> int:
    """Returns the number of layers above a variable in its stack; -1 above all layers, `depth` for embeddings."""
    if variable.place == LAYER:
      return self.depths[variable.stack] - 1 - variable.layer
    return self.depth if variable.place == EMBEDDINGS else -1

  def select(self, trains: Callable[[Variable], bool]) -> Selection:
    """Returns the selection of the variables for which `trains` is true."""
    layers: dict[str, list[Variable]] = {}
    for variable in self.all:
      layers.setdefault(variable.path, []).append(variable)
    chosen: dict[str, tuple[int, ...] | None] = {}
    for path, members in layers.items():
      trained = [member for member in members if trains(member)]
      if trained:
        chosen[path] = None if len(trained) == len(members) else tuple(member.index for member in trained)
    return Selection(chosen)

  def trained(self, selection: Selection | None) -> list[Variable]:
    """Returns the variables of a selection; None selects all."""
    if selection is None:
      return list(self.all)

    def trains(variable: Variable) -> bool:
      layers = selection.layers.get(variable.path, ())
      return layers is None or variable.index in layers

    return [variable for variable in self.all if trains(variable)]


def read_variables(shapes: Any) -> Variables:
  """Returns the variables of a tree of parameters, arrays or shapes."""
  numbered = numbered_paths(shapes)
  found = []
  for path, leaf in jax.tree.leaves_with_path(shapes):
    name = path_text(path)
    stacked = STACKED in name.split("/")
    for number, each in enumerate(numbered[name]):
      size = weight_count(name, leaf) // (leaf.shape[0] if stacked else 1)
      found.append(Variable(name, each, number if stacked else None, *_place(each), size))
  return Variables(found, _depths(found))


def _place(path: str) -> tuple[str, str, str, int]:
  """Returns module, place, stack and layer of a numbered path."""
  parts = path.split("/")
  prefix = parts[:1] if parts[0] == BACKBONE else []
  rest = parts[len(prefix) :]
  if rest[0] not in _STACKS:
    return "/".join([*prefix, rest[0]]), _PLACES.get(rest[0], HEAD), "", -1
  stack = "/".join([*prefix, rest[0]])
  module = f"{stack}/{rest[1]}"
  if match := _LAYER.fullmatch(rest[1]):
    return module, LAYER, stack, int(match.group(1))
  return (module, LAYER, stack, 0) if rest[1] in _FIRST_LAYER else (module, TOP, stack, -1)


def _depths(variables: Iterable[Variable]) -> dict[str, int]:
  depths: dict[str, int] = {}
  for variable in variables:
    if variable.place == LAYER:
      depths[variable.stack] = max(depths.get(variable.stack, 0), variable.layer + 1)
  return depths
