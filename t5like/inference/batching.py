"""Rows of like length in batches of few shapes: every shape is compiled, and padding is read like text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from t5like import decoding

# Costs are counted in tokens read. A compilation takes some seconds, in which a small model on a CPU reads this many.
_COMPILATION = 32_768
# A step of decoding reads all weights, however few rows there are: it takes as long as reading this many tokens.
_DECODE_STEP = 64
# At this length attention takes as long as all the rest of a layer; its share grows with the length.
_EVEN = 4_096


@dataclasses.dataclass(frozen=True)
class BatchShape:
  """What a batch is padded to."""

  rows: int
  length: int

  @property
  def cost(self) -> float:
    return self.rows * self.length * (1 + self.length / _EVEN)


@dataclasses.dataclass(frozen=True)
class RowBatch:
  rows: np.ndarray  # their numbers
  shape: BatchShape


class BatchPlanner:
  """Deals rows out to batches so that padding, compilations and steps of decoding together cost least.

  It remembers the shapes it has given out: those are compiled already.
  """

  def __init__(self, batch_size: int, ways: int = 1, at_most: int | None = None, written: int = 0):
    """`ways` divides the rows of every batch, `at_most` is the longest that a row can be, and `written` the number of
    tokens that are decoded for it."""
    self._batch_size, self._ways, self._at_most = batch_size, ways, at_most
    self._per_batch = _DECODE_STEP * written
    self._known: set[BatchShape] = set()

  def plan(self, lengths: Sequence[int]) -> list[RowBatch]:
    """All rows once, the longest first, so that what does not fit fails at once."""
    sizes = np.array([decoding.bucket(length, at_most=self._at_most) for length in lengths], np.int64)
    order = np.argsort(-np.asarray(lengths, np.int64), kind="stable")
    chosen = np.array(self._lengths(sizes), np.int64)
    padded = chosen[np.searchsorted(chosen, sizes)]  # [rows]
    batches = []
    for length in chosen[::-1].tolist():
      group = order[padded[order] == length]
      for first in range(0, len(group), self._batch_size):
        rows = group[first : first + self._batch_size]
        is_full = len(rows) == self._batch_size
        shape = self.smallest(len(rows), length) if is_full else self._cheapest(len(rows), length)
        self._known.add(shape)
        batches.append(RowBatch(rows, shape))
    return batches

  def shape_for(self, rows: Sequence[int], batch: RowBatch, longest: int) -> BatchShape:
    """The shape of a batch, or of a part of it, with rows of up to `longest`, where the whole had no room."""
    return batch.shape if len(rows) == len(batch.rows) else self.smallest(len(rows), longest)

  def smallest(self, rows: int, length: int) -> BatchShape:
    """The smallest shape that holds rows of up to this length."""
    return BatchShape(
      self._ways * decoding.bucket(-(-rows // self._ways), smallest=1), decoding.bucket(length, at_most=self._at_most)
    )

  def _cheapest(self, rows: int, length: int) -> BatchShape:
    """Of shapes for rows that fill no batch: one of their own, with its compilation, or a larger one that is known."""
    own = self.smallest(rows, length)
    fitting = [shape for shape in self._known if shape.rows >= own.rows and shape.length >= length]
    costs = {shape: shape.cost for shape in sorted(fitting, key=dataclasses.astuple)}
    costs.setdefault(own, own.cost + _COMPILATION)
    return min(costs, key=costs.get)

  def _lengths(self, sizes: np.ndarray) -> list[int]:
    """Of the lengths that occur, ascending, those to pad to: the cheapest way to cut their range into segments."""
    present, counts = np.unique(sizes, return_counts=True)
    compiled = {shape.length for shape in self._known}
    best: list[tuple[float, list[int]]] = [(0.0, [])]  # for the n shortest: what they cost, and the lengths chosen
    for end, length in enumerate(present.tolist(), 1):
      fixed = 0 if length in compiled else _COMPILATION
      options = []
      for begin in range(end):
        rows = int(counts[begin:end].sum())
        batches = -(-rows // self._batch_size)
        cost = best[begin][0] + BatchShape(rows, length).cost + batches * self._per_batch + fixed
        options.append((cost, [*best[begin][1], length]))
      best.append(min(options))
    return best[-1][1]
