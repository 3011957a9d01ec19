"""All that is to be seen of a task before it is used: its first rows at every stage, and what a run makes of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import seqio

from t5like.errors import UserError
from t5like.objectives import Lengths, Objective, find_objective, split_task_name
from t5like.objectives.worked_examples import CorruptedRow
from t5like.tasks.caching.cache_kind import CacheKind, cache_kind
from t5like.tasks.checks.examples import is_corpus
from t5like.tasks.encoders.checks import is_encoder_form
from t5like.tasks.encoders.forms import encoder_vocabulary
from t5like.tasks.missing_data import data_explained
from t5like.tasks.previews import Preview, corrupted, finished, previews
from t5like.tasks.registry import check_split
from t5like.tasks.seqio_vocabularies import as_seqio, own_vocabulary
from t5like.vocabularies import Vocabulary, load_vocabulary

DEFAULT_INPUTS, DEFAULT_TARGETS = 512, 114


class TaskPreview:
  """The first examples of a task, with a vocabulary and, where it is a corpus, an objective."""

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
    """Takes names: of a vocabulary (default: t5, bert_uncased for encoders) and of an objective for a corpus
    (default: that in the name of the task, or span_corruption). `lengths` are the tokens of a row."""
    with data_explained(task):
      check_split(task, split)
    if objective and not is_corpus(task):
      raise UserError(
        f"{task.name!r} has targets of its own: an objective is for a corpus", try_="leave out --objective"
      )
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
      raise UserError(f"{self.task.name!r} has a vocabulary of its own", try_="leave out --vocabulary")
    return "of its own", encoder_vocabulary(self.task.output_features)

  @functools.cached_property
  def kept(self) -> CacheKind:
    """What a token cache keeps of the task."""
    with data_explained(self.task):
      return cache_kind(self.task, self.split)

  def rows(self) -> Iterator[Preview]:
    """Yields the first rows of the source, and the examples that become of them."""
    return previews(self.task, self.split, self._count, self._lengths["inputs"])

  def finished(self) -> list[dict[str, Any]]:
    """Returns the first examples after all steps, as tokens; they need not be those of the first rows."""
    return finished(self.task, self.split, self.vocabulary, self._count, self._lengths)

  def tokens(self, example: Mapping[str, Any]) -> dict[str, list[int]]:
    """Returns the tokens of an example's text features, as a token cache keeps them and a batch closes them."""
    found = {}
    for name, feature in self.task.output_features.items():
      if isinstance(example.get(name), str):
        found[name] = self.vocabulary.encode(example[name]) + [self.vocabulary.eos_id] * feature.add_eos
    return found

  def corrupted(self) -> tuple[Lengths, list[CorruptedRow]] | None:
    """Returns what the objective makes of the first rows; None for labeled examples.

    Also None without sentinels, where the default objective has nothing to work with; one that was given says so.
    """
    objective = self.objective
    if objective is None or not (self.vocabulary.sentinel_ids or self._is_masked or self._objective_is_given):
      return None
    lengths = objective.lengths(self._lengths["inputs"])
    rows = corrupted(self.task, self.split, self.vocabulary, objective, lengths, self._count, self.seed)
    return lengths, rows

  def vocabulary_notes(self) -> list[str]:
    """Returns lines that say where the vocabulary that the task was registered with is not the one shown."""
    features = self.task.output_features
    named = {name: features[name].vocabulary for name in ("inputs", "targets") if name in features}
    if own_vocabulary(features) is None:
      listed = ", ".join(f"{name} {_vocabulary_text(v)}" for name, v in named.items())
      return [
        f"vocabularies of its own: {listed}; the ids of a PassThroughVocabulary, and of two different ones, are kept"
      ]
    own, shown = next(iter(named.values())), self.vocabulary_name
    if own == as_seqio(self.vocabulary):
      return []
    return [f"it was registered with {_vocabulary_text(own)}; a run uses the vocabulary of its model, here {shown}"]


def _vocabulary_text(vocabulary: seqio.Vocabulary) -> str:
  file = getattr(vocabulary, "_sentencepiece_model_file", "") or ""
  return f"{type(vocabulary).__name__}({file}, {vocabulary.vocab_size:,} ids)".replace("(, ", "(")
