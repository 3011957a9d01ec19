"""Finds the labels of a run's tasks, to choose its head before anything is compiled."""

from __future__ import annotations

from t5like.data import LabelForm
from t5like.errors import UserError
from t5like.experiments import seqio_process
from t5like.experiments.experiment import Experiment
from t5like.experiments.heads import attach_task_head, task_form
from t5like.experiments.token_caches import CachedTask, TokenCaches, can_build
from t5like.models.heads import WithHead
from t5like.vocabularies import load_vocabulary


def resolve_head(experiment: Experiment, members: list[CachedTask] | None = None) -> Experiment:
  """Returns the experiment with the head of its task; as it is if it needs none or has one.

  Labels are read from the token caches `members`, or from those on this machine, or from seqio in another process.
  """
  if not experiment.has_head or isinstance(experiment.model, WithHead):
    return experiment
  members = members or _cached(experiment)
  if members:
    forms = [(member.task, task_form(member.cache)) for member in members]
  elif can_build():
    tasks = experiment.mix or {experiment.task: 1.0}
    found = []
    for task in tasks:
      files = experiment.corpus_files if task == experiment.task else None
      found += seqio_process.label_forms(task, experiment.split, experiment.task_modules, files)
    forms = [(task, LabelForm.read(form)) for task, form in found]
  else:
    raise UserError(
      f"the labels of task {experiment.task!r} are unknown: it is not tokenized here, and seqio is not installed",
      try_=f"t5like cache {experiment.task} --vocabulary={experiment.vocabulary}",
    )
  return attach_task_head(experiment, forms)


def _cached(experiment: Experiment) -> list[CachedTask]:
  """Returns the token caches of the run's tasks that exist; [] if one is missing."""
  try:
    vocabulary = load_vocabulary(experiment.vocabulary)
    caches = TokenCaches(
      experiment.cache_dir, experiment.vocabulary, vocabulary, experiment.task_modules, experiment.corpus_files
    )
    found = [caches.open(task, experiment.split) for task in experiment.mix or [experiment.task]]
  except UserError:
    return []
  return [] if None in found else [member for members in found for member in members]
