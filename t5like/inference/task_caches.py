"""The token caches of the tasks that a model answers."""

from __future__ import annotations

from collections.abc import Sequence

from t5like.experiments.experiment import Experiment
from t5like.experiments.token_caches import TokenCaches
from t5like.files.storage import DEFAULT_ROOT
from t5like.inference.model import Model
from t5like.inference.prompts import is_trained_elsewhere

_TARGETS = 62  # a pre-training run has no target length of its own for labeled tasks: T5's serves them all
_INPUTS = 512


def default_lengths(experiment: Experiment | None, positions: int | None) -> tuple[int, int]:
  """Tokens of inputs and targets: as in training, or what suits a model whose training is not known.

  positions: the number that the model has learned; None: no limit.
  """
  if not is_trained_elsewhere(experiment):
    return experiment.lengths["inputs"], experiment.lengths.get("targets", _TARGETS)
  return (_INPUTS if positions is None else max(positions - _TARGETS, positions // 2)), _TARGETS


def task_caches(
  model: Model, cache_dir: str | None = None, modules: Sequence[str] = (), inputs_length: int | None = None
) -> TokenCaches:
  """Returns the token caches under a folder. Caches, modules and files that a model directory names are not used."""
  inputs, targets = default_lengths(model.experiment, model.positions)
  return TokenCaches(
    cache_dir or DEFAULT_ROOT,
    model.vocabulary_name,
    model.vocabulary,
    modules,
    hint=model.task_hint(),
    lengths={"inputs": inputs_length or inputs, "targets": targets},
    evaluation=True,
  )
