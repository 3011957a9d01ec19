"""Which rows of a batch each process holds.

A batch is split into equal parts over the `data` and `fsdp` axes. Where the `tensor` axis spans processes, several of
them hold the same parts, and all of those make the same rows; where a process has devices on both sides of a border
between two parts, it holds both.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import Mesh

from t5like.errors import UserError
from t5like.parallel.rules import batch_sharding


@dataclasses.dataclass(frozen=True)
class BatchParts:
  """The parts of a batch that the devices of a process hold, in order."""

  held: tuple[int, ...]
  total: int


@functools.lru_cache(maxsize=64)
def batch_parts(mesh: Mesh, process: int | None = None) -> BatchParts:
  """Those of `process`, of this one by default."""
  process = jax.process_index() if process is None else process
  total = mesh.shape["data"] * mesh.shape["fsdp"]
  devices = mesh.devices.reshape(total, -1)  # [parts, devices of a part]
  held = [part for part in range(total) if any(device.process_index == process for device in devices[part])]
  return BatchParts(tuple(held), total)


def part_group(mesh: Mesh) -> tuple[int, int]:
  """The number of this process's group among those with the same parts, and how many groups there are.

  For data that is dealt out by process, as a stream is. Refuses a mesh on which parts of a batch do not fall into
  groups: two processes then share some of their rows but not all.
  """
  processes = sorted({device.process_index for device in mesh.devices.flat})
  groups = sorted({batch_parts(mesh, process).held for process in processes})
  if sum(map(len, groups)) != batch_parts(mesh).total:
    raise UserError(
      "the processes hold overlapping parts of the batch, which a stream cannot be dealt out to",
      mesh=" ".join(f"{axis}={size}" for axis, size in mesh.shape.items()),
      processes=len(processes),
      try_="--gin.STREAM=False, or a `tensor` axis that divides, or is a multiple of, the devices of a process",
    )
  return groups.index(batch_parts(mesh).held), len(groups)


def to_global_arrays(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
  """Arrays over all devices, from the rows of a batch that this process holds."""
  parts, sharding = batch_parts(mesh), batch_sharding(mesh)

  def spread(local: np.ndarray) -> jax.Array:
    rows = len(local) // len(parts.held)  # of a part

    def part(index: tuple[slice, ...]) -> np.ndarray:
      at = parts.held.index((index[0].start or 0) // rows)
      return local[at * rows : (at + 1) * rows]

    return jax.make_array_from_callback((rows * parts.total, *local.shape[1:]), sharding, part)

  return {name: spread(local) for name, local in batch.items()}
