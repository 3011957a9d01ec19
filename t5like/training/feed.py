"""Batches on their way to the devices, and how long the devices waited for them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from t5like import parallel


def to_devices(batches: Iterable[Mapping[str, Any]], mesh: jax.sharding.Mesh) -> Iterator[Mapping[str, jax.Array]]:
  """Puts this host's rows of batches onto the devices, one batch ahead and in a thread, so that fetching and copying
  overlap with the step before."""
  source = iter(batches)

  def place() -> Mapping[str, Any] | None:
    batch = next(source, None)
    return None if batch is None else parallel.to_global_arrays(batch, mesh)

  with ThreadPoolExecutor(1, "to-devices") as thread:
    ahead = thread.submit(place)
    while (batch := ahead.result()) is not None:
      ahead = thread.submit(place)
      yield batch


class DeviceWatch:
  """Notes when the devices run out of steps.

  Python runs a few steps ahead of the devices. What it waits for a batch meanwhile costs nothing: only
  the wait that outlasts the last step counts. A thread notes when that step ends.
  """

  def __init__(self):
    self._thread = ThreadPoolExecutor(1, "device-watch")
    self._end: Future[float] | None = None  # of the last step

  def given(self, metrics: Mapping[str, jax.Array]) -> None:
    """A step was given to the devices, and these will come out."""
    self._end = self._thread.submit(_time_of_end, metrics)

  def idle_since(self, moment: float) -> float:
    """Seconds since `moment` in which the devices had nothing to do."""
    if self._end is None:
      return time.monotonic() - moment
    return time.monotonic() - max(moment, self._end.result()) if self._end.done() else 0.0


def _time_of_end(metrics: Mapping[str, jax.Array]) -> float:
  jax.block_until_ready(metrics)
  return time.monotonic()
