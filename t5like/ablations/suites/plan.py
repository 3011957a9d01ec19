"""The runs of a suite: the `t5like train` command of every recipe, or of every probed layer, and seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t5like.ablations.sweep.plan import SweepRun, TrainJob, job_experiment
from t5like.ablations.sweep.results import read_results, run_name
from t5like.errors import UserError, is_integer
from t5like.experiments.reading import read_experiment
from t5like.files import storage
from t5like.models.heads.probe import MIX

# Settings of the suite and of its runs, which a command must not repeat.
_SUITE = ("SEEDS", "suite.recipes", "suite.seeds", "suite.layers", "PROBE_LAYERS")
_PER_RUN = ("MODEL_DIR", "SEED")
_LAYER = "PROBE_LAYER"  # the macro of trainable/probe.gin
ALL = "all"


@dataclasses.dataclass(frozen=True)
class Suite:
  """Recipes to run, each with the seeds 0 to `seeds` - 1; the files of gin/finetune/suites bind it as `suite`.

  recipes  gin files, added after those of the command
  layers   instead of recipes: probes of these layers, numbers or "mix"; "all": of every layer, and of their mix
  """

  recipes: Sequence[str] = ()
  seeds: int = 3
  layers: Sequence[int | str] | str = ()


@dataclasses.dataclass(frozen=True)
class Variant:
  """The settings that a run adds to the command of a suite."""

  name: str
  files: tuple[str, ...] = ()
  overrides: tuple[tuple[str, str], ...] = ()


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
  if not bound.get("recipes") and not bound.get("layers"):
    return None
  suite = Suite(**{"recipes": (), **bound})
  _check(suite)
  model_dir = configuration.read_parameters("train", files, overrides, search_paths).get("model_dir")
  if not isinstance(model_dir, str):
    raise UserError("MODEL_DIR, the folder of the suite, is missing", try_="--gin.MODEL_DIR=~/runs/suite")
  return SuiteCommand(suite, model_dir, tuple(files), tuple(map(tuple, overrides)), tuple(search_paths))


def _check(suite: Suite) -> None:
  recipes: Any = suite.recipes
  if not isinstance(recipes, list | tuple) or not all(isinstance(recipe, str) for recipe in recipes):
    raise UserError(f"invalid suite.recipes: {recipes!r}", expected="a list of gin files")
  if not is_integer(suite.seeds) or suite.seeds < 1:
    raise UserError(f"invalid SEEDS: {suite.seeds!r}", expected="an integer of at least 1", try_="--gin.SEEDS=3")
  layers: Any = suite.layers
  if layers != ALL and (
    not isinstance(layers, list | tuple)
    or not all(layer == MIX or (isinstance(layer, int) and layer >= 0) for layer in layers)
    or len(set(layers)) < len(layers)
  ):
    expected = f"all, or different layers: [0, 6, 12, '{MIX}']"
    raise UserError(f"invalid PROBE_LAYERS: {layers!r}", expected=expected, try_="--gin.PROBE_LAYERS=all")
  if layers and recipes:
    raise UserError("a suite has either recipes or layers", try_="a suite of layers for each recipe")
  names = [recipe_name(recipe) for recipe in recipes]
  if repeated := [name for name in names if names.count(name) > 1]:
    raise UserError(f"two recipes of the suite are named {repeated[0]}", files=", ".join(recipes))


def recipe_name(file: str) -> str:
  """Returns the name of a recipe: glue/cola for finetune/glue/cola.gin."""
  return "/".join(Path(file).with_suffix("").parts[-2:])


def probe_name(layer: int | str) -> str:
  return f"probe/{layer}"


def _variants(command: SuiteCommand, shared: Sequence[tuple[str, str]]) -> list[Variant]:
  """Returns the variants of a suite: its recipes, or the layers to probe."""
  suite = command.suite
  if not suite.layers:
    # The command of a run has the same files: an empty list turns the suite off.
    off = (("suite.recipes", "[]"),)
    return [Variant(recipe_name(file), (file,), off) for file in suite.recipes]
  off = (("suite.layers", "[]"),)
  layers = (
    suite.layers
    if suite.layers != ALL
    else [*range(_depth(command, [*shared, *off, ("MODEL_DIR", command.model_dir)]) + 1), MIX]
  )
  return [Variant(probe_name(layer), (), (*off, (_LAYER, str(layer)))) for layer in layers]


def _depth(command: SuiteCommand, overrides: Sequence[tuple[str, str]]) -> int:
  """Returns the number of layers of the model to probe."""
  experiment = read_experiment(command.files, overrides, command.search_paths)
  config = experiment.model.config
  depths = {depth for depth in (config.num_encoder_layers, config.num_decoder_layers) if depth}
  if len(depths) > 1:
    raise UserError(
      f"encoder and decoder have {' and '.join(map(str, sorted(depths)))} layers",
      try_=f"--gin.PROBE_LAYERS=\"[0, 1, '{MIX}']\" with those of the stack that the head reads",
    )
  return depths.pop()


def suite_folder(command: SuiteCommand) -> Path:
  return storage.local_path(command.model_dir, "MODEL_DIR").absolute()


def plan_suite(command: SuiteCommand) -> list[SweepRun]:
  """Returns all recipes with the first seed, then with the next, so that a rough table is complete early.

  Reads every recipe: an invalid one is an error before anything is trained.
  """
  folder = suite_folder(command)
  shared = [(name, value) for name, value in command.overrides if name not in (*_SUITE, *_PER_RUN)]
  variants = _variants(command, shared)
  first = [_run(command, folder, variant, 0, shared) for variant in variants]
  if not command.suite.layers:
    _check_tasks(first)
  others = (
    [_run(command, folder, variant, seed, shared, run) for variant, run in zip(variants, first, strict=True)]
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
  variant: Variant,
  seed: int,
  shared: Sequence[tuple[str, str]],
  like: SweepRun | None = None,
) -> SweepRun:
  """Returns the run of a variant with a seed; `like` is the same with another seed, whose settings are known."""
  name = run_name(variant.name, seed)
  model_dir = folder / "runs" / name
  overrides = [*shared, *variant.overrides, ("SEED", str(seed)), ("MODEL_DIR", str(model_dir))]
  job = TrainJob(name, [*command.files, *variant.files], overrides, model_dir, 0, (), command.search_paths)
  if like is None:
    experiment = job_experiment(job)
    if not experiment.eval_split:
      raise UserError(f"the recipe {variant.name} evaluates nothing", try_="--gin.EVAL_SPLIT=validation")
    # A run that stopped early is finished, too.
    steps = 0 if experiment.early_stopping.metric else experiment.steps
    evaluated = tuple(experiment.eval_tasks) or tuple(experiment.mix) or (experiment.task,)
    job = dataclasses.replace(job, steps=steps, evaluated=evaluated)
  else:
    job = dataclasses.replace(job, steps=like.jobs[0].steps, evaluated=like.jobs[0].evaluated)
  return SweepRun(variant.name, seed, [job])


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
