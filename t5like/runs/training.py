"""`t5like.train`: trains an experiment."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from t5like import parallel
from t5like.console import say
from t5like.errors import UserError
from t5like.experiments.compatibility import model_fingerprint
from t5like.experiments.experiment import Experiment, check_experiment
from t5like.files import storage
from t5like.inference import Model
from t5like.interop.layouts import flatten
from t5like.runs.preparing import PreparedRun, prepare
from t5like.runs.trainer import Trainer, TrainingResult
from t5like.training.checkpoints.given_parameters import GivenParameters, SourceModel
from t5like.training.guards.run_lock import sole_trainer
from t5like.training.guards.step_file import StepFile
from t5like.training.loop import Hook
from t5like.training.records.goodput import Goodput
from t5like.training.records.model_dir import check_model_dir
from t5like.training.step import StepFunction
from t5like.vocabularies import load_vocabulary


def train(
  experiment: Experiment,
  init: Model | Mapping[str, Any] | None = None,
  step: StepFunction | None = None,
  hooks: Sequence[Hook] = (),
  *,
  signals: Sequence[int] | None = None,
  goodput: Goodput | None = None,
  end_process: Callable[[int], object] | None = None,
) -> TrainingResult:
  """Trains an experiment, or resumes it if its model directory has a checkpoint.

  Args:
    experiment: `Experiment(...)`, or `read_experiment([...])` from gin files.
    init: initial parameters of a run without a checkpoint: a loaded model, or a tree of parameters.
    step: replaces `training.train_step`: (model, optimizer, settings, state, batch) -> (state, metrics).
    hooks: run after steps, such as `Hook(every=100, action=lambda state: ...)`.
    signals: such as (SIGTERM,), stop the run after the current step and a checkpoint. None: so does Ctrl-C, or the stop
      button of a notebook, and then raises KeyboardInterrupt; a second one ends the run at once.
    goodput: accounts for wall time; from the start of this call by default.
    end_process: such as `os._exit`, ends the process if the run is stalled (status 124) or another run has taken over
      the directory (1). Without it, as in a notebook, a stall is reported, and a lost directory is an error at the next
      step.

  Returns:
    The last step, its metrics, the scores of the last evaluation and the model directory.

  Raises:
    UserError: invalid input; nothing was written.
    RunError: the run failed and cannot continue.
  """
  if init is not None and not isinstance(init, Model | Mapping):
    raise UserError(f"not initial parameters: {init!r}", expected="t5like.load(folder), or a tree of parameters")
  if isinstance(init, Model) and experiment.method and not experiment.init_from:
    experiment = dataclasses.replace(experiment, init_from=str(init.folder))
  _check_callables(step, hooks)
  if signals is not None and (isinstance(signals, str) or not all(isinstance(number, int) for number in signals)):
    raise UserError(f"not signals: {signals!r}", expected="numbers, such as (signal.SIGTERM,)")
  goodput = goodput or Goodput(from_now=True)
  model_dir = check_run(experiment)
  step_file = StepFile(model_dir)
  with parallel.use_preset(experiment.mesh.preset), contextlib.ExitStack() as opened:
    lock = opened.enter_context(sole_trainer(model_dir, end_process))
    with goodput.spent_on("preparing"):
      given = None if init is None else given_parameters(init, experiment)
      prepared = prepare(experiment, init=given)
    if prepared.stream:
      opened.callback(prepared.stream.close)
    by_default = (signal.SIGINT,) if threading.current_thread() is threading.main_thread() else ()
    chosen = by_default if signals is None else signals
    trainer = Trainer(prepared, goodput, step_file, step, hooks, chosen, lock, end_process)
    trainer.compile_ahead(prepared.start)
    with goodput.spent_on("preparing"):
      say(str(prepared.card))
    result = trainer.run()
  if signals is None and result.signal is not None:
    raise KeyboardInterrupt(f"stopped and saved at step {result.step}")  # also if it finished: nothing else may start
  return result


def _check_callables(step: Any, hooks: Any) -> None:
  """Raises UserError for arguments that would fail only at the first step."""
  if step is not None and not callable(step):
    raise UserError(f"step is not a function: {step!r}", expected="step(model, optimizer, settings, state, batch)")
  if not isinstance(hooks, Sequence) or not all(isinstance(hook, Hook) for hook in hooks):
    raise UserError(f"not a list of hooks: {hooks!r}", try_="hooks=[t5like.Hook(every=100, action=my_function)]")


def dry_run(experiment: Experiment) -> PreparedRun:
  """Checks an experiment and returns the prepared run; writes, builds and moves nothing."""
  check_run(experiment)
  with parallel.use_preset(experiment.mesh.preset):
    return prepare(experiment, dry_run=True)


def check_run(experiment: Experiment) -> Any:
  """Returns the model directory; raises UserError if it cannot be written or an input cannot be reached."""
  check_experiment(experiment)
  model_dir = check_model_dir(experiment.model_dir)
  for name in ("cache_dir", "restore_from", "init_from"):
    storage.check_reachable(getattr(experiment, name) or ".", name.upper())
  return model_dir


def given_parameters(init: Model | Mapping[str, Any], experiment: Experiment) -> GivenParameters:
  """Returns parameters in memory as initial parameters of a run."""
  if isinstance(init, Model):
    params, source, fingerprint = init.params, f"the model {init.folder}", init.fingerprint
    known = SourceModel(getattr(init.module, "head", None), init.vocabulary)
  else:
    vocabulary = load_vocabulary(experiment.vocabulary)
    params, source, known = init, "given parameters", SourceModel(vocabulary=vocabulary)
    fingerprint = model_fingerprint(experiment.model.config, vocabulary)
  arrays = {path: np.asarray(array) for path, array in flatten(jax.device_get(params)).items()}
  advice = "an experiment with that model and vocabulary"
  return GivenParameters(source, fingerprint, arrays, lambda: arrays, advice, known=lambda: known)
