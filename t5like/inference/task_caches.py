"""Token caches of tasks for inference and evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from t5like.experiments.corpus_files import CorpusFiles
from t5like.experiments.experiment import Experiment
from t5like.experiments.token_caches import TokenCaches
from t5like.files.storage import DEFAULT_ROOT
from t5like.inference.model import Model
from t5like.inference.prompts import has_training_config

_TARGETS = 62  # T5's, for pre-training runs, which have no target length for labeled tasks
_INPUTS = 512


def default_lengths(experiment: Experiment | None, positions: int | None) -> tuple[int, int]:
  """Returns the lengths of inputs and targets in tokens: as in training, or defaults for imported models.

  positions: the number of learned positions; None: no limit.
  """
  if has_training_config(experiment):
    return experiment.lengths["inputs"], experiment.lengths.get("targets", _TARGETS)
  return (_INPUTS if positions is None else max(positions - _TARGETS, positions // 2)), _TARGETS


def recorded_files(model: Model) -> dict[str, CorpusFiles]:
  """Returns the user's own files that a model was trained on, by task; they may not be here, or be changed."""
  run = model.experiment
  return {run.task: run.corpus_files} if model.has_training_config and run.corpus_files else {}


def task_caches(
  model: Model,
  cache_dir: str | None = None,
  modules: Sequence[str] = (),
  inputs_length: int | None = None,
  files: Mapping[str, str] | None = None,
) -> TokenCaches:
  """Returns the token caches in a folder, of own `files` by split if they are given.

  Caches, modules and files that a model directory names are not used, but tell which of several data sets of one name
  is meant.
  """
  inputs, targets = default_lengths(model.experiment, model.positions)
  return TokenCaches(
    cache_dir or DEFAULT_ROOT,
    model.vocabulary_name,
    model.vocabulary,
    modules,
    files,
    hint=model.source.task_hint(cache_dir),
    lengths={"inputs": inputs_length or inputs, "targets": targets},
    evaluation=True,
    recorded_files=recorded_files(model),
  )
