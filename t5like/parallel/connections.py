"""Connects the processes of a pod of CPUs before they wait for each other.

On CPUs, XLA connects a group of devices (gloo) when a program first communicates within it. A process then waits 30
seconds for the others, a limit without a setting, and the group stays broken: the step fails on this process, and the
others wait in it for half an hour. Two processes that compile on busy cores reach their first step with a larger
difference. Once connected, they wait for each other as long as for any result.
"""

from __future__ import annotations

import itertools

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from t5like.parallel.process_zero import run_on_process_zero


def connect_processes() -> None:
  """Connects all processes for `run_on_process_zero`. For the start: all have just exchanged their devices."""
  if jax.devices()[0].platform == "cpu":
    run_on_process_zero(lambda: None)


def connect_mesh(mesh: Mesh) -> None:
  """Connects every group of devices along axes of `mesh`. All processes must call it. Does nothing except on CPUs."""
  used = {device.process_index for device in mesh.devices.flat}
  if jax.process_count() == 1 or len(used) < jax.process_count() or mesh.devices.flat[0].platform != "cpu":
    return
  axes = [axis for axis, size in mesh.shape.items() if size > 1]
  groups = [group for count in range(1, len(axes) + 1) for group in itertools.combinations(axes, count)]
  outside = [P(*(axis for axis in axes if axis not in group)) for group in groups]

  def sums(x: jax.Array) -> list[jax.Array]:
    return [jax.lax.psum(x, group).reshape([1] * len(spec)) for group, spec in zip(groups, outside, strict=True)]

  shape, sharding = tuple(mesh.shape[axis] for axis in axes), NamedSharding(mesh, P(*axes))
  ones = jax.make_array_from_callback(shape, sharding, lambda index: np.ones([1] * len(axes), np.float32))
  program = jax.jit(jax.shard_map(sums, mesh=mesh, in_specs=P(*axes), out_specs=outside)).lower(ones).compile()
  run_on_process_zero(lambda: None)  # all have compiled: they start within moments of each other
  jax.block_until_ready(program(ones))
