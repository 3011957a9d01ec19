"""Sums over batches, accumulated while the devices compute the next ones."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping

import jax
import numpy as np

_IN_FLIGHT = 3  # batches dispatched ahead


def sum_batches(sums: Iterable[Mapping[str, jax.Array]], progress: Callable[[int], None]) -> collections.Counter[str]:
  """Returns the totals of per-batch sums, in float64; `progress` receives the number of batches done."""
  totals: collections.Counter[str] = collections.Counter()
  in_flight: collections.deque[Mapping[str, jax.Array]] = collections.deque()
  done = 0

  def finish_one() -> None:
    nonlocal done
    totals.update({name: np.asarray(value, np.float64)[()] for name, value in in_flight.popleft().items()})
    done += 1
    progress(done)

  for batch_sums in sums:
    in_flight.append(batch_sums)
    if len(in_flight) == _IN_FLIGHT:
      finish_one()
  while in_flight:
    finish_one()
  return totals
