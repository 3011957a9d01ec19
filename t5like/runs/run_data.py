"""Opens the token caches of a run's tasks, and checks that their evaluations are possible."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Mapping, Sequence

from t5like import data
from t5like.console import say
from t5like.decoding.options import decode_settings, with_defaults
from t5like.errors import UserError, nearest
from t5like.evaluation.answer_vocabulary import answer_vocabulary
from t5like.evaluation.heads.evaluator import check_head_scorable
from t5like.evaluation.scorable import check_scorable, has_metrics, head_scores
from t5like.evaluation.scoring import check_functions
from t5like.experiments import seqio_process as task_process
from t5like.experiments.corpus_files import are_several
from t5like.experiments.experiment import Experiment
from t5like.experiments.heads import check_can_score
from t5like.experiments.token_caches import CacheBuildFailed, CachedTask, MustStream, TokenCaches, can_build
from t5like.runs.pools import choose_pool
from t5like.vocabularies import Vocabulary


def with_imported_modules(experiment: Experiment) -> Experiment:
  """Returns an experiment whose tasks other processes find, too: in a notebook, an import may have registered them."""
  if experiment.task_modules:
    return experiment
  tasks = {experiment.task, *experiment.mix, *experiment.eval_tasks}
  own = {experiment.task} if experiment.corpus_files else set()
  modules = task_process.modules_for(tasks - own)
  return experiment.changed(f"train.task_modules = {modules}", task_modules=modules) if modules else experiment


def note_missing_modules(experiment: Experiment) -> None:
  """Notes modules of tasks that are not on this machine: no error, as training reads what was tokenized elsewhere."""
  for module in experiment.task_modules:
    package = module.partition(".")[0]
    if not package or importlib.util.find_spec(package) is None:
      say(f"note: no task module {module!r} here (TASK_MODULES): its tasks are used as they were tokenized")


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


def open_trained(
  experiment: Experiment, vocabulary: Vocabulary, rates: Mapping[str, float], dry_run: bool
) -> tuple[Experiment, list[CachedTask] | None, str]:
  """Opens what a run trains on; returns an experiment that streams, and why, if a task cannot have a token cache."""
  try:
    return experiment, open_members(experiment, vocabulary, rates, experiment.split, dry_run), ""
  except MustStream as reason:
    if experiment.mix or experiment.phases:  # not supported by streaming
      raise
    return experiment.changed("train.stream = True", stream=True), None, reason.why


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


def scored_members(members: Sequence[CachedTask]) -> list[CachedTask]:
  """Returns the tasks that are evaluated by decoding: no corpora, and among several none without metrics."""
  labeled = [member for member in members if not member.cache.is_corpus]
  return [member for member in labeled if has_metrics(member.cache)] or labeled


def check_evaluation(experiment: Experiment, members: list[CachedTask], vocabulary: Vocabulary) -> None:
  """Raises UserError for impossible evaluations and for metrics that the run does not compute."""
  corpora, scored = [member for member in members if member.cache.is_corpus], scored_members(members)
  known = {member.task for member in (*corpora, *scored)}
  if unscored := [member.task for member in members if member.task not in known]:
    say(f"note: not evaluated, as they have no metrics: {', '.join(unscored)}")
  scores: dict[str, list[str]] = {}  # by kind of evaluation; []: any
  for member in (*scored, *corpora):
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
