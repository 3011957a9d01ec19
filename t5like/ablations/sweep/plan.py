"""The runs of a sweep: the `t5like train` commands of every recipe and seed."""

from __future__ import annotations

import dataclasses
import functools
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t5like.ablations.benchmarks import SIZES, FinetuningMixture, parse_head_task, parse_mixture
from t5like.ablations.sweep.results import run_name
from t5like.ablations.sweep.settings import SweepSettings, complete_settings, merge_settings
from t5like.ablations.tables import RECIPES, Recipe
from t5like.errors import UserError
from t5like.experiments.configurables import steps_of_epochs
from t5like.experiments.phases import run_phases
from t5like.experiments.reading import read_configurable, read_experiment
from t5like.finetuning import GradualUnfreezing, UnfreezeOnPlateau
from t5like.objectives import SpecialTokens
from t5like.vocabularies import load_vocabulary

if TYPE_CHECKING:
  from t5like.ablations.configurables import Scale
  from t5like.experiments.experiment import Experiment

PRETRAIN, MIXED = "pretrain", "mixed"  # jobs other than fine-tuning


@dataclasses.dataclass(frozen=True)
class TrainJob:
  """One `t5like train` command of a run."""

  name: str  # "pretrain", "mixed", or the mixture it fine-tunes on
  files: list[str]
  overrides: list[tuple[str, str]]
  model_dir: Path
  steps: int
  evaluated: tuple[str, ...]  # tasks that it scores
  search_paths: tuple[str, ...] = ()  # of gin files

  @property
  def command(self) -> str:
    line = ["t5like", "train", *(f"--gin_search_paths={path}" for path in self.search_paths)]
    line += (f"--gin_file={file}" for file in self.files)
    return shlex.join([*line, *(f"--gin.{name}={value}" for name, value in self.overrides)])


def job_experiment(job: TrainJob) -> Experiment:
  """Returns the experiment that the job's command trains."""
  return read_experiment(job.files, job.overrides, job.search_paths)


@dataclasses.dataclass(frozen=True)
class SweepRun:
  """A recipe with one seed: its jobs in order."""

  recipe: str
  seed: int
  jobs: list[TrainJob]
  shape: Any = None  # equal for runs that can train in one program; None: trains alone

  @property
  def name(self) -> str:
    return run_name(self.recipe, self.seed)

  @property
  def pretraining(self) -> TrainJob | None:
    """The job that other runs may start from too (`Recipe.pretrained`)."""
    return next((job for job in self.jobs if job.name == PRETRAIN), None)


def plan_sweep(sweep_dir: Path, given: SweepSettings, rows: Sequence[str] = ()) -> Planner:
  """Plans the runs of a command (see `complete_settings`) and checks them against the sweep that it resumes."""
  requested = complete_settings(sweep_dir, given, rows)
  scale = read_configurable("scale", *_scaled_recipe(requested, requested.recipes[0]))
  requested = dataclasses.replace(
    requested, seeds=requested.seeds or scale.seeds, tasks=requested.tasks or list(scale.tasks)
  )
  mixtures = [(parse_head_task if requested.heads else parse_mixture)(name) for name in requested.tasks]
  return Planner(sweep_dir.absolute(), requested, merge_settings(sweep_dir, requested), scale, mixtures)


def _scaled_recipe(
  settings: SweepSettings, recipe: str, files: Sequence[str] = (), overrides: Sequence[tuple[str, str]] = ()
) -> tuple[list[str], list[tuple[str, str]]]:
  """Returns gin files and overrides of a recipe at the sweep's scale; `files` come between the two."""
  unused = [("MODEL_DIR", "unused"), ("TASK", "unused"), ("INIT_FROM", "None")]
  return [_recipe_file(settings, recipe), *files, _scale_file(settings)], [
    *unused,
    *overrides,
    *map(tuple, settings.gin),
  ]


def _recipe_file(settings: SweepSettings, recipe: str) -> str:
  return settings.custom_recipes.get(recipe) or RECIPES[recipe].gin_file


def _scale_file(settings: SweepSettings) -> str:
  return f"ablations/scales/{'bert/' if settings.heads else ''}{settings.scale}.gin"


def _finetune_file(settings: SweepSettings) -> str:
  return f"ablations/finetune{'_heads' if settings.heads else ''}.gin"


@dataclasses.dataclass(frozen=True)
class Planner:
  """Plans the runs of a sweep from its settings and its scale."""

  sweep_dir: Path
  requested: SweepSettings  # by this command, which runs these recipes and seeds
  settings: SweepSettings  # of the sweep, including `requested`
  scale: Scale
  mixtures: list[FinetuningMixture]  # to fine-tune on

  def runs(self, sizes: Mapping[str, int]) -> list[SweepRun]:
    """Returns all recipes of the first seed, then of the next, so that a rough table is complete early.

    sizes: training examples of tokenized tasks; those of the paper's tasks are known.
    """
    sizes = {**SIZES, **sizes}
    shapes = {recipe: self._shape(recipe) for recipe in self.requested.recipes}
    return [
      SweepRun(recipe, seed, self._jobs(recipe, seed, sizes), shapes[recipe])
      for seed in range(self.requested.seeds)
      for recipe in self.requested.recipes
    ]

  @property
  def corpus_task(self) -> str:
    return "corpus" if self.settings.corpus else self.scale.corpus

  @property
  def corpus_files(self) -> dict[str, str]:
    return dict(zip(("train", "validation"), self.settings.corpus, strict=False))

  @property
  def cache_dir(self) -> Path:
    return self.sweep_dir / "caches"

  def experiment(self, recipe: str, files: Sequence[str] = (), overrides: Sequence[tuple[str, str]] = ()) -> Experiment:
    """Returns a recipe at this scale, for settings that do not depend on the task; `files` come between the two."""
    return read_experiment(*_scaled_recipe(self.settings, recipe, files, overrides))

  @functools.cached_property
  def vocabulary(self) -> str:
    """The vocabulary that all recipes share at this scale."""
    return self.experiment(self.settings.recipes[0]).vocabulary

  def task_lengths(self, recipe: str, spans: bool) -> dict[str, int]:
    """Returns LENGTHS of the jobs in which a recipe trains on labeled tasks."""
    if recipe in RECIPES and RECIPES[recipe].mixing:
      return dict(self.experiment(recipe).lengths)
    return dict(self._finetuning(recipe, spans).lengths)

  def _finetuning(self, recipe: str, spans: bool = False) -> Experiment:
    """Returns the fine-tuning of a recipe, for settings that do not depend on the task."""
    task = [("TASK", "unused_spans" if spans else "unused_classification")] if self.settings.heads else []
    overrides = [*task, *self._head_overrides(spans, examples=1)]
    return self.experiment(recipe, [_finetune_file(self.settings)], overrides)

  def check_custom_recipes(self) -> None:
    """Raises UserError for a custom recipe that cannot train."""
    for recipe in self.settings.custom_recipes:
      experiment = self.experiment(recipe)
      run_phases(experiment, SpecialTokens.of(load_vocabulary(experiment.vocabulary)))

  def _shape(self, name: str) -> Any:
    """Returns what runs share that train in one program: stages, model, lengths of rows, and what fine-tuning trains.

    None for runs that train alone: a program of several cannot unfreeze layers.
    """
    recipe = RECIPES.get(name) or Recipe("own", name)
    try:
      experiment = self.experiment(name)
      phases = run_phases(experiment, SpecialTokens.of(load_vocabulary(experiment.vocabulary)))
      trained = None if recipe.mixing else self._finetuning(name).trainable
    except Exception:  # an invalid recipe fails later as a run, which records the error
      return None
    if isinstance(trained, GradualUnfreezing | UnfreezeOnPlateau):
      return None
    return bool(recipe.mixing), bool(recipe.objective), experiment.model, tuple(phases), trained

  def _jobs(self, name: str, seed: int, sizes: Mapping[str, int]) -> list[TrainJob]:
    recipe = RECIPES.get(name) or Recipe("own", name)
    if recipe.mixing:
      return [self._mixed(name, seed, sizes)]
    jobs = [self._pretrain(recipe.pretrained if name in RECIPES else name, seed)] if recipe.objective else []
    start = str(jobs[0].model_dir) if jobs else "None"
    return [*jobs, *(self._finetune(name, seed, mixture, start, sizes) for mixture in self.mixtures)]

  def _pretrain(self, recipe: str, seed: int) -> TrainJob:
    overrides = self._corpus_overrides()
    if len(self.settings.corpus) == 1:  # no held-out text
      overrides += [("EVAL_SPLIT", '""'), ("EVAL_LOSS_PERIOD", "0")]
    equal_flops = recipe in RECIPES and RECIPES[recipe].equal_flops
    steps = self.experiment(recipe).steps if equal_flops else self.scale.pretrain_steps
    return self._job(recipe, seed, PRETRAIN, [], overrides, steps, ())

  def _mixed(self, recipe: str, seed: int, sizes: Mapping[str, int]) -> TrainJob:
    """Returns the job of multi-task training, with the steps of pre-training and fine-tuning together."""
    trained = dict.fromkeys(task for mixture in self.mixtures for task in mixture.trained)
    evaluated = tuple(dict.fromkeys(task for mixture in self.mixtures for task in mixture.evaluated))
    overrides = [
      *self._corpus_overrides(),
      ("TASK_SIZES", _gin_text({task: _size(task, sizes) for task in trained})),
      ("EVAL_TASKS", _gin_text(evaluated)),
    ]
    steps = self.scale.pretrain_steps + self.scale.finetune_steps
    return self._job(recipe, seed, MIXED, [], overrides, steps, evaluated)

  def _finetune(
    self, recipe: str, seed: int, mixture: FinetuningMixture, start: str, sizes: Mapping[str, int]
  ) -> TrainJob:
    overrides = [("TASK", mixture.trained[0]), ("INIT_FROM", start)]
    if len(mixture.trained) > 1:
      overrides.append(("MIX", _gin_text({task: _size(task, sizes) for task in mixture.trained})))
    if mixture.evaluated != mixture.trained:
      overrides.append(("EVAL_TASKS", _gin_text(mixture.evaluated)))
    scale, steps = self.scale, self.scale.finetune_steps
    if self.settings.heads:
      examples = sizes.get(mixture.trained[0]) or _size(mixture.name, sizes)
      overrides += self._head_overrides(mixture.spans, examples)
      steps = steps_of_epochs(examples, scale.finetune_batch_size, scale.finetune_epochs, at_most=steps)
    files = [_finetune_file(self.settings)]
    return self._job(recipe, seed, mixture.name, files, overrides, steps, mixture.evaluated)

  def _head_overrides(self, spans: bool, examples: int) -> list[tuple[str, str]]:
    """Returns the settings of a task that is fine-tuned with a head; the rows of spans are longer."""
    if not self.settings.heads:
      return []
    lengths = [("LENGTHS", _gin_text(self.scale.finetune_span_lengths))] if spans else []
    return [("EXAMPLES", str(examples)), *lengths]

  def _job(
    self,
    recipe: str,
    seed: int,
    name: str,
    files: Sequence[str],
    overrides: Sequence[tuple[str, str]],
    steps: int,
    evaluated: tuple[str, ...],
  ) -> TrainJob:
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
    return TrainJob(name, files, [*overrides, *last], model_dir, steps, evaluated)

  def _corpus_overrides(self) -> list[tuple[str, str]]:
    if not self.settings.corpus:
      return []
    return [("TASK", self.corpus_task), ("CORPUS_FILES", _gin_text(self.corpus_files))]


def _gin_text(value: Mapping[str, int | str] | Sequence[str]) -> str:
  """Formats names and numbers for a --gin option: gin's syntax for them is that of JSON."""
  return json.dumps(value)


def _size(task: str, sizes: Mapping[str, int]) -> int:
  if task not in sizes:
    raise UserError(
      f"the mixing rate of {task!r} is unknown until it is tokenized",
      try_="t5like ablate ... --prepare_only",
    )
  return sizes[task]
