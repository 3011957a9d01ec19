"""The runs of a suite: the `t5like train` command of every recipe and seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t5like.ablations.sweep.plan import SweepRun, TrainJob, job_experiment
from t5like.ablations.sweep.results import read_results, run_name
from t5like.errors import UserError
from t5like.files import storage

# Settings of the suite and of its runs, which a command must not repeat.
_SUITE = ("SEEDS", "suite.recipes", "suite.seeds")
_PER_RUN = ("MODEL_DIR", "SEED")


@dataclasses.dataclass(frozen=True)
class Suite:
  """Recipes to run, each with the seeds 0 to `seeds` - 1; the files of gin/finetune/suites bind it as `suite`."""

  recipes: Sequence[str]  # gin files, added after those of the command
  seeds: int = 3


@dataclasses.dataclass(frozen=True)
class SuiteCommand:
  """A suite and the rest of the command line: the gin files and overrides of every run."""

  suite: Suite
  model_dir: str  # the folder of all runs
  files: tuple[str, ...]
  overrides: tuple[tuple[str, str], ...]
  search_paths: tuple[str, ...] = ()


def find_suite(
  files: Sequence[str], overrides: Sequence[tuple[str, str]], search_paths: Sequence[str] = ()
) -> SuiteCommand | None:
  """Returns the suite that a command's files describe; None if they describe a single run."""
  from t5like import configuration

  bound = configuration.read_parameters("suite", files, overrides, search_paths)
  if not bound.get("recipes"):
    return None
  suite = Suite(bound["recipes"], bound.get("seeds", Suite.seeds))
  _check(suite)
  model_dir = configuration.read_parameters("train", files, overrides, search_paths).get("model_dir")
  if not isinstance(model_dir, str):
    raise UserError("MODEL_DIR, the folder of the suite, is missing", try_="--gin.MODEL_DIR=~/runs/suite")
  return SuiteCommand(suite, model_dir, tuple(files), tuple(map(tuple, overrides)), tuple(search_paths))


def _check(suite: Suite) -> None:
  recipes: Any = suite.recipes
  if not isinstance(recipes, list | tuple) or not all(isinstance(recipe, str) for recipe in recipes):
    raise UserError(f"invalid suite.recipes: {recipes!r}", expected="a list of gin files")
  if not isinstance(suite.seeds, int) or isinstance(suite.seeds, bool) or suite.seeds < 1:
    raise UserError(f"invalid SEEDS: {suite.seeds!r}", expected="an integer of at least 1", try_="--gin.SEEDS=3")
  names = [recipe_name(recipe) for recipe in recipes]
  if repeated := [name for name in names if names.count(name) > 1]:
    raise UserError(f"two recipes of the suite are named {repeated[0]}", files=", ".join(recipes))


def recipe_name(file: str) -> str:
  """Returns the name of a recipe: glue/cola for finetune/glue/cola.gin."""
  return "/".join(Path(file).with_suffix("").parts[-2:])


def suite_folder(command: SuiteCommand) -> Path:
  return storage.local_path(command.model_dir, "MODEL_DIR").absolute()


def plan_suite(command: SuiteCommand) -> list[SweepRun]:
  """Returns all recipes with the first seed, then with the next, so that a rough table is complete early.

  Reads every recipe: an invalid one is an error before anything is trained.
  """
  folder = suite_folder(command)
  shared = [(name, value) for name, value in command.overrides if name not in (*_SUITE, *_PER_RUN)]
  first = [_run(command, folder, recipe, 0, shared) for recipe in command.suite.recipes]
  _check_tasks(first)
  others = (
    [_run(command, folder, recipe, seed, shared, run) for recipe, run in zip(command.suite.recipes, first, strict=True)]
    for seed in range(1, command.suite.seeds)
  )
  return [*first, *(run for runs in others for run in runs)]


def _check_tasks(runs: Sequence[SweepRun]) -> None:
  """Raises UserError if two recipes are scored on the same task: a table of tasks would mix them up."""
  recipes: dict[str, str] = {}
  for run in runs:
    for task in run.jobs[0].evaluated:
      if (other := recipes.setdefault(task, run.recipe)) != run.recipe:
        raise UserError(
          f"two recipes of the suite are scored on {task!r}: {other} and {run.recipe}", try_="a suite for each of them"
        )


def _run(
  command: SuiteCommand,
  folder: Path,
  file: str,
  seed: int,
  shared: Sequence[tuple[str, str]],
  like: SweepRun | None = None,
) -> SweepRun:
  """Returns the run of a recipe with a seed; `like` is the same with another seed, whose settings are known."""
  name = run_name(recipe_name(file), seed)
  model_dir = folder / "runs" / name
  # The command of a run has the same files: an empty list turns the suite off.
  overrides = [*shared, ("suite.recipes", "[]"), ("SEED", str(seed)), ("MODEL_DIR", str(model_dir))]
  job = TrainJob(name, [*command.files, file], overrides, model_dir, 0, (), command.search_paths)
  if like is None:
    experiment = job_experiment(job)
    if not experiment.eval_split:
      raise UserError(f"the recipe {file} evaluates nothing", try_="--gin.EVAL_SPLIT=validation")
    # A run that stopped early is finished, too.
    steps = 0 if experiment.early_stopping.metric else experiment.steps
    evaluated = tuple(experiment.eval_tasks) or tuple(experiment.mix) or (experiment.task,)
    job = dataclasses.replace(job, steps=steps, evaluated=evaluated)
  else:
    job = dataclasses.replace(job, steps=like.jobs[0].steps, evaluated=like.jobs[0].evaluated)
  return SweepRun(recipe_name(file), seed, [job])


def check_earlier_results(folder: Path, runs: Sequence[SweepRun]) -> None:
  """Raises UserError if the folder has the result of a run with other settings: a table must not mix them."""
  commands = {(run.recipe, run.seed): [job.command for job in run.jobs] for run in runs}
  for result in read_results(folder):
    expected = commands.get((result.recipe, result.seed), result.commands)
    if result.commands != expected:
      raise UserError(
        f"{folder} has the result of {result.recipe}, seed {result.seed}, with other settings",
        found=result.commands[0],
        requested=expected[0],
        try_="another MODEL_DIR, or the original command",
      )
