"""A preview of a task before training: its first rows at every stage, and what a run reads."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import seqio

from t5like.errors import UserError
from t5like.objectives import Lengths, Objective, find_objective, split_task_name
from t5like.objectives.worked_examples import CorruptedRow
from t5like.tasks.caching import finished_tokens
from t5like.tasks.caching.cache_kind import CacheKind, cache_kind
from t5like.tasks.checks.examples import is_corpus
from t5like.tasks.encoders.checks import is_encoder_form
from t5like.tasks.encoders.forms import encoder_vocabulary
from t5like.tasks.missing_data import explain_data_errors
from t5like.tasks.previews import Preview, corrupted, finished_examples, previews
from t5like.tasks.registry import check_split
from t5like.tasks.seqio_vocabularies import as_seqio, from_seqio, own_vocabulary
from t5like.vocabularies import Vocabulary, load_vocabulary

DEFAULT_INPUTS, DEFAULT_TARGETS = 512, 114


class TaskPreview:
  """The first examples of a task, with a vocabulary and, for a corpus, an objective."""

  def __init__(
    self,
    task: seqio.Task,
    split: str = "train",
    count: int = 1,
    vocabulary: str | None = None,
    objective: str | None = None,
    lengths: Mapping[str, int] | None = None,
    seed: int = 0,
  ):
    """Takes the names of a vocabulary (default: t5, bert_uncased for encoders) and, for a corpus, of an objective
    (default: the one in the task's name, or span_corruption). `lengths` is the row length in tokens."""
    with explain_data_errors(task):
      check_split(task, split)
    if objective and not is_corpus(task):
      raise UserError(f"{task.name!r} defines its own targets; an objective is for a corpus", try_="omit --objective")
    self.task, self.split, self._count, self.seed = task, split, count, seed
    self._lengths = {"inputs": DEFAULT_INPUTS, "targets": DEFAULT_TARGETS, **(lengths or {})}
    self.is_encoder_form = is_encoder_form(task)
    self.objective_name = objective or split_task_name(task.name)[1] or "span_corruption"
    self.objective: Objective | None = find_objective(self.objective_name) if is_corpus(task) else None
    self._is_masked = self.objective is not None and self.objective.makes == "masked"
    self._objective_is_given = bool(objective)
    self.vocabulary_name, self.vocabulary = self._find_vocabulary(vocabulary)

  def _find_vocabulary(self, given: str | None) -> tuple[str, Vocabulary]:
    if not self.is_encoder_form:
      name = given or ("bert_uncased" if self._is_masked else "t5")
      return name, load_vocabulary(name)
    if given:
      raise UserError(f"{self.task.name!r} has its own vocabulary", try_="omit --vocabulary")
    return "defined by the task", encoder_vocabulary(self.task.output_features)

  def feature_vocabulary(self, feature: str) -> tuple[Vocabulary | None, str]:
    """Returns the vocabulary of a finished feature and its name; None for plain ids."""
    own = finished_tokens.for_model(self.task, self.vocabulary).output_features[feature].vocabulary
    if isinstance(own, seqio.PassThroughVocabulary):
      return None, "plain ids"
    try:
      found = from_seqio(own)
    except UserError:  # a class of the user's
      return None, type(own).__name__
    same = found.fingerprint == self.vocabulary.fingerprint
    return (self.vocabulary, self.vocabulary_name) if same else (found, type(own).__name__)

  @functools.cached_property
  def cache_kind(self) -> CacheKind:
    """Returns what a token cache stores of the task."""
    with explain_data_errors(self.task):
      return cache_kind(self.task, self.split)

  def rows(self) -> Iterator[Preview]:
    """Yields the first rows of the source with the examples made from them."""
    return previews(self.task, self.split, self._count, self._lengths["inputs"])

  def finished(self) -> list[dict[str, Any]]:
    """Returns the first examples after all preprocessors, as tokens; they need not come from the first rows."""
    return finished_examples(self.task, self.split, self.vocabulary, self._count, self._lengths)

  def tokens(self, example: Mapping[str, Any]) -> dict[str, list[int]]:
    """Returns the tokens of an example's text features, with EOS as in a batch."""
    found = {}
    for name, feature in self.task.output_features.items():
      if isinstance(example.get(name), str):
        found[name] = self.vocabulary.encode(example[name]) + [self.vocabulary.eos_id] * feature.add_eos
    return found

  def corrupted(self) -> tuple[Lengths, list[CorruptedRow]] | None:
    """Returns the objective's lengths and the first corrupted rows; None for labeled examples.

    Also None if the vocabulary has no sentinels for the default objective; an explicit objective raises instead.
    """
    objective = self.objective
    if objective is None or not (self.vocabulary.sentinel_ids or self._is_masked or self._objective_is_given):
      return None
    lengths = objective.lengths(self._lengths["inputs"])
    rows = corrupted(self.task, self.split, self.vocabulary, objective, lengths, self._count, self.seed)
    return lengths, rows

  def vocabulary_notes(self) -> list[str]:
    """Returns notes on differences between the task's registered vocabulary and the one shown."""
    features = self.task.output_features
    named = {name: features[name].vocabulary for name in ("inputs", "targets") if name in features}
    if own_vocabulary(features) is None:
      listed = ", ".join(f"{name} {_vocabulary_text(v)}" for name, v in named.items())
      return [f"its own vocabularies: {listed}; a run keeps pass-through ids, and vocabularies that differ"]
    own, shown = next(iter(named.values())), self.vocabulary_name
    if own == as_seqio(self.vocabulary):
      return []
    return [f"registered with {_vocabulary_text(own)}; a run uses the vocabulary of its model, here {shown}"]


def _vocabulary_text(vocabulary: seqio.Vocabulary) -> str:
  file = getattr(vocabulary, "_sentencepiece_model_file", "") or ""
  return f"{type(vocabulary).__name__}({file}, {vocabulary.vocab_size:,} ids)".replace("(, ", "(")
