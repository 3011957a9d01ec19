"""Assigns the rows of a mixture to its tasks, spread evenly at the given rates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_BITS = np.uint64(32)
_LOW = np.uint64(2**32 - 1)


def mixture_rows(numbers: np.ndarray, rates: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
  """Returns the task of each mixture row [rows], and the row's number within that task.

  Each task in turn takes its share of the rows left by the previous ones, spread evenly: of the first
  n rows it gets its rate times n, plus or minus one for each task before it. Access is random: the cost
  does not depend on the row number.
  """
  rates = np.asarray(rates, np.float64)
  if rates.ndim != 1 or not len(rates) or np.any(rates < 0) or not rates.sum() > 0:
    raise ValueError(f"invalid rates: {rates.tolist()} (expected non-negative numbers, not all 0)")
  task = np.full(len(numbers), -1, np.int64)
  number = np.zeros(len(numbers), np.int64)
  left = np.asarray(numbers).astype(np.uint64)  # the row's number among the remaining rows
  remaining = np.cumsum(rates[::-1])[::-1]
  last = int(np.flatnonzero(rates > 0)[-1])
  open_rows = np.arange(len(numbers))
  for index, rate in enumerate(rates[: last + 1]):
    mine = left[open_rows]
    if index == last:
      task[open_rows], number[open_rows] = index, mine
      break
    share = np.uint64(round(rate / remaining[index] * 2**32))
    before = _share_of(mine, share)
    takes = _share_of(mine + np.uint64(1), share) > before
    taken = open_rows[takes]
    task[taken], number[taken] = index, before[takes]
    left[open_rows] = mine - before
    open_rows = open_rows[~takes]
  return task, number


def _share_of(count: np.ndarray, share: np.uint64) -> np.ndarray:
  """Returns floor(count * share / 2^32), computed exactly."""
  return (count >> _BITS) * share + (((count & _LOW) * share) >> _BITS)
