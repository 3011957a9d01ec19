"""The training plan of a run: its episodes, each with an optimizer for the parameters that train in it."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from t5like.finetuning.plateaus import PlateauCounter
from t5like.finetuning.rates import LayerRates
from t5like.finetuning.trainable import Episode, Trainable
from t5like.finetuning.unfreezing import UnfreezeOnPlateau
from t5like.finetuning.variables import EMBEDDINGS, LAYER, Variable, Variables, read_variables
from t5like.training.optimizers import Optimizer, restrict
from t5like.training.optimizers.rules import PathRules
from t5like.training.optimizers.selection import Selection


@dataclasses.dataclass(frozen=True)
class PlannedEpisode:
  """An episode with its optimizer.

  first_step     as in Episode
  title          for the run card
  optimizer      for the trained parameters; its `selection` is None if everything trains
  trained        the trained variables
  frozen_layers  for `models.stack.frozen_layers`: the number of frozen layers at the bottom of every scanned stack
  """

  first_step: int | None
  title: str
  optimizer: Optimizer
  trained: Sequence[Variable]
  frozen_layers: Mapping[str, int]

  @property
  def size(self) -> int:
    """The number of trained parameters."""
    return sum(variable.size for variable in self.trained)


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
  """The trained variables of a run, from start to end."""

  variables: Variables
  episodes: Sequence[PlannedEpisode]
  trainable: Trainable
  rates: PathRules | None
  tied_output: bool
  steps: int

  @property
  def largest(self) -> PlannedEpisode:
    """The episode of the run that trains most, which needs the most memory."""
    reached = [episode for episode in self.episodes if self._is_reached(episode)]
    return max(reached, key=lambda episode: episode.size)

  def _is_reached(self, episode: PlannedEpisode) -> bool:
    return episode.first_step is None or episode.first_step < self.steps

  def at(self, step: int, plateaus: int = 0) -> int:
    """Returns the number of the episode after `step` steps and, where it matters, that many plateaus."""
    if any(episode.first_step is None for episode in self.episodes):
      return min(plateaus, len(self.episodes) - 1)
    return max(number for number, episode in enumerate(self.episodes) if episode.first_step <= step)

  def steps_by_episode(self) -> list[int]:
    """Returns the number of steps in each episode; all in the last one where they depend on a score."""
    starts = [episode.first_step for episode in self.episodes]
    if None in starts:
      return [0] * (len(starts) - 1) + [self.steps]
    ends = [min(start, self.steps) for start in [*starts, self.steps]]
    return [end - start for start, end in itertools.pairwise(ends)]

  def plateau_counter(self) -> PlateauCounter | None:
    """Returns a new counter for a plan whose episodes depend on a score."""
    return PlateauCounter(self.trainable) if isinstance(self.trainable, UnfreezeOnPlateau) else None

  def describe(self) -> str:
    """Returns the lines of the run card."""
    total, single = self.variables.size, len(self.episodes) == 1
    lines = []
    for episode in self.episodes:
      start = "" if single else _start_text(episode) + ": "
      share = f": {episode.size:,} of {total:,} parameters ({episode.size / total:.2%})" * (episode.size < total)
      beyond = "" if self._is_reached(episode) else " (beyond the last step)"
      lines.append(f"{start}{episode.title}{share}{beyond}")
    first = self.episodes[0]
    if self.trainable.tunes:
      lines += sizes_text(first.trained)
    if first.size < total:
      lines.append(f"gradients and optimizer state are for these only; {self._backward(first)}")
      if self.tied_output and not self.variables.has_head and not any(v.place == EMBEDDINGS for v in first.trained):
        lines.append("the output matrix is tied to the embeddings and frozen with them")
    lines += self._layer_rates()
    return "\n".join(lines)

  def facts(self) -> dict[str, Any]:
    """Returns the same for run_card.json."""
    total = self.variables.size
    return {
      "method": type(self.trainable).__name__,
      "settings": dataclasses.asdict(self.trainable),
      "episodes": [
        {
          "first_step": episode.first_step,
          "trains": episode.title,
          "trained_parameters": episode.size,
          "frozen_parameters": total - episode.size,
          "trained_variables": _modules(episode.trained),
        }
        for episode in self.episodes
      ],
      "layer_rates": self._rates_by_module() or None,
    }

  def _backward(self, episode: PlannedEpisode) -> str:
    """Describes how far down the backward pass goes."""
    if any(variable.place == EMBEDDINGS for variable in episode.trained):
      return "the backward pass reaches the embeddings"
    lowest = _lowest_layers(episode.trained)
    if not lowest:
      return "the backward pass does not enter the layers"
    texts = [f"at layer {layer} of {stack}" for stack, layer in lowest.items()]
    if any(stack.endswith("encoder") for stack in lowest) and any(s.endswith("decoder") for s in self.variables.depths):
      # The decoder's cross-attention reads the encoder in every layer.
      texts = [text for text in texts if text.endswith("encoder")]
      return f"the backward pass goes through the decoder and stops {' and '.join(texts)}"
    return f"the backward pass stops {' and '.join(texts)}"

  def _layer_rates(self) -> list[str]:
    """Returns a line for each stack, and one for the rest."""
    rates = self._rates_by_module()
    if not rates:
      return []
    layers = {stack: [rates[f"{stack}/layers_{i}"] for i in range(n)] for stack, n in self.variables.depths.items()}
    numbered = {f"{stack}/layers_{i}" for stack, n in self.variables.depths.items() for i in range(n)}
    rest = ", ".join(f"{module} {rate:.3g}" for module, rate in rates.items() if module not in numbered)
    return [
      f"rates by {self.rates.name}: {rest}",
      *(f"  {stack} from layer 0 up: " + " ".join(f"{rate:.3g}" for rate in row) for stack, row in layers.items()),
    ]

  def _rates_by_module(self) -> dict[str, float]:
    if self.rates is None:
      return {}
    modules = dict.fromkeys(variable.module for variable in self.variables.all)
    return dict(zip(modules, (value for _, value in self.rates.rules), strict=True))


def plan_training(
  trainable: Trainable,
  layer_rates: LayerRates | None,
  optimizer: Optimizer,
  shapes: Any,
  steps: int,
  tied_output: bool = False,
  frozen: str | None = None,
) -> TrainingPlan:
  """Returns the plan of a run of `steps` steps.

  `shapes` are those of all parameters, `optimizer` is for all of them. Raises UserError for settings that do not fit
  the model. `tied_output` is for the run card. `frozen` names a part that never trains, such as a teacher.
  """
  variables = read_variables({name: part for name, part in shapes.items() if name != frozen})
  rates = layer_rates.rules(variables) if layer_rates is not None else None
  for_all = rates  # the optimizer takes a rule for every parameter
  if rates is not None and frozen in shapes:
    for_all = dataclasses.replace(rates, rules=((f"{frozen}/.*", 1.0), *rates.rules))
  given = trainable.episodes(variables, steps)
  groups: dict[str, Selection] = {}
  planned, before = [], Selection({})
  for number, episode in enumerate(given):
    added = episode.selection.without(before)
    if added.layers:
      groups = {**groups, f"episode_{number}": added}
    before = episode.selection
    planned.append(_plan_episode(episode, optimizer, shapes, for_all, groups if len(given) > 1 else None, variables))
  return TrainingPlan(variables, planned, trainable, rates, tied_output, steps)


def _plan_episode(
  episode: Episode,
  optimizer: Optimizer,
  shapes: Any,
  rates: PathRules | None,
  groups: Mapping[str, Selection] | None,
  variables: Variables,
) -> PlannedEpisode:
  everything = episode.selection.covers(shapes)
  restricted = restrict(optimizer, shapes, None if everything and not groups else episode.selection, rates, groups)
  trained = variables.trained(None if everything else episode.selection)
  # Not those of ELECTRA's generator, which is not a stack of the model.
  scanned = {variable.stack for variable in variables.all if variable.is_stacked and variable.place == LAYER}
  lowest = _lowest_layers(variable for variable in trained if variable.is_stacked)
  frozen = {stack: lowest.get(stack, variables.depths[stack]) for stack in sorted(scanned)}
  frozen = {stack: count for stack, count in frozen.items() if count}
  return PlannedEpisode(episode.first_step, episode.title, restricted, trained, frozen)


def _lowest_layers(trained: Iterable[Variable]) -> dict[str, int]:
  """Returns the lowest trained layer of each stack that has one."""
  lowest: dict[str, int] = {}
  for variable in trained:
    if variable.place == LAYER:
      lowest[variable.stack] = min(lowest.get(variable.stack, variable.layer), variable.layer)
  return dict(sorted(lowest.items()))


def _modules(trained: Sequence[Variable]) -> dict[str, int]:
  """Returns the number of trained parameters by module."""
  sizes: dict[str, int] = {}
  for variable in trained:
    sizes[variable.module] = sizes.get(variable.module, 0) + variable.size
  return sizes


def sizes_text(variables: Iterable[Variable]) -> list[str]:
  """Returns a line for each group of variables, with the layers of a stack in one."""
  groups: dict[str, list[int]] = {}
  for variable in variables:
    groups.setdefault(re.sub(r"(?<=layers_)\d+(?=/|$)", "*", variable.numbered), []).append(variable.size)
  many = lambda sizes: f"{len(sizes)} x {sizes[0]:,}" if len(sizes) > 1 else f"{sizes[0]:,}"  # noqa: E731
  width = max(map(len, groups), default=0)
  return [f"  {path:<{width}}  {many(sizes)}" for path, sizes in groups.items()]


def _start_text(episode: PlannedEpisode) -> str:
  return "on a plateau" if episode.first_step is None else f"after {episode.first_step:,} steps"
