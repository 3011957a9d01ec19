"""Functions whose memory is known before they run, and batches that are cut until they fit.

XLA says what a compiled function will take. Where that is more than a device has free, the batch is cut before it is
tried: a GPU's allocation would fail, and a machine's own memory might be given out and the process killed for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import flax.linen as nn
import jax
from jax.sharding import Mesh

from t5like import parallel
from t5like.parallel.process_zero import true_on_all_processes

_SHARE = 0.9  # of what is free; the rest is for what nobody counts
Item, Answer = TypeVar("Item"), TypeVar("Answer")


class NoRoom(Exception):
  """A function would take more memory than its devices have free."""

  def __init__(self, needed: int, free: int):
    super().__init__(f"{needed / 2**30:.1f} GiB are needed, {free / 2**30:.1f} GiB are free")
    self.needed, self.free = needed, free


class SizedFunction:
  """A function compiled once for each shape of its arguments; one that has no room is not run, but raises NoRoom.

  It is compiled for its mesh by the sharding rules in force when it was made, wherever it is called. On several hosts
  all of them run it, or none.
  """

  def __init__(self, function: Callable, mesh: Mesh, static_argnames: Sequence[str] = ()):
    self._mesh, self._rules = mesh, parallel.active_rules()
    self._jitted = jax.jit(function, static_argnames=static_argnames, out_shardings=parallel.replicated(mesh))
    self._compiled: dict[Any, jax.stages.Compiled] = {}
    self._fitting: set[Any] = set()

  def __call__(self, *arguments: Any, **static: Any) -> Any:
    key = (_shapes(arguments), tuple(sorted(static.items())))
    if key not in self._compiled:
      with nn.logical_axis_rules(self._rules), parallel.sharding_context(self._mesh):
        self._compiled[key] = self._jitted.lower(*arguments, **static).compile()
    if key not in self._fitting:
      needed, free = _needed(self._compiled[key]), free_bytes(self._mesh)
      if not true_on_all_processes(free is None or needed <= _SHARE * free):
        raise NoRoom(needed, free or 0)
      self._fitting.add(key)
    return self._compiled[key](*arguments)

  def compilations(self) -> int:
    """The number of shapes that were compiled so far."""
    return len(self._compiled)


def _shapes(tree: Any) -> Any:
  leaves, structure = jax.tree.flatten(tree)
  return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def _needed(compiled: jax.stages.Compiled) -> int:
  """Bytes a device needs besides the arguments, which are there."""
  analysis = compiled.memory_analysis()
  return 0 if analysis is None else analysis.temp_size_in_bytes + analysis.output_size_in_bytes


def free_bytes(mesh: Mesh) -> int | None:
  """Of the memory of one of this process's devices; None where nobody says."""
  device = next(device for device in mesh.devices.flat if device.process_index == jax.process_index())
  if device.platform == "cpu":
    available = _host_memory()
    return None if available is None else available // len(mesh.local_devices)
  stats = device.memory_stats() or {}
  return stats["bytes_limit"] - stats["bytes_in_use"] if {"bytes_limit", "bytes_in_use"} <= set(stats) else None


def _host_memory() -> int | None:
  """What the machine, or the container that this process is confined to, has available."""
  found = []
  with contextlib.suppress(OSError, StopIteration, ValueError):
    line = next(row for row in Path("/proc/meminfo").read_text().splitlines() if row.startswith("MemAvailable"))
    found.append(int(line.split()[1]) * 1024)
  with contextlib.suppress(OSError, ValueError):  # "max" where there is no limit
    group = Path("/sys/fs/cgroup")
    found.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
  return min(found, default=None)


def answer_in_room(
  items: Sequence[Item], answer: Callable[[Sequence[Item]], Sequence[Answer]]
) -> list[Answer | NoRoom]:
  """The answers to all items, asked for in as many parts as it takes; NoRoom for one that does not fit even alone."""
  try:
    return list(answer(items))
  except NoRoom as error:
    problem, part = error, int(len(items) * _SHARE * error.free / max(error.needed, 1))
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    problem, part = NoRoom(0, 0), 0
  if len(items) == 1:
    return [problem]
  part = min(max(part, 1), -(-len(items) // 2))  # at most half of them, or the same would be tried again
  parts = [items[first : first + part] for first in range(0, len(items), part)]
  return [found for some in parts for found in answer_in_room(some, answer)]
