"""Prepares a training run: finds every error it can before the first compilation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t5like import data, parallel
from t5like.console import say
from t5like.errors import UserError
from t5like.experiments.characters import spelled
from t5like.experiments.compatibility import (
  check_carried,
  check_layout,
  check_splits,
  check_vocabulary,
  model_fingerprint,
  stack_lengths,
)
from t5like.experiments.experiment import Experiment
from t5like.experiments.finetuning_notes import examples_note, finetuning_notes
from t5like.experiments.heads import check_compared_rows
from t5like.experiments.languages import special_tokens, task_languages
from t5like.experiments.phases import Phase, blank_batch, make_batches, run_phases
from t5like.experiments.streaming import StreamProcess, StreamSettings
from t5like.experiments.token_caches import CachedTask
from t5like.finetuning import TrainingPlan, plan_training
from t5like.finetuning.distillation import TEACHER
from t5like.parallel.process_zero import check_same_on_all_processes
from t5like.runs.head_choice import resolve_head
from t5like.runs.run_card import RunCard, describe_run
from t5like.runs.run_data import (
  check_corpus_splits,
  check_evaluation,
  expected_members,
  note_missing_modules,
  open_evaluated,
  open_members,
  open_trained,
  scored_members,
  with_imported_modules,
)
from t5like.runs.saved_parameters import (
  read_run_base,
  saved_selection,
  saved_spec,
  with_stored_dtypes,
  without_teacher,
)
from t5like.runs.starting_point import StartingPoint, choose_starting_point
from t5like.runs.teachers import Teacher, read_teacher, train_model
from t5like.runs.trained_flops import flops_shares
from t5like.training.checkpoints import check_disk_space, checkpoint_bytes
from t5like.training.checkpoints.given_parameters import GivenParameters
from t5like.training.microbatches import check_microbatches
from t5like.training.optimizers import Optimizer
from t5like.training.optimizers.selection import Selection
from t5like.training.records import model_dir as directory
from t5like.training.state import StateSpec, state_spec, with_optimizer
from t5like.vocabularies import Vocabulary, load_vocabulary


@dataclasses.dataclass(frozen=True)
class PreparedRun:
  """A run that is checked and ready to compile."""

  experiment: Experiment
  model_dir: Path
  vocabulary: Vocabulary
  phases: list[Phase]  # the last one extends to the end of the run
  batches: data.Batches | None  # None: a dry run without a token cache, or a stream
  stream: StreamProcess | None
  evaluated: list[CachedTask]  # the tasks of the evaluation split
  mesh: jax.sharding.Mesh
  batch: dict[str, np.ndarray]  # placeholder values, real shapes
  plan: TrainingPlan
  specs: list[StateSpec]  # of the plan's episodes
  flops_shares: list[float]  # of the plan's episodes: FLOPs of a step relative to one that trains everything
  fingerprint: dict[str, Any]
  start: StartingPoint
  saved: Selection | None  # the parameters that checkpoints hold; None: all
  teacher: Teacher | None  # the model that the experiment's model imitates
  stream_reason: str  # why the task streams although STREAM is not set; '': it does not
  expected: Sequence[tuple[str, float, int | None]]  # task, share and size, before a dry run has a token cache
  own_targets: Sequence[str]  # the run's tasks, if the targets of all have their own vocabulary

  @functools.cached_property
  def card(self) -> RunCard:
    """The summary of the run. On accelerators it takes seconds: they pass while the step compiles."""
    return describe_run(self)

  @property
  def model(self) -> nn.Module:
    """The model of a train step."""
    return train_model(self.experiment, self.teacher and self.teacher.model)

  @property
  def evaluated_spec(self) -> StateSpec:
    """The state that is evaluated: without a teacher."""
    return saved_spec(self.spec, self.saved) if self.teacher else self.spec

  @property
  def spec(self) -> StateSpec:
    """The state of the first episode. The parameters are the same in all."""
    return self.specs[0]

  @property
  def scored(self) -> list[CachedTask]:
    return scored_members(self.evaluated)


def prepare(experiment: Experiment, dry_run: bool = False, init: GivenParameters | None = None) -> PreparedRun:
  """Checks an experiment and opens the data and checkpoints that it needs.

  A dry run builds no token caches and does not move damaged checkpoints. `init` are initial parameters.
  """
  model_dir = directory.check_model_dir(experiment.model_dir)
  if not experiment.task:
    raise UserError("TASK is not set", try_="t5like tasks list")
  vocabulary = load_vocabulary(experiment.vocabulary)
  check_vocabulary(experiment.model.config, experiment.vocabulary, vocabulary)
  experiment = spelled(with_imported_modules(experiment), vocabulary)
  rates, members = experiment.mix or {experiment.task: 1.0}, None
  check_corpus_splits(experiment, rates)
  if experiment.has_head:  # the labels of the task determine the model
    members = open_members(experiment, vocabulary, rates, experiment.split, dry_run)
    experiment = resolve_head(experiment, members)
  plain, experiment = experiment, experiment.tuned()
  check_layout(experiment.model, experiment.objective)
  check_carried(experiment)
  check_rates(experiment.optimizer, experiment.steps)
  mesh = parallel.make_mesh(experiment.mesh)
  check_splits(experiment.model.config, mesh)
  special = special_tokens(experiment.model.config, vocabulary, task_languages(experiment))
  phases = run_phases(experiment, special)
  check_batches(plain, phases, mesh)
  teacher = None
  if experiment.distillation:
    teacher = read_teacher(experiment, vocabulary, [phase.lengths for phase in phases])
  batch = blank_batch(experiment, phases[-1])
  spec = state_spec(train_model(experiment, teacher and teacher.model), experiment.optimizer, batch, mesh)
  parallel.check_sharded(spec.shapes.params, spec.shardings.params, mesh, experiment.mesh.preset)
  plan = training_plan(experiment, spec.shapes.params)
  saved = saved_selection(experiment, plan, spec.shapes.params)
  if saved:
    spec = with_stored_dtypes(spec, saved, experiment.model.config.dtype)
  specs = [with_optimizer(spec, episode.optimizer, mesh) for episode in plan.episodes]
  fingerprint, base = model_fingerprint(experiment.model.config, vocabulary), None
  if experiment.method:
    base = read_run_base(plain, vocabulary, fingerprint, init)
    fingerprint |= {"base": base.digest}
  stored = [saved_spec(each, saved) for each in specs]
  start = choose_starting_point(experiment, model_dir, stored, fingerprint, not dry_run, init, base)
  if (experiment.init_from or init) and start.step == 0:
    for note in finetuning_notes(experiment):
      say(note)
  check_disk_space(model_dir, max(checkpoint_bytes(each.shapes) for each in stored))

  evaluated = open_evaluated(experiment, vocabulary, rates, dry_run)  # first: a text may take hours to tokenize
  stream_reason = ""
  if not experiment.stream and members is None:
    experiment, members, stream_reason = open_trained(experiment, vocabulary, rates, dry_run)
  batches = None if members is None else make_batches(experiment, members, phases, special, parallel.batch_shards(mesh))
  if batches is not None:
    batches.plan()  # now, because it may raise UserError
    note_missing_modules(experiment)
    say(examples_note(experiment, batches.phases[-1].source.rows_per_epoch))
  if evaluated is not None:
    check_evaluation(experiment, evaluated, vocabulary)
  evaluated = evaluated or []
  if not dry_run:
    contents = [(member.task, member.cache.manifest["shards"]) for member in (*(members or ()), *evaluated)]
    check_same_on_all_processes("the text of a token cache", contents)
  stream = None
  if experiment.stream and not dry_run and start.step < experiment.steps:
    stream = StreamProcess(StreamSettings.of(experiment, phases[-1], mesh), experiment.seed, model_dir, start.step)

  shares = flops_shares(experiment.model, plan, without_teacher(spec.shapes.params), batch)
  expected = expected_members(experiment) if dry_run and members is None and not experiment.stream else []
  known = members or evaluated
  own_targets = [member.task for member in known if member.cache.manifest.get("targets_vocabulary")]
  return PreparedRun(
    experiment=experiment, model_dir=model_dir, vocabulary=vocabulary, phases=phases, batches=batches, stream=stream,
    evaluated=evaluated, mesh=mesh, batch=batch, plan=plan, specs=specs, flops_shares=shares, fingerprint=fingerprint,
    start=start, saved=saved, teacher=teacher, stream_reason=stream_reason, expected=expected,
    own_targets=own_targets if len(own_targets) == len(known) else (),
  )  # fmt: skip


def check_batches(experiment: Experiment, phases: Sequence[Phase], mesh: jax.sharding.Mesh) -> None:
  """Raises UserError for batches that the mesh, microbatches or the method of an untuned experiment cannot have."""
  model, method = experiment.model, experiment.method
  for phase in phases:
    parallel.check_batch(phase.batch_size, mesh)
    check_microbatches(phase.batch_size, experiment.microbatches, mesh)
    check_compared_rows(model, phase.batch_size)
    if method:
      method.check_rows(model, stack_lengths(model, phase.lengths), experiment.packs)


def training_plan(experiment: Experiment, shapes: Any) -> TrainingPlan:
  """Returns what trains in a run, from the shapes of its parameters."""
  tied = experiment.model.config.tie_embeddings
  return plan_training(
    experiment.trainable, experiment.layer_rates, experiment.optimizer, shapes, experiment.steps, tied, TEACHER
  )


def check_rates(optimizer: Optimizer, steps: int) -> None:
  """Raises UserError for a learning rate that is negative or not finite."""
  for step in (0, steps // 2, steps - 1):
    rate = float(optimizer.learning_rate(jnp.asarray(step)))
    if not 0.0 <= rate < float("inf"):
      raise UserError(f"invalid learning rate at step {step + 1:,}: {rate:g}", expected="0 or more, and finite")
