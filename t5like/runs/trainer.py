"""A training run in phases: initialise, compile, loop, report. What comes before is in training_plan.py."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5like import configuration, data, parallel, planning
from t5like.files import storage
from t5like.experiments.phases import blank_batch, phases_left
from t5like.experiments.compatibility import phase_flops
from t5like.experiments.experiment import Experiment
from t5like.runs.evaluations import Evaluate, decoding_evaluation, loss_evaluation, was_evaluated
from t5like.runs.price_tag import write_price_tag
from t5like.runs.preparing import Plan, Start, starting_point
from t5like.errors import RunError, UserError
from t5like.training.records import goodput
from t5like.training.records import model_dir as directory
from t5like.parallel.process_zero import first_process_decides
from t5like.training.checkpoints import Checkpoints, SaveError, checkpoint_steps, restore_state
from t5like.training.feed import to_devices
from t5like.training.guards.finiteness import FiniteCheck, NotFinite, SkippedBatches, WithoutSkipped
from t5like.training.records.goodput import Goodput
from t5like.training.guards.interruption import Interruption
from t5like.training.loop import Hook, train_loop
from t5like.training.records.metrics import MetricWriter, read_metrics
from t5like.training.records.plots import plot_loss
from t5like.training.records.profiling import ProfilerWindow
from t5like.console import ProgressLine, duration, say
from t5like.training.state import TrainState, create_state
from t5like.training.step import LossSettings, compile_train_step, keep_compiled_steps
from t5like.training.guards.run_lock import RunLock
from t5like.training.guards.step_file import StepFile
from t5like.training.records.train_log import TrainLog
from t5like.training.guards.watchdog import Watchdog
from t5like.vocabularies import copy_vocabulary

STACKS = "stacks.txt"
NOT_FINITE = "not_finite"


class DirectoryRemoved(UserError):
  """Not to be started again by a supervisor: it would begin with step 0."""


class Run:
  """One `t5like train`, from its plan to its exit status."""

  def __init__(
    self,
    experiment: Experiment,
    plan: Plan,
    goodput: Goodput,
    step_file: StepFile,
    lock: RunLock | None = None,
    end_process: Callable[[int], object] | None = None,
  ):
    self._experiment, self._plan, self._goodput, self._step_file = experiment, plan, goodput, step_file
    self._checkpoints = Checkpoints(plan.model_dir, experiment.keep)
    self._skipped = SkippedBatches.read(plan.model_dir)
    self._interruption = Interruption(parallel.stop_signals())
    self._watchdog = Watchdog(60 * experiment.watchdog_minutes, plan.model_dir / STACKS, end_process)
    self._lock = lock or RunLock(plan.model_dir)
    self._steps: CompiledSteps | None = None
    self._enough = False  # early stopping has spoken

  def execute(self) -> int:
    """Trains to the last step, the first signal or the end of patience; returns the exit status."""
    record_run(self._experiment, self._plan)
    keep_compiled_steps(compiled_folder(self._experiment.cache_dir))
    start = self._plan.start
    with self._checkpoints, self._interruption, self._watchdog:
      while True:
        try:
          state = self._attempt(start)
          break
        except NotFinite as failure:
          start = self._recover(failure.step)
        except SaveError:
          self._check_directory()
          raise
      with self._goodput.spent_on("saving checkpoints"):
        self._checkpoints.wait()
      first_process_decides(self._check_directory)
    if self._plan.stream:
      self._plan.stream.close()
    return self._report(int(state.step))

  def _attempt(self, start: Start) -> TrainState:
    """From a starting point to the end of the run, or to a step that is not finite."""
    experiment, plan = self._experiment, self._plan
    with self._goodput.spent_on("initialising"):
      state = initialise(experiment, plan, start)
    self._first_step = int(state.step)
    self._step_file.write(self._first_step)
    written = self._take_up_metrics()
    with contextlib.closing(self._writer) as writer:
      if self._first_step < experiment.steps and not self._enough:
        return self._train(state, writer)
      if not self._enough:
        say(f"already at step {self._first_step:,} of {experiment.steps:,}: nothing left to train")
      if plan.scored and not was_evaluated(experiment, plan, written):
        self._evaluate("eval", decoding_evaluation(experiment, plan, writer, self._watchdog.beat), state)
    return state

  def _take_up_metrics(self) -> list[dict[str, Any]]:
    """Reads what was written, once for all who go on from it; returns the rows of the first step."""
    experiment, folder, first_step = self._experiment, self._plan.model_dir, self._first_step
    rows = read_metrics(folder)
    self._goodput.resume(rows, folder, first_step)
    self._enough = experiment.early_stopping.restore(rows, first_step)
    self._writer = MetricWriter(folder, first_step, extra_writers(experiment), rows)
    written = [row for row in rows if row["step"] == first_step]
    self._recorded = {row["kind"] for row in written}
    self._trained_here = any(row["kind"] == "train" and row["step"] <= first_step for row in rows)
    return written

  def _train(self, state: TrainState, writer: MetricWriter) -> TrainState:
    experiment, plan = self._experiment, self._plan
    with self._goodput.spent_on("compiling"):
      evaluations = self._evaluations(writer)
      steps = self._steps = self._steps or compile_steps(experiment, plan, self._first_step)
    progress = ProgressLine()
    log = TrainLog(
      writer,
      progress,
      experiment.log_period,
      experiment.steps,
      steps.flops,
      planning.peak_flops(plan.mesh.devices.flat[0].device_kind),
      experiment.norms_period,
    )
    periods = {"eval_loss": experiment.eval_loss_period, "eval": experiment.eval_period}
    # Saved first: an evaluation may take long, and fail.
    hooks = [
      Hook(
        experiment.checkpoint_period,
        self._save,
        at_end=True,
        minutes=experiment.checkpoint_minutes,
        look_every=experiment.log_period,
      )
    ]
    for kind, evaluate in evaluations.items():
      hooks.append(Hook(periods[kind], functools.partial(self._evaluate, kind, evaluate), at_end=True))
      if self._was_cut_off(kind, periods[kind]):
        self._evaluate(kind, evaluate, state)
    state = train_loop(
      state,
      steps,
      self._feed(),
      experiment.steps,
      log,
      hooks,
      self._is_to_stop,
      FiniteCheck(experiment.nonfinite),
      self._watchdog,
      ProfilerWindow(plan.model_dir / "profile", *experiment.profile_steps),
      self._goodput,
    )
    progress.leave()
    if int(state.step) < experiment.steps:
      self._save(state)
    return state

  def _is_to_stop(self, step: int) -> bool:
    self._step_file.write(step)
    self._checkpoints.raise_errors()
    requested = self._interruption.requested or self._lock.is_lost
    return parallel.any_host_requested_stop(step, requested) or self._enough

  def _feed(self) -> Iterator[Mapping[str, jax.Array]]:
    """The batches of the steps to come, on the devices."""
    experiment, plan = self._experiment, self._plan
    if plan.stream:
      return plan.stream.feed(plan.mesh)
    batches = data.read_ahead(
      WithoutSkipped(plan.batches, self._skipped),
      self._first_step,
      experiment.steps,
      experiment.loader_threads,
      experiment.loader_processes,
    )
    return to_devices(batches, plan.mesh)

  def _save(self, state: TrainState) -> None:
    first_process_decides(self._check_directory)
    with self._goodput.spent_on("saving checkpoints"):
      if self._plan.stream:
        self._plan.stream.save(int(state.step))
      self._checkpoints.save(state, self._plan.fingerprint)
      self._writer.flush()
      self._watchdog.beat()
    self._account(int(state.step))

  def _check_directory(self) -> int:
    """Ends a run whose directory was removed: what it wrote from now on would be half a directory, or another run's."""
    self._lock.check()
    if not (self._plan.model_dir / directory.CONFIG).is_file():
      raise DirectoryRemoved(
        "MODEL_DIR was removed while the run wrote to it, so the run ends",
        directory=self._plan.model_dir,
        missing=directory.CONFIG,
        try_="restore the directory from a copy; without it, the same command starts from step 0",
      )
    return 0

  def _evaluations(self, writer: MetricWriter) -> dict[str, Evaluate]:
    found = {}
    if self._plan.evaluated and self._experiment.eval_loss_period:
      found["eval_loss"] = loss_evaluation(self._experiment, self._plan, writer, self._watchdog.beat)
    if self._plan.scored:
      found["eval"] = decoding_evaluation(self._experiment, self._plan, writer, self._watchdog.beat)
    return found

  def _evaluate(self, kind: str, evaluate: Evaluate, state: TrainState) -> None:
    stopping, keep = self._experiment.early_stopping, self._experiment.keep
    if keep.metric.startswith(f"{kind}/"):
      self._save(state)  # it may be the best
    with self._goodput.spent_on("evaluating"):
      scores = evaluate(state)
    if stopping.metric.startswith(f"{kind}/"):
      self._enough = stopping.update(int(state.step), scores)
    if keep.metric.startswith(f"{kind}/"):
      keep.check_metric(scores)
    self._checkpoints.note_scores(int(state.step), scores)

  def _was_cut_off(self, kind: str, period: int) -> bool:
    """Whether the attempt before saved this step and ended before it was evaluated."""
    step = self._first_step
    if not step or not period or step % period or not self._trained_here:
      return False
    return not any(row.startswith(f"{kind}/") for row in self._recorded)

  def _recover(self, step: int) -> Start:
    """Follows the policy for a step that is not finite: ends the run, or goes back to before it."""
    experiment, plan = self._experiment, self._plan
    kept = keep_batch(plan, self._skipped, step)
    self._checkpoints.wait()
    if experiment.nonfinite != "rollback":
      steps = checkpoint_steps(plan.model_dir)
      raise RunError(
        f"loss or gradients are not finite at step {step:,}" + " again and again" * (experiment.nonfinite == "skip"),
        batch=f"number {self._skipped.batch_of(step - 1):,} of seed {experiment.seed}"
        + (f", in {kept}" if kept else ""),
        whole=f"checkpoint {steps[-1]}" if steps else "no checkpoint yet",
        try_="--gin.NONFINITE=skip or rollback; a lower learning rate; clip_norm of the optimizer",
      )
    start = starting_point(experiment, plan.model_dir, plan.spec, plan.fingerprint)
    self._skipped = self._skipped.skip(start.step, step)
    if jax.process_index() == 0:
      self._skipped.write(plan.model_dir)
    say(
      f"step {step:,} is not finite: back to step {start.step:,} ({start.description}), "
      f"{step - start.step:,} batches are left out"
    )
    return start

  def _account(self, step: int, ended: str = "running") -> None:
    if jax.process_index() == 0:
      self._goodput.write(self._plan.model_dir / goodput.FILE, self._first_step, step, ended)

  def _report(self, step: int) -> int:
    """Says how it ended and where everything is; the exit status."""
    steps, plan = self._experiment.steps, self._plan
    interrupted = step < steps and not self._enough
    self._account(step, "interrupted" if interrupted else "finished")
    if jax.process_index() == 0:
      plot_loss(plan.model_dir)
      write_price_tag(self._experiment, plan.model_dir, plan.phases)
    say(self._goodput.report(step - self._first_step))
    say(goodput.summary_of_attempts(plan.model_dir / goodput.FILE))
    if interrupted:
      number = self._interruption.signal or signal.SIGTERM  # of another host
      name = signal.Signals(number).name
      say(f"{name}: stopped and saved at step {step:,} of {steps:,}; the same command goes on from there")
      return 128 + number
    if self._enough:
      say(f"stopped early at step {step:,}: {self._experiment.early_stopping.describe()}")
    report_files(plan.model_dir)
    return 0


def record_run(experiment: Experiment, plan: Plan) -> None:
  """Writes config.gin first, which marks the folder as ours, and all that the directory needs to be used elsewhere."""
  if jax.process_index() == 0:
    settings, path = data_settings(experiment), plan.model_dir / DATA_SETTINGS
    for line in changed_data(settings, path, plan):
      say(line)
    directory.write_text(path, json.dumps(settings, indent=1) + "\n")
    variables = experiment.optimizer.variable_table(plan.spec.shapes.params)
    directory.write_text(plan.model_dir / directory.CONFIG, configuration.operative_config())
    directory.write_text(plan.model_dir / directory.RUN_CARD, f"{plan.run_card}\n\n{variables}\n")
    copy_vocabulary(experiment.vocabulary, plan.vocabulary, plan.model_dir)


DATA_SETTINGS = "data_settings.json"


def data_settings(experiment: Experiment) -> dict[str, Any]:
  """What decides which rows a step reads, besides SEED."""
  return {
    "TASK": experiment.task,
    "SPLIT": experiment.split,
    "MIX": dict(experiment.mix),
    "BATCH_SIZE": experiment.batch_size,
    "LENGTHS": dict(experiment.lengths),
  }


def changed_data(now: Mapping[str, Any], path: Path, plan: Plan) -> list[str]:
  """How the rows of a resumed run differ from those of before: a line for each setting that has changed."""
  before = now
  with contextlib.suppress(OSError, ValueError):
    before = storage.read_json(path)
  step, lines = plan.start.step, []
  for name, value in now.items():
    if not step or name not in before or before[name] == value:
      continue
    was = before[name]
    if name != "BATCH_SIZE" or not isinstance(was, int) or plan.stream:
      meaning = "its rows are others from here on" if name in ("TASK", "SPLIT") else "rows of before may come again"
    elif value < was:
      meaning = f"rows {step * value:,} to {step * was:,} come again"
    else:
      meaning = f"rows {step * was:,} to {step * value:,} are passed over"
    lines.append(f"{name} = {value!r}, was {was!r} up to step {step:,}: {meaning}")
  return lines


def compiled_folder(cache_dir: str) -> Path:
  """Beside the token caches, on this machine."""
  root = storage.as_path(cache_dir)
  return (storage.mirror_folder(root) if storage.is_remote(root) else root) / "compiled"


def initialise(experiment: Experiment, plan: Plan, start: Start) -> TrainState:
  def fresh() -> TrainState:
    return create_state(experiment.model, experiment.optimizer, plan.batch, experiment.seed, plan.spec)

  if start.checkpoint is None:
    return fresh()
  state = restore_state(start.checkpoint, plan.spec, plan.fingerprint, start.options, fresh, start.verified)
  if (before := int(state.seed)) != experiment.seed:
    say(
      f"SEED = {experiment.seed}, this run was begun with {before}: data, noise and dropout follow the new seed from "
      f"step {int(state.step) + 1:,} on, so rows of before may come again"
    )
    seed = np.asarray(experiment.seed, state.seed.dtype)
    state = state.replace(seed=jax.make_array_from_callback((), state.seed.sharding, lambda _: seed))
  return state


def extra_writers(experiment: Experiment) -> list[Any]:
  if not experiment.wandb_project or jax.process_index() > 0:
    return []
  from t5like.training.records.wandb_writer import WandbWriter

  folder = storage.as_path(experiment.model_dir).absolute()
  return [WandbWriter(folder, experiment.wandb_project, folder.name, {"gin": configuration.operative_config()})]


class CompiledSteps:
  """The compiled step; where phases have batches of different shapes, the one for the batch at hand."""

  def __init__(self):
    self._compiled: dict[tuple, jax.stages.Compiled] = {}
    self._flops: dict[tuple, int] = {}

  def add(self, batch: Mapping[str, Any], compiled: jax.stages.Compiled, flops: int) -> None:
    self._compiled[_shapes(batch)], self._flops[_shapes(batch)] = compiled, flops

  def __call__(self, state: TrainState, batch: Mapping[str, Any]) -> tuple[TrainState, Mapping[str, Any]]:
    return self._compiled[_shapes(batch)](state, batch)

  def flops(self, batch: Mapping[str, Any]) -> int:
    return self._flops[_shapes(batch)]


def compile_steps(experiment: Experiment, plan: Plan, first_step: int) -> CompiledSteps:
  started = time.monotonic()
  settings = LossSettings(
    experiment.z_loss,
    experiment.label_smoothing,
    normaliser=experiment.loss_normaliser,
    microbatches=experiment.microbatches,
    layer_norms=experiment.norms_period > 0,
  )
  steps = CompiledSteps()
  for phase in phases_left(plan.phases, first_step):
    batch = blank_batch(experiment, phase)
    compiled = compile_train_step(
      experiment.model, experiment.optimizer, settings, plan.spec, batch, plan.mesh, experiment.deterministic
    )
    steps.add(batch, compiled, phase_flops(experiment.model, phase.batch_size, phase.lengths))
  say(f"train step compiled in {duration(time.monotonic() - started)}")
  return steps


def _shapes(batch: Mapping[str, Any]) -> tuple:
  return tuple((name, batch[name].shape) for name in sorted(batch))


def keep_batch(plan: Plan, skipped: SkippedBatches, step: int) -> Path | None:
  """Writes this host's rows of the batch of `step` into a file, for study; None for a stream, which has no way back."""
  if plan.batches is None:
    return None
  path = plan.model_dir / NOT_FINITE / f"step-{step}-host-{jax.process_index()}.npz"
  path.parent.mkdir(parents=True, exist_ok=True)
  arrays = io.BytesIO()
  np.savez(arrays, **WithoutSkipped(plan.batches, skipped)[step - 1])
  path.write_bytes(arrays.getvalue())
  return path


def report_files(model_dir: Path) -> None:
  names = {
    "checkpoints": "checkpoints/",
    "metrics": "metrics.jsonl, and TensorBoard events: tensorboard --logdir " + str(model_dir),
    "loss curve": "loss.png",
    "configuration": f"{directory.CONFIG}, {directory.RUN_CARD}",
  }
  if (model_dir / "predictions").is_dir():
    names["predictions"] = "predictions/"
  say(f"in {model_dir}:")
  for label, text in names.items():
    say(f"  {label:<13}  {text}")
