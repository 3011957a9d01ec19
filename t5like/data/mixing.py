"""Which task each row of a mixture comes from: spread evenly at the rates asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_BITS = np.uint64(32)
_LOW = np.uint64(2**32 - 1)


def mixture_rows(numbers: np.ndarray, rates: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
  """For row numbers of a mixture: the task [rows], and the number of the row among those of its task.

  Task after task takes its share of the rows that the ones before it left, as evenly as whole rows
  allow: of the first n rows it has its rate times n, give or take one for each task before it.
  Nothing is counted from the beginning, so any row is answered at once.
  """
  rates = np.asarray(rates, np.float64)
  if rates.ndim != 1 or not len(rates) or np.any(rates < 0) or not rates.sum() > 0:
    raise ValueError(f"rates must not be negative, and not all 0: {rates.tolist()}")
  task = np.full(len(numbers), -1, np.int64)
  number = np.zeros(len(numbers), np.int64)
  left = np.asarray(numbers).astype(np.uint64)  # the row's number among those left
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
  """floor(count * share / 2^32), exactly."""
  return (count >> _BITS) * share + (((count & _LOW) * share) >> _BITS)
