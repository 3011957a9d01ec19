"""The runs of a sweep: the `t5like train` commands of every recipe and seed."""

from __future__ import annotations

import dataclasses
import functools
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from t5like.ablations.benchmarks import SIZES, Unit, find_unit
from t5like.ablations.sweep.results import run_name
from t5like.ablations.sweep.settings import SweepSettings, complete_settings, merge_settings
from t5like.ablations.tables import RECIPES, Recipe
from t5like.errors import UserError
from t5like.experiments.reading import read_configurable, read_experiment

if TYPE_CHECKING:
  from t5like.ablations.configurables import Scale
  from t5like.experiments.experiment import Experiment

PRETRAIN, MIXED = "pretrain", "mixed"  # parts that are no fine-tuning
_FINETUNE = "ablations/finetune.gin"


@dataclasses.dataclass(frozen=True)
class Part:
  """One `t5like train` of a run."""

  name: str  # "pretrain", "mixed", or the unit it fine-tunes on
  files: list[str]
  overrides: list[tuple[str, str]]
  model_dir: Path
  steps: int
  evaluated: tuple[str, ...]  # tasks that are scored in it

  @property
  def command(self) -> str:
    line = ["t5like", "train", *(f"--gin_file={file}" for file in self.files)]
    return shlex.join([*line, *(f"--gin.{name}={value}" for name, value in self.overrides)])


def load_part(part: Part) -> Experiment:
  """The experiment that the part's command trains."""
  return read_experiment(part.files, part.overrides)


@dataclasses.dataclass(frozen=True)
class SweepRun:
  """A recipe with one seed: its parts in order."""

  recipe: str
  seed: int
  parts: list[Part]

  @property
  def name(self) -> str:
    return run_name(self.recipe, self.seed)


def plan_sweep(sweep_dir: Path, given: SweepSettings, rows: Sequence[str] = ()) -> Planner:
  """The plan of what a command gives (see `complete_settings`), checked against the sweep that it continues."""
  requested = complete_settings(sweep_dir, given, rows)
  scale = read_configurable("scale", *_scaled_recipe(requested, requested.recipes[0]))
  requested = dataclasses.replace(
    requested, seeds=requested.seeds or scale.seeds, tasks=requested.tasks or list(scale.tasks)
  )
  units = [find_unit(name) for name in requested.tasks]
  return Planner(sweep_dir.absolute(), requested, merge_settings(sweep_dir, requested), scale, units)


def _scaled_recipe(
  settings: SweepSettings, recipe: str, files: Sequence[str] = ()
) -> tuple[list[str], list[tuple[str, str]]]:
  """Gin files and overrides of a recipe at the sweep's scale; `files` come between the two."""
  overrides = [("MODEL_DIR", "unused"), ("TASK", "unused"), ("INIT_FROM", "None"), *map(tuple, settings.gin)]
  return [_recipe_file(settings, recipe), *files, _scale_file(settings)], overrides


def _recipe_file(settings: SweepSettings, recipe: str) -> str:
  return settings.custom_recipes.get(recipe) or RECIPES[recipe].gin_file


def _scale_file(settings: SweepSettings) -> str:
  return f"ablations/scales/{settings.scale}.gin"


@dataclasses.dataclass(frozen=True)
class Planner:
  """Makes the runs of a sweep from its settings and what is known of its scale."""

  sweep_dir: Path
  requested: SweepSettings  # by this command: its recipes and seeds are run
  settings: SweepSettings  # of the sweep, `requested` included
  scale: Scale
  units: list[Unit]  # of fine-tuning

  def runs(self, sizes: Mapping[str, int]) -> list[SweepRun]:
    """All recipes of the first seed, then of the next: a table is soon complete, if roughly.

    sizes: training examples of tasks that are tokenized; those of the paper's tasks are known.
    """
    sizes = {**SIZES, **sizes}
    return [
      SweepRun(recipe, seed, self._parts(recipe, seed, sizes))
      for seed in range(self.requested.seeds)
      for recipe in self.requested.recipes
    ]

  def task_splits(self) -> list[tuple[str, str]]:
    """The token caches that fine-tuning needs: tasks and splits."""
    train = [(task, "train") for unit in self.units for task in unit.trained]
    return list(dict.fromkeys([*train, *((task, "validation") for unit in self.units for task in unit.evaluated)]))

  @property
  def corpus_task(self) -> str:
    return "corpus" if self.settings.corpus else self.scale.corpus

  @property
  def corpus_files(self) -> dict[str, str]:
    return dict(zip(("train", "validation"), self.settings.corpus, strict=False))

  @property
  def cache_dir(self) -> Path:
    return self.sweep_dir / "caches"

  def experiment(self, recipe: str, files: Sequence[str] = ()) -> Experiment:
    """A recipe at this scale, for what does not depend on the task; `files` come between the two."""
    return read_experiment(*_scaled_recipe(self.settings, recipe, files))

  @functools.cached_property
  def vocabulary(self) -> str:
    """The one that all recipes have at this scale."""
    return self.experiment(self.settings.recipes[0]).vocabulary

  def task_lengths(self, recipe: str) -> dict[str, int]:
    """LENGTHS of the runs in which a recipe trains on labeled tasks."""
    mixed = recipe in RECIPES and RECIPES[recipe].mixing
    return dict(self.experiment(recipe, [] if mixed else [_FINETUNE]).lengths)

  def _parts(self, name: str, seed: int, sizes: Mapping[str, int]) -> list[Part]:
    recipe = RECIPES.get(name) or Recipe("own", name)
    if recipe.mixing:
      return [self._mixed(name, seed, sizes)]
    parts = [self._pretrain(name, seed)] if recipe.objective else []
    start = str(parts[0].model_dir) if parts else "None"
    return [*parts, *(self._finetune(name, seed, unit, start, sizes) for unit in self.units)]

  def _pretrain(self, recipe: str, seed: int) -> Part:
    overrides = self._corpus_overrides()
    if len(self.settings.corpus) == 1:  # nothing is held out
      overrides += [("EVAL_SPLIT", '""'), ("EVAL_LOSS_PERIOD", "0")]
    return self._part(recipe, seed, PRETRAIN, [], overrides, self.scale.pretrain_steps, ())

  def _mixed(self, recipe: str, seed: int, sizes: Mapping[str, int]) -> Part:
    """Corpus and all tasks at once, as many steps as pre-training and fine-tuning have."""
    trained = dict.fromkeys(task for unit in self.units for task in unit.trained)
    evaluated = tuple(dict.fromkeys(task for unit in self.units for task in unit.evaluated))
    overrides = [
      *self._corpus_overrides(),
      ("TASK_SIZES", _gin_text({task: _size(task, sizes) for task in trained})),
      ("EVAL_TASKS", _gin_text(evaluated)),
    ]
    steps = self.scale.pretrain_steps + self.scale.finetune_steps
    return self._part(recipe, seed, MIXED, [], overrides, steps, evaluated)

  def _finetune(self, recipe: str, seed: int, unit: Unit, start: str, sizes: Mapping[str, int]) -> Part:
    overrides = [("TASK", unit.trained[0]), ("INIT_FROM", start)]
    if len(unit.trained) > 1:
      overrides.append(("MIX", _gin_text({task: _size(task, sizes) for task in unit.trained})))
    if unit.evaluated != unit.trained:
      overrides.append(("EVAL_TASKS", _gin_text(unit.evaluated)))
    return self._part(recipe, seed, unit.name, [_FINETUNE], overrides, self.scale.finetune_steps, unit.evaluated)

  def _part(
    self,
    recipe: str,
    seed: int,
    name: str,
    files: Sequence[str],
    overrides: Sequence[tuple[str, str]],
    steps: int,
    evaluated: tuple[str, ...],
  ) -> Part:
    model_dir = self.sweep_dir / "runs" / run_name(recipe, seed) / name
    modules = self.settings.task_modules
    last = [
      *((("TASK_MODULES", _gin_text(modules)),) if modules else ()),
      *map(tuple, self.settings.gin),
      ("SEED", str(seed)),
      ("CACHE_DIR", str(self.cache_dir)),
      ("MODEL_DIR", str(model_dir)),
    ]
    files = [_recipe_file(self.settings, recipe), *files, _scale_file(self.settings)]
    return Part(name, files, [*overrides, *last], model_dir, steps, evaluated)

  def _corpus_overrides(self) -> list[tuple[str, str]]:
    if not self.settings.corpus:
      return []
    return [("TASK", self.corpus_task), ("CORPUS_FILES", _gin_text(self.corpus_files))]


def _gin_text(value: Mapping[str, int | str] | Sequence[str]) -> str:
  """Names and numbers as an option's text, which gin reads as JSON writes them."""
  return json.dumps(value)


def _size(task: str, sizes: Mapping[str, int]) -> int:
  if task not in sizes:
    raise UserError(
      f"how often {task!r} is to be drawn is not known before it is tokenized",
      try_="t5like ablate ... --prepare_only",
    )
  return sizes[task]
