"""Trains several runs of one shape in one compiled step: a small model leaves most of a device idle.

The states of the runs are stacked and the step is mapped over them (training/stacking.py). Each run has its own
directory, checkpoints, metrics, evaluations and run card, as if it were trained alone, and can be resumed alone.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax

from t5like import data, parallel
from t5like.console import ProgressLine, say
from t5like.experiments.experiment import Experiment
from t5like.experiments.writing import config_text
from t5like.runs.compiling import compile_steps
from t5like.runs.evaluations import EvaluationPrograms
from t5like.runs.preparing import PreparedRun, prepare
from t5like.runs.trainer import Trainer, TrainingResult
from t5like.runs.training import check_run, train
from t5like.training.feed import to_devices
from t5like.training.guards.finiteness import FiniteCheck
from t5like.training.guards.run_lock import sole_trainer
from t5like.training.guards.step_file import StepFile
from t5like.training.loop import Hook, train_loop
from t5like.training.records.goodput import Goodput
from t5like.training.records.train_log import TrainLog
from t5like.training.stacking import stack_batches, stack_states, stacked_batch_sharding, unstack_function
from t5like.training.state import TrainState
from t5like.training.step import train_step

# Settings that may differ between runs of one program: they choose data and directories.
_OWN = (
  "model_dir", "seed", "task", "objective", "mix", "corpus_files", "unique_tokens", "init_from", "restore_from",
)  # fmt: skip


def train_together(
  experiments: Sequence[Experiment],
  *,
  signals: Sequence[int] = (),
  device_share: float = 1.0,
  end_process: Callable[[int], object] | None = None,
) -> list[TrainingResult | BaseException | None]:
  """Trains experiments on one host, those of one shape in one program each; arguments are those of `train`.

  Experiments of one shape have the same model, optimizer, steps and lengths, and start from the same step; they may
  differ in seed, data, objective and initial parameters. If a group fails, its runs are trained alone.

  Returns for each experiment its result, the error that ended it, or None if a signal came before it started.
  """
  results: dict[int, TrainingResult | BaseException] = {}

  def train_alone(n: int) -> TrainingResult:
    return train(experiments[n], signals=signals, goodput=Goodput(True, device_share), end_process=end_process)

  def interrupted() -> bool:
    return any(getattr(result, "signal", None) is not None for result in results.values())

  groups = _groups(experiments, results) if len(experiments) > 1 else [[n] for n in range(len(experiments))]
  for group in groups:
    if len(group) > 1 and not interrupted():
      goodput = Goodput(True, device_share / len(group))
      found = _result(partial(_train, [experiments[n] for n in group], goodput, signals, end_process))
      if isinstance(found, list):
        results |= dict(zip(group, found, strict=True))
        continue
      say(f"training {len(group)} runs together failed, so they are trained alone: {type(found).__name__}: {found}")
    for n in group:
      if not interrupted():
        results[n] = _result(partial(train_alone, n))
  return [results.get(n) for n in range(len(experiments))]


def _result(function: Callable[[], Any]) -> Any:
  try:
    return function()
  except (Exception, SystemExit) as error:  # user code may exit
    return error


def _groups(experiments: Sequence[Experiment], failed: dict[int, Any]) -> list[list[int]]:
  """Returns the numbers of experiments that can be trained together; adds errors of the others to `failed`."""
  groups: dict[Any, list[int]] = {}
  for n, experiment in enumerate(experiments):
    shape = _result(partial(_shape, experiment))
    if isinstance(shape, BaseException):
      failed[n] = shape
    else:
      groups.setdefault(n if shape is None else shape, []).append(n)
  return list(groups.values())


def _shape(experiment: Experiment) -> Any:
  """Returns what experiments must share to be trained together; None for one that must be trained alone."""
  check_run(experiment)
  with parallel.use_preset(experiment.mesh.preset):
    run = prepare(experiment, dry_run=True)
  own_pace = experiment.early_stopping.metric or experiment.keep.metric or len(run.plan.episodes) > 1
  special = experiment.stream or run.teacher or experiment.nonfinite != "stop" or jax.process_count() > 1
  if own_pace or special or run.start.step >= experiment.steps:
    return None
  shared = copy.copy(experiment)
  for name in (*_OWN, "config_text"):
    object.__setattr__(shared, name, None)
  text = config_text(shared)
  if re.search(r"\b(python_only|python_function|custom_optimizer)\.", text):  # objects that cannot be compared
    return None
  batch = tuple((name, x.shape) for name, x in sorted(run.batch.items()))
  return text, batch, run.start.step


def _train(
  experiments: Sequence[Experiment],
  goodput: Goodput,
  signals: Sequence[int],
  end_process: Callable[[int], object] | None,
) -> list[TrainingResult]:
  with parallel.use_preset(experiments[0].mesh.preset), contextlib.ExitStack() as opened:
    folders = [check_run(experiment) for experiment in experiments]
    locks = [opened.enter_context(sole_trainer(folder, end_process)) for folder in folders]
    with goodput.spent_on("preparing"):
      runs = [prepare(experiment) for experiment in experiments]
    programs, step_file = EvaluationPrograms(runs[0]), StepFile(folders[0])
    first = Trainer(runs[0], goodput, step_file, None, (), signals, locks[0], end_process, programs)
    others = [
      Trainer(run, goodput.of_another_run(), step_file, lock=lock, programs=programs, watchdog=first.watchdog)
      for run, lock in zip(runs[1:], locks[1:], strict=True)
    ]
    say(f"{len(runs)} runs in one program: {', '.join(str(folder) for folder in folders)}")
    say(str(runs[0].card))
    return _Group([first, *others], runs, goodput).run()


class _Group:
  """Runs of one shape and their trainers."""

  def __init__(self, trainers: Sequence[Trainer], runs: Sequence[PreparedRun], goodput: Goodput):
    self._trainers, self._runs, self._goodput = trainers, runs, goodput
    self._experiment, self._spec, self._mesh = runs[0].experiment, runs[0].specs[0], runs[0].mesh
    self._unstack = unstack_function(self._spec, len(runs))

  def run(self) -> list[TrainingResult]:
    with contextlib.ExitStack() as opened:
      for trainer in self._trainers:
        opened.enter_context(trainer.opened())
      states = []
      for trainer, run in zip(self._trainers, self._runs, strict=True):
        states.append(trainer.begin(run.start))
        opened.enter_context(contextlib.closing(trainer.writer))
      step = self._train(states)
    return [trainer.report(step) for trainer in self._trainers]

  def _train(self, states: list[TrainState]) -> int:
    """Trains to the end of the runs, or until one of them must stop; returns the last step."""
    experiment, trainers, first_step = self._experiment, self._trainers, int(states[0].step)
    with self._goodput.spent_on("compiling"):
      step = experiment.step or train_step
      steps = compile_steps(self._runs[0], first_step, step, runs=len(trainers))
    hooks = [trainer.hooks(state) for trainer, state in zip(trainers, states, strict=True)]
    with self._goodput.spent_on("initializing"):
      state = stack_states(states, self._spec)
    states.clear()  # frees their memory
    with self._goodput.spent_on("compiling"):
      steps.wait()
    progress = [ProgressLine(), *(_NoProgress() for _ in trainers[1:])]
    log = _StackedLog([t.log(line, steps.flops) for t, line in zip(trainers, progress, strict=True)])
    state = train_loop(
      state,
      steps,
      self._feed(first_step),
      experiment.steps,
      log,
      [_StackedHook(each, self._unstack) for each in zip(*hooks, strict=True)],
      lambda step: any([trainer.should_stop(step) for trainer in trainers]),
      FiniteCheck(experiment.nonfinite),
      trainers[0].watchdog,
      goodput=self._goodput,
    )
    progress[0].end_line()
    if int(state.step) < experiment.steps:
      for trainer, each in zip(trainers, self._unstack(state), strict=True):
        trainer.save(each)
    return int(state.step)

  def _feed(self, first_step: int) -> Iterator[Mapping[str, jax.Array]]:
    experiment, sharding = self._experiment, stacked_batch_sharding(self._mesh)
    batches = data.read_ahead(
      _StackedBatches([trainer.batches for trainer in self._trainers]),
      first_step,
      experiment.steps,
      experiment.loader_threads,
      experiment.loader_processes,
    )
    return to_devices(batches, self._mesh, lambda batch, mesh: jax.device_put(batch, sharding))


@dataclasses.dataclass(frozen=True)
class _StackedBatches:
  """The batches of all runs by step: [runs, rows, length]."""

  runs: Sequence[Any]

  def __getitem__(self, step: int) -> dict[str, Any]:
    return stack_batches([batches[step] for batches in self.runs])


class _StackedHook:
  """Runs the hooks of all runs, which are due at the same steps."""

  def __init__(self, hooks: Sequence[Hook], unstack: Callable[[TrainState], list[TrainState]]):
    self._hooks, self._unstack = hooks, unstack

  def due(self, step: int, last: bool) -> bool:
    return self._hooks[0].due(step, last)

  def run(self, state: TrainState) -> None:
    for hook, one in zip(self._hooks, self._unstack(state), strict=True):
      hook.run(one)


class _StackedLog:
  """Writes the metrics of each run to its own log."""

  def __init__(self, logs: Sequence[TrainLog]):
    self._logs = logs

  def restart_clock(self) -> None:
    for log in self._logs:
      log.restart_clock()

  def exclude(self, seconds: float) -> None:
    for log in self._logs:
      log.exclude(seconds)

  def add(self, step: int, metrics: Mapping[str, Any], batch: Mapping[str, Any], waited: float, end: float) -> None:
    found = jax.device_get(dict(metrics))
    shapes = {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in batch.items()}
    for n, log in enumerate(self._logs):
      log.add(step, jax.tree.map(lambda x, n=n: x[n], found), shapes, waited, end)


class _NoProgress(ProgressLine):
  """The line of the first run shows the progress of all."""

  def show(self, text: str, final: bool = False) -> None:
    pass
