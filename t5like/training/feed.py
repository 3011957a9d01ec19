"""Copies batches to the devices and measures how long the devices waited for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from t5like import parallel


def to_devices(
  batches: Iterable[Mapping[str, Any]],
  mesh: jax.sharding.Mesh,
  copy: Callable[[Any, jax.sharding.Mesh], Any] = parallel.to_global_arrays,
) -> Iterator[Mapping[str, jax.Array]]:
  """Copies this host's rows of each batch to the devices, one batch ahead in a thread, to overlap with the step."""
  source = iter(batches)

  def place() -> Mapping[str, Any] | None:
    batch = next(source, None)
    return None if batch is None else copy(batch, mesh)

  with ThreadPoolExecutor(1, "to-devices") as thread:
    ahead = thread.submit(place)
    while (batch := ahead.result()) is not None:
      ahead = thread.submit(place)
      yield batch


class DeviceIdleTimer:
  """Measures how long the devices are idle between steps.

  Python runs a few steps ahead of the devices, so waiting for a batch is free until the last dispatched step ends. A
  thread records when that is.
  """

  def __init__(self):
    self._thread = ThreadPoolExecutor(1, "device-idle-timer")
    self._end: Future[float] | None = None  # time at which the last step ended

  def dispatched(self, metrics: Mapping[str, jax.Array]) -> Future[float]:
    """Records that a step was dispatched; `metrics` are its outputs. Returns the time at which it ends."""
    self._end = self._thread.submit(_time_of_end, metrics)
    return self._end

  def idle_since(self, moment: float) -> float:
    """Returns the seconds since `moment` in which the devices had nothing to do."""
    if self._end is None:
      return time.monotonic() - moment
    return time.monotonic() - max(moment, self._end.result()) if self._end.done() else 0.0


def _time_of_end(metrics: Mapping[str, jax.Array]) -> float:
  jax.block_until_ready(metrics)
  return time.monotonic()
