"""Rows by number: any row of any epoch is a function of the seed and its number.

A source has `rows_per_epoch` rows and answers `rows(numbers)`; numbers count on over all epochs.
Nothing is remembered between calls, so there is nothing to save, and hosts, threads and restarts
all see the same rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np

from t5like.data.cache import TokenCache
from t5like.data.document_plans import RowPlan, plan_rows
from t5like.data.first_tokens import FirstTokens
from t5like.data.layouts import LAYOUTS, Batch, Examples, causal, closed, encoder
from t5like.data.mixing import mixture_rows
from t5like.data.packing import PackingPlan, plan_packing
from t5like.errors import UserError
from t5like.objectives import Draws, Lengths, Masked, Objective, Pairs, Ragged, Rows, SpecialTokens
from t5like.objectives.randomness import combine, permute

_ORDER = 0x5487FF1E  # what a random number is for: the order of rows ...
_OTHER = 0x07E2  # ... or the row of another document


class RowSource(Protocol):
  @property
  def rows_per_epoch(self) -> int: ...

  def rows(self, numbers: np.ndarray) -> Batch: ...


def shuffled(numbers: np.ndarray, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Epochs and rows of running numbers; an epoch visits every row exactly once, in an order of its own."""
  epochs = numbers // rows
  return epochs, permute(numbers % rows, rows, combine(seed, epochs, _ORDER))


@dataclasses.dataclass(frozen=True)
class CorpusRows:
  """A corpus in rows of `lengths.raw` tokens, corrupted afresh every epoch."""

  cache: TokenCache | FirstTokens
  objective: Objective
  lengths: Lengths
  special: SpecialTokens
  seed: int
  layout: str = "encoder_decoder"
  # Marked as rows of one example each, so that they can stand in a batch with packed ones.
  as_packed: bool = False

  def __post_init__(self):
    if self.rows_per_epoch < 1:
      raise UserError(
        f"the corpus has {self.cache.tokens} tokens, fewer than one row of {self.lengths.raw}",
        cache=self.cache.folder,
        try_="a shorter LENGTHS['inputs'], or more text",
      )

  @cached_property
  def plan(self) -> RowPlan:
    return plan_rows(self.cache, self.objective, self.lengths.raw, self.special)

  @property
  def rows_per_epoch(self) -> int:
    return self.plan.rows

  def rows(self, numbers: np.ndarray) -> Batch:
    epochs, rows = shuffled(numbers, self.rows_per_epoch, self.seed)
    text = self.plan.read(rows)
    others = None
    if self.objective.needs_others:
      others = self.plan.read(self.plan.of_other_documents(rows, combine(self.seed, epochs, rows, _OTHER)))
    draws = Draws.of(self.seed, epochs, rows)
    result = self.objective(Rows(text.tokens, text.lengths, others), draws, self.special)
    return to_batch(result, self.objective, self.lengths, self.special, self.layout, self.as_packed)


def to_batch(
  made: Pairs | Masked,
  objective: Objective,
  lengths: Lengths,
  special: SpecialTokens,
  layout: str,
  as_packed: bool = False,
) -> Batch:
  """The batch of what an objective made, for a model of this layout."""
  if objective.makes == "masked":
    return encoder(made, lengths.inputs)
  if objective.shifted:
    return causal(made.targets, lengths)
  inputs, targets = made.inputs, made.targets
  if objective.closed:
    inputs = closed(inputs, lengths.inputs, special.eos) if lengths.inputs else inputs
    targets = closed(targets, lengths.targets, special.eos)
  row = np.arange(len(targets.lengths)) if as_packed else None
  return LAYOUTS[layout](Examples(inputs, targets, len(targets.lengths), row), lengths, special.start)


@dataclasses.dataclass(frozen=True)
class ExampleRows:
  """Labeled examples, one a row or packed, shuffled every epoch."""

  cache: TokenCache
  lengths: Lengths
  special: SpecialTokens
  seed: int
  layout: str = "encoder_decoder"
  pack: bool = False

  @cached_property
  def plan(self) -> PackingPlan:
    """Which examples share a row; lengths are those after cutting, end-of-sequence included."""
    room = np.array([self.lengths.inputs, self.lengths.targets])
    sides = [example_lengths(self.cache, feature) for feature in ("inputs", "targets")]
    return plan_packing(np.minimum(np.stack(sides, axis=1), room), room)

  @property
  def rows_per_epoch(self) -> int:
    return self.plan.rows if self.pack else self.cache.examples

  @property
  def efficiency(self) -> float:
    """The share of input tokens that are no padding."""
    tokens = np.minimum(example_lengths(self.cache, "inputs"), self.lengths.inputs).sum()
    return float(tokens / (self.rows_per_epoch * self.lengths.inputs))

  def rows(self, numbers: np.ndarray) -> Batch:
    epochs, rows = shuffled(numbers, self.rows_per_epoch, self.seed)
    row = None
    if self.pack:
      rows, row = self.plan.fill(rows, epochs, self.seed)
    examples = dataclasses.replace(
      read_examples(self.cache, rows, self.lengths, self.special), rows=len(numbers), row=row
    )
    return LAYOUTS[self.layout](examples, self.lengths, self.special.start)


def read_examples(cache: TokenCache, numbers: np.ndarray, lengths: Lengths, special: SpecialTokens) -> Examples:
  """Inputs and targets of some examples, cut and closed by end-of-sequence as their task has it."""
  inputs, targets = (
    _read(cache, feature, numbers, length, special.eos)
    for feature, length in (("inputs", lengths.inputs), ("targets", lengths.targets))
  )
  return Examples(inputs, targets, len(numbers))


def _read(cache: TokenCache, feature: str, numbers: np.ndarray, length: int, eos: int) -> Ragged:
  if feature not in cache.features:  # a decoder reads targets alone, too
    return Ragged(np.zeros((len(numbers), 0), np.int32), np.zeros(len(numbers), np.int64))
  texts, closing = cache.texts(feature, numbers), cache.closing(feature)
  if closing == "after_trim":
    return closed(texts, length, eos)
  if closing == "before_trim":
    texts = closed(texts, texts.tokens.shape[1] + 1, eos)
  return Ragged(texts.tokens[:, :length], np.minimum(texts.lengths, length))


def example_lengths(cache: TokenCache, feature: str) -> np.ndarray:
  """[examples] the tokens of a feature, with end-of-sequence where there is one; not cut."""
  if feature not in cache.features:
    return np.zeros(cache.examples, np.int64)
  return cache.lengths(feature) + (cache.closing(feature) != "none")


@dataclasses.dataclass(frozen=True)
class MixtureRows:
  """Rows of several sources at given rates; each source goes through its own epochs."""

  sources: Sequence[RowSource]
  rates: Sequence[float]

  @property
  def rows_per_epoch(self) -> int:
    """All rows of all sources."""
    return sum(source.rows_per_epoch for source in self.sources)

  def rows(self, numbers: np.ndarray) -> Batch:
    task, own = mixture_rows(numbers, self.rates)
    batch: Batch = {}
    for index in np.unique(task):
      mine = np.flatnonzero(task == index)
      for name, array in self.sources[index].rows(own[mine]).items():
        batch.setdefault(name, np.zeros((len(numbers), *array.shape[1:]), array.dtype))[mine] = array
    return batch
