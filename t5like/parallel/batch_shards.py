"""The rows of a batch that each process holds.

A batch is split into equal shards over the `data`, `fsdp` and `expert` axes. If the `tensor` axis spans processes,
several of them hold the same shards and load the same rows; a process whose devices belong to several shards holds all
of these.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import Mesh

from t5like.errors import UserError
from t5like.parallel.mesh import row_shards
from t5like.parallel.rules import batch_sharding


@dataclasses.dataclass(frozen=True)
class BatchShards:
  """The shards of a batch held by the devices of a process, in order."""

  held: tuple[int, ...]
  total: int


@functools.lru_cache(maxsize=64)
def batch_shards(mesh: Mesh, process: int | None = None) -> BatchShards:
  """Returns the shards of `process`, by default of this process."""
  process = jax.process_index() if process is None else process
  total = row_shards(mesh.shape)
  devices = mesh.devices.reshape(total, -1)  # [shards, devices per shard]
  held = [shard for shard in range(total) if any(device.process_index == process for device in devices[shard])]
  return BatchShards(tuple(held), total)


def shard_group(mesh: Mesh) -> tuple[int, int]:
  """Returns the index of this process's group and the number of groups; processes of a group hold the same shards.

  For data that is distributed by process, such as a stream. Raises UserError if two processes share some of their
  shards but not all.
  """
  processes = sorted({device.process_index for device in mesh.devices.flat})
  groups = sorted({batch_shards(mesh, process).held for process in processes})
  if sum(map(len, groups)) != batch_shards(mesh).total:
    raise UserError(
      "a stream cannot be distributed over processes whose batch shards partly overlap",
      mesh=" ".join(f"{axis}={size}" for axis, size in mesh.shape.items()),
      processes=len(processes),
      try_="--gin.STREAM=False, or a `tensor` axis that divides, or is a multiple of, the devices of a process",
    )
  return groups.index(batch_shards(mesh).held), len(groups)


def is_first_of_group(mesh: Mesh) -> bool:
  """Returns whether no process before this one holds the same shards."""
  here, own = jax.process_index(), batch_shards(mesh).held
  return not any(d.process_index < here and batch_shards(mesh, d.process_index).held == own for d in mesh.devices.flat)


def to_global_arrays(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
  """Builds global arrays over all devices from the rows of a batch that this process holds."""
  shards, sharding = batch_shards(mesh), batch_sharding(mesh)

  def to_global(local: np.ndarray) -> jax.Array:
    rows = len(local) // len(shards.held)  # per shard

    def shard(index: tuple[slice, ...]) -> np.ndarray:
      at = shards.held.index((index[0].start or 0) // rows)
      return local[at * rows : (at + 1) * rows]

    return jax.make_array_from_callback((rows * shards.total, *local.shape[1:]), sharding, shard)

  return {name: to_global(local) for name, local in batch.items()}
