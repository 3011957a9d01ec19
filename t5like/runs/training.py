"""Trains an experiment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from t5like import configuration, parallel
from t5like.console import say
from t5like.experiments.experiment import Experiment
from t5like.files import storage
from t5like.runs.preparing import prepare
from t5like.runs.trainer import Run
from t5like.training.guards.run_lock import sole_trainer
from t5like.training.guards.step_file import StepFile
from t5like.training.records.goodput import Goodput
from t5like.training.records.model_dir import check_model_dir


def train_experiment(
  experiment: Experiment,
  goodput: Goodput,
  dry_run: bool = False,
  end_process: Callable[[int], object] | None = None,
) -> int:
  """Trains, or with `dry_run` only says what would be trained; the exit status. Sweeps train by this too.

  `end_process`, as `os._exit`, ends a run that stands still (status 124) or whose directory another run took over (1).
  Without it, as in a notebook, a stall is only reported, and the lost directory is an error at the next step.
  """
  from t5like import configuration, parallel
  from t5like.console import say
  from t5like.runs.preparing import prepare
  from t5like.runs.trainer import Run
  from t5like.training.guards.run_lock import sole_trainer
  from t5like.training.records.model_dir import check_model_dir

  model_dir = check_model_dir(experiment.model_dir)
  for name in ("cache_dir", "restore_from", "init_from"):
    storage.check_reachable(getattr(experiment, name) or ".", name.upper())
  step_file = StepFile(model_dir)
  with (
    parallel.use_preset(experiment.mesh.preset),
    contextlib.nullcontext() if dry_run else sole_trainer(model_dir, end_process) as lock,
  ):
    with goodput.spent_on("preparing"):
      plan = prepare(experiment, dry_run)
    if dry_run:
      say(configuration.resolved_config())
    say(plan.run_card)
    return 0 if dry_run else Run(experiment, plan, goodput, step_file, lock, end_process).execute()
