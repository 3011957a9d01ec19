"""What a sweep consists of: its settings, kept in sweep.json, and the `t5like train` commands of every run."""

from __future__ import annotations

import dataclasses
import datetime
import json
import shlex
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from t5like import configuration
from t5like.ablations.benchmarks import SIZES, Unit, find_unit
from t5like.ablations.sweep.results import SWEEP, run_name, write_json
from t5like.ablations.tables import RECIPES, Recipe
from t5like.errors import UserError
from t5like.experiments.reading import register_configurables
from t5like.files import storage

if TYPE_CHECKING:
  from t5like.ablations.configurables import Scale
  from t5like.experiments.experiment import Experiment

SCALES = ("paper", "small", "mini", "smoke")
PRETRAIN, MIXED = "pretrain", "mixed"  # parts that are no fine-tuning
_FINETUNE = "ablations/finetune.gin"
# What may not change between two starts of a sweep: results would not compare.
_FIXED = ("scale", "tasks", "corpus", "task_modules", "gin")


@dataclasses.dataclass(frozen=True)
class Settings:
  """What was asked for: sweep.json."""

  tables: list[int]
  recipes: list[str]
  scale: str
  seeds: int
  tasks: list[str]  # units of fine-tuning, by name
  corpus: list[str]  # files of training text, and of held-out text; []: the task that the scale names
  own: dict[str, str] = dataclasses.field(default_factory=dict)  # gin files of recipes that are not the paper's
  task_modules: list[str] = dataclasses.field(default_factory=list)
  gin: list[list[str]] = dataclasses.field(default_factory=list)  # overrides: pairs of name and text
  created: str = ""


def agree(sweep_dir: Path, asked: Settings, write: bool = True) -> Settings:
  """The settings of the sweep in this directory: recipes and seeds may be added to it, nothing else may change."""
  path = sweep_dir / SWEEP
  if not path.is_file():
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    settings = dataclasses.replace(asked, created=now)
  else:
    found = read_settings(sweep_dir)
    for name in _FIXED:
      if getattr(found, name) != getattr(asked, name):
        raise UserError(
          f"{sweep_dir} holds a sweep with another {name}",
          found=getattr(found, name),
          asked=getattr(asked, name),
          try_="another --sweep_dir, or the options it was begun with",
        )
    settings = dataclasses.replace(
      found,
      tables=sorted({*found.tables, *asked.tables}),
      recipes=list(dict.fromkeys([*found.recipes, *asked.recipes])),
      own=found.own | asked.own,
      seeds=max(found.seeds, asked.seeds),
    )
  if write and (not path.is_file() or settings != found):
    write_json(path, dataclasses.asdict(settings))
  return settings


def read_settings(sweep_dir: Path) -> Settings:
  path = sweep_dir / SWEEP
  try:
    settings = Settings(**storage.read_json(path))
    _check_fields(settings)
  except (OSError, ValueError, TypeError) as error:
    raise UserError(f"{sweep_dir} is no sweep", file=path, because=error) from None
  return settings


def _check_fields(settings: Settings) -> None:
  """A file that was edited by hand: each member is what the annotations of `Settings` say."""
  for name, kind in typing.get_type_hints(Settings).items():
    value = getattr(settings, name)
    if not isinstance(value, typing.get_origin(kind) or kind):
      raise TypeError(f"{name} is {value!r}")
  unknown = [recipe for recipe in settings.recipes if recipe not in RECIPES and recipe not in settings.own]
  if unknown or not settings.recipes:
    raise ValueError(f"it has no recipe called {unknown[0]!r}" if unknown else "it has no recipes")


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
  register_configurables()
  configuration.load(part.files, part.overrides)
  return configuration.build("train")


@dataclasses.dataclass(frozen=True)
class SweepRun:
  """A recipe with one seed: its parts in order."""

  recipe: str
  seed: int
  parts: list[Part]

  @property
  def name(self) -> str:
    return run_name(self.recipe, self.seed)


class Planner:
  """Makes the runs of a sweep; `sizes` are the training examples of tasks that are tokenised already."""

  def __init__(self, sweep_dir: Path, settings: Settings, sizes: Mapping[str, int] | None = None):
    self._dir, self.settings, self._sizes = sweep_dir.absolute(), settings, {**SIZES, **(sizes or {})}
    self.units: list[Unit] = [find_unit(name) for name in settings.tasks]
    self.scale: Scale = self._read_scale()

  def runs(self, recipes: Sequence[str], seeds: int) -> list[SweepRun]:
    """All recipes of the first seed, then of the next: a table is soon complete, if roughly."""
    return [SweepRun(recipe, seed, self._parts(recipe, seed)) for seed in range(seeds) for recipe in recipes]

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
    return self._dir / "caches"

  def gin_files(self, recipe: str) -> list[str]:
    return [self.settings.own.get(recipe) or RECIPES[recipe].gin_file]

  @property
  def scale_file(self) -> str:
    return f"ablations/scales/{self.settings.scale}.gin"

  def load(self, recipe: str, files: Sequence[str] = ()) -> None:
    """Makes a recipe at this scale the current configuration; `files` come between the two."""
    overrides = [("MODEL_DIR", "unused"), ("TASK", "unused"), ("INIT_FROM", "None"), *map(tuple, self.settings.gin)]
    configuration.load([*self.gin_files(recipe), *files, self.scale_file], overrides)

  def task_lengths(self, recipe: str) -> dict[str, int]:
    """LENGTHS of the runs in which a recipe trains on labelled tasks."""
    self.load(recipe, [] if recipe in RECIPES and RECIPES[recipe].mixing else [_FINETUNE])
    return dict(configuration.build("train").lengths)

  def _read_scale(self) -> Scale:
    self.load(self.settings.recipes[0])
    return configuration.build("scale")

  def _parts(self, name: str, seed: int) -> list[Part]:
    recipe = RECIPES.get(name) or Recipe("own", name)
    if recipe.mixing:
      return [self._mixed(name, seed)]
    parts = [self._pretrain(name, seed)] if recipe.objective else []
    start = str(parts[0].model_dir) if parts else "None"
    return [*parts, *(self._finetune(name, seed, unit, start) for unit in self.units)]

  def _pretrain(self, recipe: str, seed: int) -> Part:
    overrides = self._corpus_overrides()
    if len(self.settings.corpus) == 1:  # nothing is held out
      overrides += [("EVAL_SPLIT", '""'), ("EVAL_LOSS_PERIOD", "0")]
    return self._part(recipe, seed, PRETRAIN, [], overrides, self.scale.pretrain_steps, ())

  def _mixed(self, recipe: str, seed: int) -> Part:
    """Corpus and all tasks at once, as many steps as pre-training and fine-tuning have."""
    trained = dict.fromkeys(task for unit in self.units for task in unit.trained)
    evaluated = tuple(dict.fromkeys(task for unit in self.units for task in unit.evaluated))
    overrides = [
      *self._corpus_overrides(),
      ("TASK_SIZES", json.dumps({task: self._size(task) for task in trained})),
      ("EVAL_TASKS", json.dumps(list(evaluated))),
    ]
    steps = self.scale.pretrain_steps + self.scale.finetune_steps
    return self._part(recipe, seed, MIXED, [], overrides, steps, evaluated)

  def _finetune(self, recipe: str, seed: int, unit: Unit, start: str) -> Part:
    overrides = [("TASK", unit.trained[0]), ("INIT_FROM", start)]
    if len(unit.trained) > 1:
      overrides.append(("MIX", json.dumps({task: self._size(task) for task in unit.trained})))
    if unit.evaluated != unit.trained:
      overrides.append(("EVAL_TASKS", json.dumps(list(unit.evaluated))))
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
    model_dir = self._dir / "runs" / run_name(recipe, seed) / name
    modules = self.settings.task_modules
    last = [
      *((("TASK_MODULES", json.dumps(modules)),) if modules else ()),
      *map(tuple, self.settings.gin),
      ("SEED", str(seed)),
      ("CACHE_DIR", str(self.cache_dir)),
      ("MODEL_DIR", str(model_dir)),
    ]
    files = [*self.gin_files(recipe), *files, self.scale_file]
    return Part(name, files, [*overrides, *last], model_dir, steps, evaluated)

  def _corpus_overrides(self) -> list[tuple[str, str]]:
    if not self.settings.corpus:
      return []
    return [("TASK", self.corpus_task), ("CORPUS_FILES", json.dumps(self.corpus_files))]

  def _size(self, task: str) -> int:
    if task not in self._sizes:
      raise UserError(
        f"how often {task!r} is to be drawn is not known before it is tokenised",
        try_="t5like ablate ... --prepare_only",
      )
    return self._sizes[task]


def own_recipes(files: Sequence[str]) -> dict[str, str]:
  """Recipes of the user's, by name: the file's own."""
  found: dict[str, str] = {}
  for file in files:
    name = f"own/{Path(file).stem}"
    if name in found:
      raise UserError(f"two recipes are called {name}", files=f"{found[name]}\n{file}")
    found[name] = str(Path(file).expanduser().absolute()) if Path(file).expanduser().is_file() else file
  return found
