"""Checks the memory of compiled functions before they run, and splits batches that do not fit.

XLA reports the memory of a compiled function. A batch that needs more than is free is split before it runs: on a GPU
the allocation would fail, on a CPU the process might be killed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import flax.linen as nn
import jax
from jax.sharding import Mesh

from t5like import parallel
from t5like.kernels.platform import compiler_options
from t5like.parallel.process_zero import lowest_on_all_processes

_SHARE = 0.9  # of free memory; the rest is a reserve for untracked allocations
Item, Answer = TypeVar("Item"), TypeVar("Answer")


class NotEnoughMemory(Exception):
  """Raised on all hosts for a function that needs more memory than the devices of one have free."""

  def __init__(self, needed: int, free: int, share: float | None = None):
    super().__init__(f"needs {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB free")
    self.needed, self.free = needed, free
    self.share = free / max(needed, 1) if share is None else share  # what fits, the same on all hosts


class MemoryCheckedFunction:
  """A function compiled once per argument shapes, which raises NotEnoughMemory instead of running out of memory.

  Compiles for its mesh with the sharding rules active at construction, wherever it is called. Either all hosts run it,
  or none.
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
        self._compiled[key] = self._jitted.lower(*arguments, **static).compile(compiler_options())
    if key not in self._fitting:
      needed, free = _needed(self._compiled[key]), free_bytes(self._mesh)
      share = lowest_on_all_processes(math.inf if free is None else free / max(needed, 1))
      if _SHARE * share < 1:
        raise NotEnoughMemory(needed, free or 0, share)
      self._fitting.add(key)
    return self._compiled[key](*arguments)

  def compilations(self) -> int:
    """Returns the number of shapes compiled so far."""
    return len(self._compiled)


def _shapes(tree: Any) -> Any:
  leaves, structure = jax.tree.flatten(tree)
  return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def _needed(compiled: jax.stages.Compiled) -> int:
  """Returns the bytes a device needs in addition to the arguments."""
  analysis = compiled.memory_analysis()
  return 0 if analysis is None else analysis.temp_size_in_bytes + analysis.output_size_in_bytes


def free_bytes(mesh: Mesh) -> int | None:
  """Returns the free memory of one of this process's devices; None: unknown."""
  device = next(device for device in mesh.devices.flat if device.process_index == jax.process_index())
  if device.platform == "cpu":
    available = _host_memory()
    return None if available is None else available // len(mesh.local_devices)
  stats = device.memory_stats() or {}
  return stats["bytes_limit"] - stats["bytes_in_use"] if {"bytes_limit", "bytes_in_use"} <= set(stats) else None


def _host_memory() -> int | None:
  """Returns the available memory of the machine or of this process's container."""
  found = []
  with contextlib.suppress(OSError, StopIteration, ValueError):
    line = next(row for row in Path("/proc/meminfo").read_text().splitlines() if row.startswith("MemAvailable"))
    found.append(int(line.split()[1]) * 1024)
  with contextlib.suppress(OSError, ValueError):  # "max" where there is no limit
    group = Path("/sys/fs/cgroup")
    found.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
  return min(found, default=None)


def answer_in_parts(
  items: Sequence[Item], answer: Callable[[Sequence[Item]], Sequence[Answer]]
) -> list[Answer | NotEnoughMemory]:
  """Returns all answers, splitting items until they fit; NotEnoughMemory for an item that does not fit alone."""
  try:
    return list(answer(items))
  except NotEnoughMemory as error:
    problem, part = error, int(len(items) * _SHARE * error.share)
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    problem, part = NotEnoughMemory(0, 0), 0
  if len(items) == 1:
    return [problem]
  part = min(max(part, 1), -(-len(items) // 2))  # at most half, so that the parts shrink
  parts = [items[first : first + part] for first in range(0, len(items), part)]
  return [found for some in parts for found in answer_in_parts(some, answer)]
