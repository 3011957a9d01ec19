"""Groups rows of similar length into batches of few shapes: each shape is compiled, and padding costs compute."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from t5like import decoding

# Costs are in tokens read. A compilation takes seconds, in which a small model on a CPU reads about this many.
_COMPILATION_COST = 32_768
# A decoding step reads all weights, even for one row: it takes as long as reading this many tokens.
_DECODE_STEP_COST = 64
# At this length attention takes as long as the rest of a layer.
_QUADRATIC_LENGTH = 4_096


@dataclasses.dataclass(frozen=True)
class BatchShape:
  """The padded shape of a batch."""

  rows: int
  length: int

  @property
  def cost(self) -> float:
    return self.rows * self.length * (1 + self.length / _QUADRATIC_LENGTH)


@dataclasses.dataclass(frozen=True)
class RowBatch:
  rows: np.ndarray  # row indices
  shape: BatchShape


class BatchPlanner:
  """Assigns rows to batches at the lowest total cost of padding, compilations and decoding steps.

  Remembers the shapes it has returned: they are compiled already.
  """

  def __init__(self, batch_size: int, batch_shards: int = 1, max_length: int | None = None, decode_length: int = 0):
    """Initializes the planner.

    Args:
      batch_size: rows per batch.
      batch_shards: every batch has a multiple of this number of rows.
      max_length: the maximum row length.
      decode_length: the number of tokens decoded per row.
    """
    self._batch_size, self._batch_shards, self._max_length = batch_size, batch_shards, max_length
    self._decode_cost = _DECODE_STEP_COST * decode_length
    self._compiled_shapes: set[BatchShape] = set()

  def plan(self, lengths: Sequence[int]) -> list[RowBatch]:
    """Returns batches that cover every row once, longest rows first so that running out of memory shows at once."""
    sizes = np.array([decoding.bucket(length, at_most=self._max_length) for length in lengths], np.int64)
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
        self._compiled_shapes.add(shape)
        batches.append(RowBatch(rows, shape))
    return batches

  def shape_for(self, rows: Sequence[int], batch: RowBatch, longest: int) -> BatchShape:
    """Returns the shape for a batch, or for a part of it (rows of up to `longest` tokens) if the batch did not fit."""
    return batch.shape if len(rows) == len(batch.rows) else self.smallest(len(rows), longest)

  def smallest(self, rows: int, length: int) -> BatchShape:
    """Returns the smallest shape for rows of up to this length."""
    return BatchShape(
      self._batch_shards * decoding.bucket(-(-rows // self._batch_shards), smallest=1),
      decoding.bucket(length, at_most=self._max_length),
    )

  def _cheapest(self, rows: int, length: int) -> BatchShape:
    """Returns the cheaper shape for a partial batch: the exact one, compiled for it, or a larger known one."""
    exact = self.smallest(rows, length)
    fitting = [shape for shape in self._compiled_shapes if shape.rows >= exact.rows and shape.length >= length]
    costs = {shape: shape.cost for shape in sorted(fitting, key=dataclasses.astuple)}
    costs.setdefault(exact, exact.cost + _COMPILATION_COST)
    return min(costs, key=costs.get)

  def _lengths(self, sizes: np.ndarray) -> list[int]:
    """Returns the lengths to pad to, ascending: the cheapest segmentation of the lengths that occur."""
    present, counts = np.unique(sizes, return_counts=True)
    compiled = {shape.length for shape in self._compiled_shapes}
    best: list[tuple[float, list[int]]] = [(0.0, [])]  # for the n shortest: their cost, and the lengths chosen
    for end, length in enumerate(present.tolist(), 1):
      compile_cost = 0 if length in compiled else _COMPILATION_COST
      options = []
      for begin in range(end):
        rows = int(counts[begin:end].sum())
        batches = -(-rows // self._batch_size)
        cost = best[begin][0] + BatchShape(rows, length).cost + batches * self._decode_cost + compile_cost
        options.append((cost, [*best[begin][1], length]))
      best.append(min(options))
    return best[-1][1]
