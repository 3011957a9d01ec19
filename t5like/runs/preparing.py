"""Prepares a training run: finds every error it can before the first compilation."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t5like import data, parallel
from t5like.console import say
from t5like.decoding.options import decode_settings, with_defaults
from t5like.errors import UserError, nearest
from t5like.evaluation.answer_vocabulary import answer_vocabulary
from t5like.evaluation.heads.evaluator import check_head_scorable
from t5like.evaluation.scorable import check_scorable, head_scores
from t5like.evaluation.scoring import check_functions
from t5like.experiments import seqio_process as task_process
from t5like.experiments.characters import spelled
from t5like.experiments.compatibility import (
  check_carried,
  check_layout,
  check_splits,
  check_vocabulary,
  model_fingerprint,
  stack_lengths,
)
from t5like.experiments.corpus_files import are_several
from t5like.experiments.experiment import Experiment
from t5like.experiments.finetuning_notes import examples_note, finetuning_notes
from t5like.experiments.heads import check_can_score, check_compared_rows
from t5like.experiments.languages import special_tokens, task_languages
from t5like.experiments.phases import Phase, blank_batch, make_batches, run_phases
from t5like.experiments.streaming import StreamProcess, StreamSettings
from t5like.experiments.token_caches import CacheBuildFailed, CachedTask, MustStream, TokenCaches, can_build
from t5like.finetuning import TrainingPlan, plan_training
from t5like.finetuning.distillation import TEACHER
from t5like.inference.parameters import TunedBase, adapt, check_same_labels, find_parameters, refuse_foreign
from t5like.parallel.process_zero import check_same_on_all_processes
from t5like.runs.head_choice import resolve_head
from t5like.runs.pools import choose_pool
from t5like.runs.run_card import RunCard, describe_run
from t5like.runs.saved_parameters import (
  read_run_base,
  saved_selection,
  saved_spec,
  with_stored_dtypes,
  without_teacher,
)
from t5like.runs.starting_table import array_uses
from t5like.runs.teachers import Teacher, read_teacher, train_model
from t5like.runs.trained_flops import flops_shares
from t5like.training.checkpoints import (
  Restore,
  check_disk_space,
  check_restorable,
  checkpoint_bytes,
  find_checkpoint,
  find_episode,
  has_training_state,
  newest_intact,
)
from t5like.training.checkpoints.given_parameters import ArrayUse, GivenParameters
from t5like.training.microbatches import check_microbatches
from t5like.training.optimizers import Optimizer
from t5like.training.optimizers.selection import Selection
from t5like.training.records import model_dir as directory
from t5like.training.state import StateSpec, state_spec, with_optimizer
from t5like.vocabularies import Vocabulary, load_vocabulary


@dataclasses.dataclass(frozen=True)
class StartingPoint:
  """The source of a run's initial state."""

  description: str
  checkpoint: Path | GivenParameters | None = None  # None: random initialization
  resumes: bool = False  # restores optimizer and step, too
  options: Restore = Restore()
  verified: bool = False  # its checksums were compared just now
  episode: int = 0  # of the training plan, whose optimizer state it has
  uses: Sequence[ArrayUse] = ()  # of its parameters and the run's
  base: TunedBase | None = None  # of a run that saves only what it trains

  @property
  def step(self) -> int:
    return int(self.checkpoint.name) if self.resumes else 0


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
    """The tasks that are evaluated by decoding: all but corpora."""
    return [member for member in self.evaluated if not member.cache.is_corpus]


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
  for phase in phases:
    parallel.check_batch(phase.batch_size, mesh)
    check_microbatches(phase.batch_size, experiment.microbatches, mesh)
    check_compared_rows(plain.model, phase.batch_size)
    if experiment.method:
      experiment.method.check_rows(plain.model, stack_lengths(plain.model, phase.lengths), experiment.packs)
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
    try:
      members = open_members(experiment, vocabulary, rates, experiment.split, dry_run)
    except MustStream as reason:
      if experiment.mix or experiment.phases:  # not supported by streaming
        raise
      experiment, stream_reason = dataclasses.replace(experiment, stream=True), reason.why
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


def with_imported_modules(experiment: Experiment) -> Experiment:
  """Returns an experiment whose tasks other processes find, too: in a notebook, an import may have registered them."""
  if experiment.task_modules:
    return experiment
  tasks = {experiment.task, *experiment.mix, *experiment.eval_tasks}
  own = {experiment.task} if experiment.corpus_files else set()
  modules = task_process.modules_for(tasks - own)
  if not modules:
    return experiment
  changed = dataclasses.replace(experiment, task_modules=modules)
  text = experiment.config_text and f"{experiment.config_text}\n\ntrain.task_modules = {modules}\n"
  object.__setattr__(changed, "config_text", text)
  return changed


def note_missing_modules(experiment: Experiment) -> None:
  """Notes modules of tasks that are not on this machine: no error, as training reads what was tokenized elsewhere."""
  for module in experiment.task_modules:
    package = module.partition(".")[0]
    if not package or importlib.util.find_spec(package) is None:
      say(f"note: no task module {module!r} here (TASK_MODULES): its tasks are used as they were tokenized")


def training_plan(experiment: Experiment, shapes: Any) -> TrainingPlan:
  """Returns what trains in a run, from the shapes of its parameters."""
  tied = experiment.model.config.tie_embeddings
  return plan_training(
    experiment.trainable, experiment.layer_rates, experiment.optimizer, shapes, experiment.steps, tied, TEACHER
  )


def expected_members(experiment: Experiment) -> list[tuple[str, float, int | None]]:
  """Returns task, share and size (from seqio) of the tasks that a run would read, before they are tokenized."""
  if experiment.corpus_files or not can_build():
    return []
  rates = experiment.mix or {experiment.task: 1.0}
  temperature = experiment.mixing_temperature or 1.0
  return task_process.shares(rates, experiment.split, experiment.task_modules, temperature)


def without_corpus(experiment: Experiment) -> dict[str, float]:
  """Returns the labeled tasks of a mix: its corpus is for training only."""
  return {task: rate for task, rate in experiment.mix.items() if not experiment.objective or task != experiment.task}


def evaluated_tasks(experiment: Experiment, rates: Mapping[str, float]) -> Mapping[str, float]:
  """Returns the tasks that are evaluated, and their rates: EVAL_TASKS, the labeled tasks of a mix, or those trained."""
  return dict.fromkeys(experiment.eval_tasks, 1.0) or without_corpus(experiment) or rates


def check_corpus_splits(experiment: Experiment, rates: Mapping[str, float]) -> None:
  """Raises UserError, before anything is tokenized, if CORPUS_FILES lack a split that the run reads."""
  files, splits = experiment.corpus_files, {"train.split": experiment.split}
  if not files or are_several(files):
    return
  if experiment.eval_split and experiment.task in evaluated_tasks(experiment, rates):
    splits["EVAL_SPLIT"] = experiment.eval_split
  for name, split in splits.items():
    if split not in files:
      others = [f"--gin.{name}={other}" for other in files if other not in splits.values()]
      none = ["--gin.EVAL_SPLIT='' (no evaluations)"] if name == "EVAL_SPLIT" else []
      raise UserError(
        f"CORPUS_FILES has no split {split!r}",
        requested_by=name,
        known=", ".join(files),
        try_=", or ".join(others + none),
      )


def open_members(
  experiment: Experiment,
  vocabulary: Vocabulary,
  rates: Mapping[str, float],
  split: str,
  dry_run: bool,
  evaluation: bool = False,
) -> list[CachedTask] | None:
  """Opens or builds the token caches of tasks; returns None if one is missing in a dry run."""
  members, power = [], 1 / (experiment.mixing_temperature or 1.0)
  for task, rate in rates.items():
    files = experiment.corpus_files if task == experiment.task else None  # they replace the text of TASK only
    caches = TokenCaches(
      experiment.cache_dir,
      experiment.vocabulary,
      vocabulary,
      experiment.task_modules,
      files,
      lengths=experiment.lengths,
      evaluation=evaluation,
      pool=functools.partial(choose_pool, experiment),
    )
    found = (caches.open if dry_run else caches.open_or_build)(task, split)
    if found is None:
      return None
    found = [dataclasses.replace(member, rate=member.rate**power) for member in found]
    # In a mix, the rate of a registered mixture is divided among its tasks.
    share = rate**power / sum(member.rate for member in found) if experiment.mix else 1.0
    members += [dataclasses.replace(member, rate=share * member.rate) for member in found]
  return members


def open_evaluated(
  experiment: Experiment, vocabulary: Vocabulary, rates: Mapping[str, float], dry_run: bool
) -> list[CachedTask] | None:
  """Returns the tasks that the run evaluates, and their caches; None if one is missing in a dry run."""
  if not experiment.eval_split:
    return []
  rates = evaluated_tasks(experiment, rates)
  try:
    return open_members(experiment, vocabulary, rates, experiment.eval_split, dry_run, evaluation=True)
  except CacheBuildFailed as error:
    if f"has no split {experiment.eval_split!r}" not in error.lines["because"]:
      raise
    raise UserError(error.what, **error.lines, try_="--gin.EVAL_SPLIT='' (no evaluations)") from None


def choose_starting_point(
  experiment: Experiment,
  model_dir: Path,
  specs: Sequence[StateSpec],
  fingerprint: dict[str, Any],
  move: bool = True,
  init: GivenParameters | None = None,
  base: TunedBase | None = None,
) -> StartingPoint:
  """Returns the source of the initial state; raises UserError for a checkpoint that does not match.

  In this order: the run's own newest intact checkpoint, RESTORE_FROM, parameters in memory (`init`), INIT_FROM (of
  t5like or another library), random initialization. Newer, damaged checkpoints are reported and (`move`) set aside.
  `specs` are of what checkpoints hold. A run with a `base` starts from it, and adds to it what a checkpoint holds.
  """
  newest = newest_intact(model_dir, move)
  for message in newest.messages:
    say(message)
  options = experiment.restore
  if newest.checkpoint is not None:
    start = StartingPoint("its own checkpoint of step {step}", newest.checkpoint, verified=True)
    # A fresh optimizer would reset at every restart: that needs another directory.
    options = dataclasses.replace(options, parameters_only=False)
  elif experiment.restore_from:
    refuse_foreign(experiment.restore_from)
    checkpoint = find_checkpoint(experiment.restore_from)
    start = StartingPoint("the checkpoint {checkpoint}, with optimizer and step", checkpoint)
  elif base:
    uses = base.parameters.uses
    return StartingPoint(f"the frozen parameters of {base.parameters}", base=base, uses=uses)
  elif init or experiment.init_from:
    options = dataclasses.replace(options, parameters_only=True)
    source = init or find_parameters(experiment.init_from, experiment.model)
    vocabulary = load_vocabulary(experiment.vocabulary)
    source = adapt(source, experiment.model, vocabulary, specs[0], fingerprint, options)
    start = StartingPoint("{checkpoint}", source)
  else:
    return StartingPoint("random initialization")
  resumes = not options.parameters_only and has_training_state(start.checkpoint)
  if resumes:
    check_same_labels(start.checkpoint, experiment.model)
  episode = find_episode(start.checkpoint, specs) if resumes else 0
  check_restorable(start.checkpoint, specs[episode], fingerprint, options)
  text = start.description
  if not resumes:
    what = "the converted parameters in this directory" if newest.checkpoint else "the parameters of {checkpoint}"
    text = f"{what}, optimizer and step fresh"
  description = text.format(checkpoint=start.checkpoint, step=getattr(start.checkpoint, "name", ""))
  uses = array_uses(start.checkpoint, specs[episode])
  known = dict(description=description, options=options, resumes=resumes, episode=episode, uses=uses, base=base)
  return dataclasses.replace(start, **known)


def check_rates(optimizer: Optimizer, steps: int) -> None:
  """Raises UserError for a learning rate that is negative or not finite."""
  for step in (0, steps // 2, steps - 1):
    rate = float(optimizer.learning_rate(jnp.asarray(step)))
    if not 0.0 <= rate < float("inf"):
      raise UserError(f"invalid learning rate at step {step + 1:,}: {rate:g}", expected="0 or more, and finite")


def check_evaluation(experiment: Experiment, members: list[CachedTask], vocabulary: Vocabulary) -> None:
  """Raises UserError for impossible evaluations and for metrics that the run does not compute."""
  scores: dict[str, list[str]] = {}  # by kind of evaluation; []: any
  for member in members:
    kind = f"eval/{member.task}/"
    if experiment.has_head:
      check_can_score(experiment.model.head, data.LabelForm.of(member.cache), member.task)
      check_head_scorable(member.cache)
      check_functions(member.cache.scoring, experiment.task_modules)
      scores[kind] = head_scores(member.cache)
    elif not member.cache.is_corpus:
      scores[kind] = check_scorable(member.cache, experiment.task_modules, experiment.eval_examples)
      answer_vocabulary(member.cache, vocabulary)  # raises UserError for answers it cannot read
      if experiment.decoding:
        known_length = {"max_length": experiment.lengths["targets"]} if experiment.lengths.get("targets") else {}
        decode_settings(with_defaults({}, known_length | dict(experiment.decoding)), vocabulary)  # raises UserError
    elif experiment.eval_period:
      raise UserError(
        f"task {member.task!r} is a corpus: it has no targets to score by decoding",
        try_=f"--gin.EVAL_PERIOD=0 --gin.EVAL_LOSS_PERIOD={experiment.eval_period}",
      )
  scores |= {f"eval_loss/{member.task}/": [] for member in members if experiment.eval_loss_period}
  metrics = {"KEEP": experiment.keep.metric, "EARLY_STOPPING": experiment.early_stopping.metric}
  metrics |= {type(experiment.trainable).__name__: getattr(experiment.trainable, "metric", "")}
  for option, metric in metrics.items():
    kind = next((kind for kind in scores if metric.startswith(kind)), "")
    known = [f"{kind}{name}" for name in scores.get(kind, ())]
    # A score of a class has a longer name, and may be of no example that was tried: f1, f1_person.
    if metric and (not kind or (known and not any(f"{metric}_".startswith(f"{name}_") for name in known))):
      raise UserError(
        f"{option}.metric = {metric!r} is not computed in this run",
        expected=" or ".join(known or [f"{kind}..." for kind in scores]) or "EVAL_SPLIT, the split to evaluate",
        nearest=nearest(metric, known or [f"{kind}{metric.rpartition('/')[2]}" for kind in scores]),
        hint="METRIC sets it in the files of gin/finetune",
      )
