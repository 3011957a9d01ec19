"""Sums over many batches, added up while the devices go on with the next ones."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping

import jax

_IN_FLIGHT = 3  # batches that Python is ahead of the devices


def add_up(sums: Iterable[Mapping[str, jax.Array]], heard: Callable[[int], None]) -> collections.Counter[str]:
  """The totals of what a step gave for each batch; `heard` is told how many batches are done.

  In float64: the sum of many batches has more digits than a float32.
  """
  totals: collections.Counter[str] = collections.Counter()
  in_flight: collections.deque[Mapping[str, jax.Array]] = collections.deque()
  done = 0

  def finish_one() -> None:
    nonlocal done
    totals.update({name: float(value) for name, value in in_flight.popleft().items()})
    done += 1
    heard(done)

  for given in sums:
    in_flight.append(given)
    if len(in_flight) == _IN_FLIGHT:
      finish_one()
  while in_flight:
    finish_one()
  return totals
