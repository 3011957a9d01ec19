"""A training run in phases: prepare, initialise, compile, loop, report."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5like import configuration, data, parallel
from t5like.cli import evaluation_run
from t5like.cli.batch_plan import Phase, blank_batch, make_batches, phases_left, run_phases
from t5like.cli.compatibility import (
  check_layout,
  check_scorable,
  check_splits,
  check_vocabulary,
  model_fingerprint,
)
from t5like.cli.experiment import Experiment
from t5like.cli.run_card import describe_run
from t5like.cli.streaming_run import StreamProcess, StreamSettings
from t5like.cli.token_caches import Member, TokenCaches
from t5like.objectives import SpecialTokens
from t5like.training import model_dir as directory
from t5like.training.checkpoints import (
  Checkpoints,
  check_fingerprint,
  checkpoint_steps,
  find_checkpoint,
  has_training_state,
  load_parameters,
  read_fingerprint,
)
from t5like.training.interruption import Interruption
from t5like.training.loop import Hook, TrainLog, to_devices, train_loop
from t5like.training.metrics import MetricWriter, read_metrics
from t5like.training.plots import plot_loss
from t5like.training.progress import ProgressLine, duration
from t5like.training.state import StateSpec, TrainState, create_state, state_spec
from t5like.training.step import LossSettings, compile_train_step, keep_compiled_steps
from t5like.vocabularies import Vocabulary, load_vocabulary

_SHOWN_EXAMPLES = 5


@dataclasses.dataclass(frozen=True)
class Start:
  """Where a run's parameters come from."""

  description: str
  checkpoint: Path | None = None  # None: random initialisation
  resumes: bool = False  # optimizer and step come from the checkpoint too


@dataclasses.dataclass(frozen=True)
class Plan:
  """All that is known, checked and opened before the first compilation."""

  model_dir: Path
  vocabulary: Vocabulary
  phases: list[Phase]  # the last goes on to the end of the run
  batches: data.Batches | None  # None: a dry run without a token cache, or a stream
  stream: StreamProcess | None
  scored: list[Member]  # the tasks that are evaluated
  mesh: jax.sharding.Mesh
  batch: dict[str, np.ndarray]  # a batch of the right shapes
  spec: StateSpec
  fingerprint: dict[str, Any]
  start: Start
  run_card: str


def prepare(experiment: Experiment, build_data: bool) -> Plan:
  """Checks everything that can be wrong and opens what the run needs. Writes nothing to MODEL_DIR."""
  model_dir = directory.check_model_dir(experiment.model_dir)
  vocabulary = load_vocabulary(experiment.vocabulary)
  check_vocabulary(experiment.model.config, experiment.vocabulary, vocabulary)
  check_layout(experiment.model, experiment.objective)
  mesh = parallel.make_mesh(experiment.mesh)
  check_splits(experiment.model.config, mesh)
  special = SpecialTokens.of(vocabulary)
  phases = run_phases(experiment, special)
  for phase in phases:
    parallel.check_batch(phase.batch_size, mesh)
  fingerprint = model_fingerprint(experiment.model.config, vocabulary)
  start = starting_point(model_dir, experiment.init_from, fingerprint)

  caches = TokenCaches(
    experiment.cache_dir, experiment.vocabulary, vocabulary, experiment.task_modules, experiment.corpus_files
  )
  open_caches = caches.open_or_build if build_data else caches.open
  members = None if experiment.stream else open_caches(experiment.task, experiment.split)
  batches = None if members is None else make_batches(experiment, members, phases, special)
  scored = (open_caches(experiment.task, experiment.eval_split) or []) if experiment.eval_split else []
  for member in scored:
    check_scorable(member.cache)
  stream = open_stream(experiment, phases[-1], model_dir, start) if experiment.stream and build_data else None

  batch = blank_batch(experiment, phases[-1])
  spec = state_spec(experiment.model, experiment.optimizer, batch, mesh)
  parallel.check_sharded(spec.shapes.params, spec.shardings.params, mesh, experiment.mesh.preset)
  card = describe_run(experiment, model_dir, mesh, spec, phases, batches, stream, start.description)
  return Plan(model_dir, vocabulary, phases, batches, stream, scored, mesh, batch, spec, fingerprint, start, card)


def starting_point(model_dir: Path, init_from: str | None, fingerprint: dict[str, Any]) -> Start:
  """Decides where parameters come from, and refuses a checkpoint that does not fit.

  The order: the run's own newest checkpoint, then INIT_FROM, then random initialisation.
  """
  if checkpoint_steps(model_dir):
    own = find_checkpoint(model_dir)
    check_fingerprint(read_fingerprint(own), fingerprint, own)
    if has_training_state(own):
      return Start(f"its own checkpoint of step {own.name}", own, resumes=True)
    return Start("the converted parameters in this directory, optimizer and step fresh", own)
  if init_from:
    other = find_checkpoint(init_from)
    check_fingerprint(read_fingerprint(other), fingerprint, other)
    return Start(f"the parameters of {other}, optimizer and step fresh", other)
  return Start("random initialisation")


def open_stream(experiment: Experiment, phase: Phase, model_dir: Path, start: Start) -> StreamProcess | None:
  """The stream of a run, where it has steps left."""
  step = int(start.checkpoint.name) if start.resumes else 0
  if step >= experiment.steps:
    return None
  return StreamProcess(StreamSettings.of(experiment, phase), experiment.seed, model_dir, step)


def execute(experiment: Experiment, plan: Plan) -> int:
  """Trains to the last step or the first signal; returns the exit status."""
  record_run(plan)
  keep_compiled_steps(Path(experiment.cache_dir) / "compiled")
  checkpoints = Checkpoints(plan.model_dir, keep=experiment.checkpoints_kept)
  state = initialise(experiment, plan, checkpoints)
  first_step = int(state.step)
  writer = MetricWriter(plan.model_dir, first_step)
  progress = ProgressLine()

  def save(state: TrainState) -> None:
    if plan.stream:
      plan.stream.save(int(state.step))
    checkpoints.save(state, plan.fingerprint)

  evaluate = evaluator(experiment, plan, writer)
  with Interruption() as interruption:
    if first_step < experiment.steps:
      step_function = compile_steps(experiment, plan, first_step)
      log = TrainLog(writer, progress, experiment.log_period, experiment.steps)
      hooks = [Hook(experiment.checkpoint_period, save, at_end=True)]
      if evaluate:
        hooks.append(Hook(experiment.eval_period, evaluate, at_end=True))
      feed = device_feed(experiment, plan, first_step)
      state = train_loop(state, step_function, feed, experiment.steps, log, hooks, interruption)
      progress.leave()
    else:
      print(f"already at step {first_step:,} of {experiment.steps:,}: nothing left to train")
      if evaluate and not all(_was_evaluated(plan.model_dir, member.task, first_step) for member in plan.scored):
        evaluate(state)
    if interruption.requested:
      save(state)
  if plan.stream:
    plan.stream.close()
  checkpoints.close()
  writer.close()
  plot_loss(plan.model_dir)
  if interruption.requested:
    return _report_interruption(interruption.signal, int(state.step), experiment.steps)
  _report_end(plan.model_dir)
  return 0


def device_feed(experiment: Experiment, plan: Plan, first_step: int) -> Iterator[Mapping[str, jax.Array]]:
  """The batches of the steps to come, on the devices."""
  sharding = parallel.batch_sharding(plan.mesh)
  if plan.stream:
    return plan.stream.feed(sharding)
  batches = data.read_ahead(
    plan.batches, first_step, experiment.steps, experiment.loader_threads, experiment.loader_processes
  )
  return to_devices(batches, sharding)


def record_run(plan: Plan) -> None:
  """Writes config.gin first: it marks the folder as ours."""
  directory.write_text(plan.model_dir / directory.CONFIG, configuration.operative_config())
  directory.write_text(plan.model_dir / directory.RUN_CARD, plan.run_card + "\n")


def initialise(experiment: Experiment, plan: Plan, checkpoints: Checkpoints) -> TrainState:
  if plan.start.resumes:
    return checkpoints.restore(plan.spec, plan.fingerprint)
  state = create_state(experiment.model, experiment.optimizer, plan.batch, experiment.seed, plan.spec)
  if plan.start.checkpoint is None:
    return state
  params = load_parameters(plan.start.checkpoint)
  return state.replace(params=jax.device_put(params, plan.spec.shardings.params))


def compile_steps(experiment: Experiment, plan: Plan, first_step: int) -> Callable[[TrainState, Any], Any]:
  """The compiled step; where phases have batches of different shapes, the one for the batch at hand."""
  started = time.monotonic()
  settings = LossSettings(experiment.z_loss, experiment.label_smoothing)
  compiled = {}
  for phase in phases_left(plan.phases, first_step):
    batch = blank_batch(experiment, phase)
    compiled[_shapes(batch)] = compile_train_step(
      experiment.model, experiment.optimizer, settings, plan.spec, batch, plan.mesh
    )
  print(f"train step compiled in {duration(time.monotonic() - started)}", flush=True)
  return lambda state, batch: compiled[_shapes(batch)](state, batch)


def _shapes(batch: Mapping[str, Any]) -> tuple:
  return tuple((name, batch[name].shape) for name in sorted(batch))


def evaluator(experiment: Experiment, plan: Plan, writer: MetricWriter) -> Callable[[TrainState], None] | None:
  """A function that scores a state by decoding, prints and records; None where nothing is to be evaluated."""
  if not plan.scored:
    return None
  split = experiment.eval_split
  scorers = {
    member.task: evaluation_run.scorer(
      experiment.model,
      plan.mesh,
      plan.vocabulary,
      member.cache,
      plan.phases[-1].lengths,
      experiment.batch_size,
      experiment.eval_examples,
    )
    for member in plan.scored
  }

  def evaluate(state: TrainState) -> None:
    step = int(state.step)
    for task, score in scorers.items():
      result = score(state.params)
      path = evaluation_run.predictions_path(plan.model_dir, task, split, step, experiment.eval_examples)
      result.write(path)
      writer.write(step, f"eval/{task}", result.scores)
      evaluation_run.show(result, task, split, step, _SHOWN_EXAMPLES)

  return evaluate


def _was_evaluated(model_dir: Path, task: str, step: int) -> bool:
  rows = [r for r in read_metrics(model_dir) if r["kind"] == f"eval/{task}" and r["step"] == step]
  for row in rows:
    scores = {k: v for k, v in row.items() if k not in ("step", "kind")}
    print(f"{task} was scored at this step: " + ", ".join(f"{k} {v:.2f}" for k, v in scores.items()))
  return bool(rows)


def _report_interruption(number: int, step: int, steps: int) -> int:
  name = signal.Signals(number).name
  print(f"{name}: stopped and saved at step {step:,} of {steps:,}; the same command goes on from there")
  return 128 + number


def _report_end(model_dir: Path) -> None:
  names = {
    "checkpoints": "checkpoints/",
    "metrics": "metrics.jsonl, and TensorBoard events: tensorboard --logdir " + str(model_dir),
    "loss curve": "loss.png",
    "configuration": f"{directory.CONFIG}, {directory.RUN_CARD}",
  }
  if (model_dir / "predictions").is_dir():
    names["predictions"] = "predictions/"
  print(f"in {model_dir}:")
  for label, text in names.items():
    print(f"  {label:<13}  {text}")
