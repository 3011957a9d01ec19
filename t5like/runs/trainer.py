"""Trains a prepared run: initialize, compile, loop, report. See preparing.py for what comes before."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5like import data, parallel, planning
from t5like.console import ProgressLine, say
from t5like.errors import RunError, UserError
from t5like.files import storage
from t5like.parallel.process_zero import run_on_process_zero
from t5like.runs.compiling import CompiledSteps, compile_steps, compiled_folder
from t5like.runs.evaluations import (
  Evaluate,
  EvaluationPrograms,
  decoding_evaluation,
  loss_evaluation,
  was_evaluated,
)
from t5like.runs.forecast.price_tag import price_tag
from t5like.runs.initial_state import initialize
from t5like.runs.preparing import PreparedRun
from t5like.runs.recording import card_text, extra_writers, last_metrics, record_run, report_files, scores_of
from t5like.runs.saved_parameters import saved_spec, saved_state
from t5like.runs.starting_point import StartingPoint, choose_starting_point
from t5like.training.checkpoints import Checkpoints, SaveError, best_step, checkpoint_steps
from t5like.training.feed import to_devices
from t5like.training.guards.finiteness import FiniteCheck, NotFinite, SkippedBatches, UnskippedBatches
from t5like.training.guards.interruption import Interruption
from t5like.training.guards.run_lock import RunLock
from t5like.training.guards.step_file import StepFile
from t5like.training.guards.watchdog import Watchdog
from t5like.training.loop import Hook, train_loop
from t5like.training.records import goodput
from t5like.training.records import model_dir as directory
from t5like.training.records.goodput import Goodput
from t5like.training.records.metrics import MetricWriter, read_metrics
from t5like.training.records.plots import plot_loss
from t5like.training.records.profiling import ProfilerWindow
from t5like.training.records.train_log import TrainLog
from t5like.training.state import TrainState, change_optimizer
from t5like.training.step import StepFunction, enable_compilation_cache, train_step

STACKS = "stacks.txt"
NOT_FINITE = "not_finite"


class DirectoryRemoved(UserError):
  """MODEL_DIR was removed. A supervisor must not restart the run, which would start at step 0."""


@dataclasses.dataclass(frozen=True)
class TrainingResult:
  """The result of a run.

  step      the last trained step
  metrics   training metrics: means over the steps since the previous row
  scores    scores of the last evaluation by full name, such as eval/snli/accuracy
  stopped   "finished", "early" (EARLY_STOPPING) or "interrupted", by `signal` or by another host
  signal    the signal that was received. One that arrives during the last evaluation does not interrupt it; callers
            decide what to do after the run
  best_step the checkpoint with the best KEEP.metric; None if none is configured
  """

  model_dir: Path
  step: int
  metrics: Mapping[str, float]
  scores: Mapping[str, float]
  stopped: str = "finished"
  signal: int | None = None
  best_step: int | None = None


class Trainer:
  """Trains a prepared run.

  step     replaces the experiment's step: (model, optimizer, settings, state, batch) -> (state, metrics)
  hooks    run after the built-in ones, which save and evaluate
  signals  stop the run after the current step and a checkpoint
  lock     the run's lock on its directory
  end_process   see `runs.train`
  programs      of evaluations, shared with runs of the same shape
  watchdog      that of a run in whose steps this one trains

  `run` trains the run alone. runs/together.py calls the methods below it for several runs at once.
  """

  def __init__(
    self,
    prepared: PreparedRun,
    goodput: Goodput,
    step_file: StepFile,
    step: StepFunction | None = None,
    hooks: Sequence[Hook] = (),
    signals: Sequence[int] = (),
    lock: RunLock | None = None,
    end_process: Callable[[int], object] | None = None,
    programs: EvaluationPrograms | None = None,
    watchdog: Watchdog | None = None,
  ):
    experiment = prepared.experiment
    self._experiment, self._run, self._goodput, self._step_file = experiment, prepared, goodput, step_file
    self._step, self._hooks = step or experiment.step or train_step, list(hooks)
    self._checkpoints = Checkpoints(prepared.model_dir, experiment.keep)
    self._skipped = SkippedBatches.read(prepared.model_dir)
    self._interruption = Interruption(signals)
    seconds = 60 * experiment.watchdog_minutes
    self.watchdog = watchdog or Watchdog(seconds, prepared.model_dir / STACKS, end_process)
    self._own_watchdog = contextlib.nullcontext() if watchdog else self.watchdog
    self._programs = programs or EvaluationPrograms(prepared)
    self._lock = lock or RunLock(prepared.model_dir)
    self._stopping = dataclasses.replace(experiment.early_stopping)  # it has state: a second run must start at 0
    self._plateaus = prepared.plan.plateau_counter()
    self._episode = prepared.start.episode
    enable_compilation_cache(compiled_folder(experiment.cache_dir))
    self._steps: dict[int, CompiledSteps] = {}  # by episode
    self._scores: dict[str, float] = {}
    self._stopped_early = self._stop_requested = False

  def run(self) -> TrainingResult:
    """Trains until the last step, a signal or early stopping."""
    start = self._run.start
    with self.opened():
      while True:
        try:
          state = self._attempt(start)
          break
        except NotFinite as failure:
          start = self._recover(failure.step)
        except SaveError:
          self._check_directory()
          raise
    return self.report(int(state.step))

  @contextlib.contextmanager
  def opened(self) -> Iterator[None]:
    """Records the run and opens what it writes to; at the end, waits for the last checkpoint."""
    record_run(self._run)
    with self._checkpoints, self._interruption, self._own_watchdog:
      yield
      with self._goodput.spent_on("saving checkpoints"):
        self._checkpoints.wait()
      run_on_process_zero(self._check_directory)

  def _attempt(self, start: StartingPoint) -> TrainState:
    """Trains from a starting point to the end of the run; raises NotFinite at a step that is not finite."""
    experiment, run = self._experiment, self._run
    self.compile_ahead(start)
    state = self.begin(start)
    with contextlib.closing(self.writer):
      if self._first_step < experiment.steps and not self._stopped_early:
        return self._train(state)
      if not self._stopped_early:
        say(f"already at step {self._first_step:,} of {experiment.steps:,}: nothing left to train")
      for kind in self._evaluated_tasks():
        done = was_evaluated(run, self._first_rows) if kind == "eval" else self._is_recorded(kind)
        if done:
          self._scores |= scores_of(self._first_rows, kind)
        else:
          self._evaluate(kind, self._evaluation(kind), state)
    return state

  def compile_ahead(self, start: StartingPoint) -> None:
    """Starts to compile the steps in the background, while the run is described and initialized or restored."""
    experiment, stopping = self._experiment, dataclasses.replace(self._experiment.early_stopping)
    if stopping.metric and stopping.restore(read_metrics(self._run.model_dir), start.step):
      return  # nothing is left to train
    if start.step < experiment.steps and start.episode not in self._steps:
      with self._goodput.spent_on("compiling"):
        self._steps[start.episode] = compile_steps(self._run, start.step, self._step, start.episode)

  def begin(self, start: StartingPoint) -> TrainState:
    """Returns the initial state; opens `writer`, which the caller closes."""
    with self._goodput.spent_on("initializing"):
      state = initialize(self._run, start)
    self._episode = start.episode
    self._first_step = int(state.step)
    self._step_file.write(self._first_step)
    self._first_rows = self._resume_metrics()
    return state

  def _resume_metrics(self) -> list[dict[str, Any]]:
    """Restores goodput, early stopping and metrics from metrics.jsonl; returns the rows of the first step."""
    experiment, folder, first_step = self._experiment, self._run.model_dir, self._first_step
    rows = read_metrics(folder)
    self._goodput.resume(rows, folder, first_step)
    self._stopped_early = self._stopping.restore(rows, first_step)
    if self._plateaus:
      self._plateaus.restore(rows, first_step)
    self.writer = MetricWriter(folder, first_step, extra_writers(experiment), rows)
    first_rows = [row for row in rows if row["step"] == first_step]
    self._recorded = {row["kind"] for row in first_rows}
    self._trained_here = any(row["kind"] == "train" and row["step"] <= first_step for row in rows)
    return first_rows

  def log(self, progress: ProgressLine, flops: Callable[[Mapping[str, Any]], float]) -> TrainLog:
    experiment, device = self._experiment, self._run.mesh.devices.flat[0].device_kind
    return TrainLog(
      self.writer,
      progress,
      experiment.log_period,
      experiment.steps,
      flops,
      planning.peak_flops(device),
      experiment.norms_period,
    )

  def hooks(self, state: TrainState) -> list[Hook]:
    """Returns the hooks that save and evaluate, then the caller's; first evaluates what the last attempt missed."""
    experiment = self._experiment
    with self._goodput.spent_on("compiling"):
      evaluations = {kind: self._evaluation(kind) for kind in self._evaluated_tasks()}
    periods = {"eval_loss": experiment.eval_loss_period, "eval": experiment.eval_period}
    # Saves first: an evaluation may take long or fail.
    hooks = [
      Hook(
        experiment.checkpoint_period,
        self.save,
        at_end=True,
        minutes=experiment.checkpoint_minutes,
        check_every=experiment.log_period,
      )
    ]
    for kind, evaluate in evaluations.items():
      hooks.append(Hook(periods[kind], partial(self._evaluate, kind, evaluate), at_end=True))
      if self._missed_evaluation(kind, periods[kind]):
        self._evaluate(kind, evaluate, state)
    return [*hooks, *self._hooks]

  def _train(self, state: TrainState) -> TrainState:
    experiment, run, progress = self._experiment, self._run, ProgressLine()
    log, hooks = self.log(progress, lambda batch: self._steps[self._episode].flops(batch)), self.hooks(state)
    feed, finite = self._feed(), FiniteCheck(experiment.nonfinite)
    while True:
      state = train_loop(
        *self._start_episode(state),
        feed,
        experiment.steps,
        log,
        hooks,
        self.should_stop,
        finite,
        self.watchdog,
        ProfilerWindow(run.model_dir / "profile", *experiment.profile_steps),
        self._goodput,
      )
      progress.end_line()
      if self._stop_requested or not self._is_episode_over(int(state.step)):
        break
    if int(state.step) < experiment.steps:
      self.save(state)
    return state

  def _start_episode(self, state: TrainState) -> tuple[TrainState, CompiledSteps]:
    """Returns the state and the compiled steps of the episode that is due."""
    run, before = self._run, self._episode
    self._episode = self._due_episode(int(state.step))
    episode = run.plan.episodes[self._episode]
    if self._episode != before:
      say(f"step {int(state.step):,}: from here on, {episode.title} trains ({episode.size:,} parameters)")
      state = change_optimizer(state, episode.optimizer, run.specs[self._episode])
    with self._goodput.spent_on("compiling"):
      if self._episode not in self._steps:
        self._steps[self._episode] = compile_steps(run, int(state.step), self._step, self._episode)
      steps = self._steps[self._episode].wait()
    self.watchdog.heartbeat()
    return state, steps

  def _due_episode(self, step: int) -> int:
    return self._run.plan.at(step, self._plateaus.count if self._plateaus else 0)

  def _is_episode_over(self, step: int) -> bool:
    return step < self._experiment.steps and self._due_episode(step) != self._episode

  def should_stop(self, step: int) -> bool:
    self._step_file.write(step)
    self._checkpoints.raise_errors()
    requested = self._interruption.requested or self._lock.is_lost
    self._stop_requested = parallel.any_host_requested_stop(step, requested) or self._stopped_early
    return self._stop_requested or self._is_episode_over(step)

  @property
  def batches(self) -> UnskippedBatches:
    return UnskippedBatches(self._run.batches, self._skipped)

  def _feed(self) -> Iterator[Mapping[str, jax.Array]]:
    """Returns the batches of the remaining steps, on the devices."""
    experiment, run = self._experiment, self._run
    if run.stream:
      return run.stream.feed(run.mesh)
    batches = data.read_ahead(
      self.batches,
      self._first_step,
      experiment.steps,
      experiment.loader_threads,
      experiment.loader_processes,
    )
    return to_devices(batches, run.mesh)

  def save(self, state: TrainState) -> None:
    run_on_process_zero(self._check_directory)
    with self._goodput.spent_on("saving checkpoints"):
      if self._run.stream:
        self._run.stream.save(int(state.step))
      self._checkpoints.save(saved_state(self._run.saved, state), self._run.fingerprint)
      self.writer.flush()
      self.watchdog.heartbeat()
    self._record_goodput(int(state.step))

  def _check_directory(self) -> None:
    """Raises DirectoryRemoved if the directory is gone: further writes would create an incomplete one."""
    self._lock.check()
    if not (self._run.model_dir / directory.CONFIG).is_file():
      raise DirectoryRemoved(
        "MODEL_DIR was removed during the run",
        directory=self._run.model_dir,
        missing=directory.CONFIG,
        try_="restore the directory from a backup; without it, the same command starts from step 0",
      )

  def _evaluated_tasks(self) -> dict[str, list[str]]:
    """Returns the tasks of each kind of evaluation that the run has."""
    losses = self._run.evaluated if self._experiment.eval_loss_period else ()
    members = {"eval_loss": losses, "eval": self._run.scored}
    return {kind: [member.task for member in found] for kind, found in members.items() if found}

  def _evaluation(self, kind: str) -> Evaluate:
    make = loss_evaluation if kind == "eval_loss" else decoding_evaluation
    return make(self._run, self._programs, self.writer, self.watchdog.heartbeat)

  def _is_recorded(self, kind: str) -> bool:
    """Returns whether the first step has scores of all tasks: a run may be killed between two."""
    return all(f"{kind}/{task}" in self._recorded for task in self._evaluated_tasks()[kind])

  def _evaluate(self, kind: str, evaluate: Evaluate, state: TrainState) -> None:
    stopping, keep = self._stopping, self._experiment.keep
    if keep.metric.startswith(f"{kind}/"):
      self.save(state)  # may be the best
    with self._goodput.spent_on("evaluating"):
      scores = evaluate(state)
    self._scores |= scores
    if stopping.metric.startswith(f"{kind}/"):
      self._stopped_early = stopping.update(int(state.step), scores)
    if self._plateaus and self._plateaus.metric.startswith(f"{kind}/"):
      self._plateaus.update(int(state.step), scores)
    if keep.metric.startswith(f"{kind}/"):
      keep.check_metric(scores)
    self._checkpoints.record_scores(int(state.step), scores)

  def _missed_evaluation(self, kind: str, period: int) -> bool:
    """Returns whether the previous attempt saved this step but ended before evaluating it."""
    step = self._first_step
    if not step or not period or step % period or not self._trained_here:
      return False
    return not self._is_recorded(kind)

  def _recover(self, step: int) -> StartingPoint:
    """Applies the policy for a step that is not finite: raises RunError or returns a checkpoint before it."""
    experiment, run = self._experiment, self._run
    saved = save_batch(run, self._skipped, step)
    self._checkpoints.wait()
    if experiment.nonfinite != "rollback":
      steps = checkpoint_steps(run.model_dir)
      raise RunError(
        f"loss or gradients are not finite at step {step:,}" + " repeatedly" * (experiment.nonfinite == "skip"),
        batch=f"number {self._skipped.batch_index(step - 1):,} of seed {experiment.seed}"
        + (f", in {saved}" if saved else ""),
        intact=f"checkpoint {steps[-1]}" if steps else "no checkpoint yet",
        try_="--gin.NONFINITE=skip or rollback; a lower learning rate; clip_norm of the optimizer",
      )
    start = run.start
    if run_on_process_zero(lambda: len(checkpoint_steps(run.model_dir))):
      stored = [saved_spec(spec, run.saved) for spec in run.specs]
      start = choose_starting_point(experiment, run.model_dir, stored, run.fingerprint, base=run.start.base)
    self._skipped = self._skipped.skip(start.step, step)
    if jax.process_index() == 0:
      self._skipped.write(run.model_dir)
    say(
      f"step {step:,} is not finite: rolling back to step {start.step:,} ({start.description}) "
      f"and skipping {step - start.step:,} batches"
    )
    return start

  def _record_goodput(self, step: int, ended: str = "running") -> None:
    if jax.process_index() == 0:
      self._goodput.write(self._run.model_dir / goodput.FILE, self._first_step, step, ended)

  def report(self, step: int) -> TrainingResult:
    """Prints and returns the result of the run."""
    steps, run = self._experiment.steps, self._run
    number = self._interruption.signal if jax.process_count() == 1 else None  # others may not have received it
    interrupted = step < steps and not self._stopped_early
    self._record_goodput(step, "interrupted" if interrupted else "finished")
    rows = read_metrics(run.model_dir)
    if jax.process_index() == 0:
      plot_loss(run.model_dir, rows)
      tag = price_tag(self._experiment, run.model_dir, run.phases, run.model)
      storage.write_atomic(run.model_dir / directory.RUN_CARD, f"{card_text(run)}\n{tag}\n")
    say(self._goodput.report(step - self._first_step))
    say(goodput.summary_of_attempts(run.model_dir / goodput.FILE))
    if interrupted:
      number = self._interruption.signal or signal.SIGTERM  # sent to another host
      name = signal.Signals(number).name
      say(f"{name}: stopped and saved at step {step:,} of {steps:,}; the same command resumes from there")
    elif self._stopped_early:
      say(f"stopped early at step {step:,}: {self._stopping.describe()}")
    best, metric = best_step(run.model_dir, self._experiment.keep), self._experiment.keep.metric
    if best is not None:
      say(f"best {metric} of the kept checkpoints: step {best:,}")
    if not interrupted:
      report_files(run.model_dir)
    stopped = "interrupted" if interrupted else "early" if self._stopped_early else "finished"
    return TrainingResult(run.model_dir, step, last_metrics(rows), self._scores, stopped, number, best)


def save_batch(run: PreparedRun, skipped: SkippedBatches, step: int) -> Path | None:
  """Saves this host's rows of the batch of `step` for inspection; None for a stream, which cannot be read again."""
  if run.batches is None:
    return None
  path = run.model_dir / NOT_FINITE / f"step-{step}-host-{jax.process_index()}.npz"
  path.parent.mkdir(parents=True, exist_ok=True)
  arrays = io.BytesIO()
  np.savez(arrays, **UnskippedBatches(run.batches, skipped)[step - 1])
  path.write_bytes(arrays.getvalue())
  return path
