"""One host of a multi-host test: `host_process.py ACTION CONFIG TIMEOUT`, configured by T5LIKE_* variables.

Prints lines that start with a word the tests look for. A UserError ends it with status 2, as in the CLI.
"""

import os
import sys
import time

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from t5like import parallel
from t5like.data import HostShare
from t5like.errors import UserError
from t5like.parallel.process_zero import check_same_on_all_processes


def collective() -> None:
  """Prints a sum over numbers of all hosts, which is only correct if all are connected."""
  from jax.experimental import multihost_utils

  gathered = multihost_utils.process_allgather(jax.numpy.int32(10 ** jax.process_index()))
  print("sum", int(gathered.sum()), flush=True)


def train(meshes: str) -> None:
  """Trains a model sharded over all hosts for three steps, on each of several meshes such as "2,1,4 8,1,1"."""
  from tiny_runs import losses

  for axes in mesh_axes(meshes):
    print("losses", *losses("gpt", axes, steps=3), flush=True)


def rows(meshes: str) -> None:
  """Prints this host's rows of a batch of 48 on each mesh, and whether every device has the rows of its shard."""
  for axes in mesh_axes(meshes):
    mesh = parallel.make_mesh(axes)
    shards = parallel.batch_shards(mesh)
    numbers = HostShare(shards.held, shards.total).rows(48)
    array = parallel.to_global_arrays({"rows": numbers}, mesh)["rows"]
    right = all((np.asarray(shard.data) == np.arange(48)[shard.index]).all() for shard in array.addressable_shards)
    print("rows", *numbers, "right" if right and array.shape == (48,) else "wrong", flush=True)


def late(meshes: str) -> None:
  """Sums along the axes of a mesh; process 1 comes later than gloo waits to connect."""
  (axes,) = mesh_axes(meshes)
  mesh = parallel.make_mesh(axes)
  numbers = np.arange(mesh.size, dtype=np.float32).reshape(mesh.devices.shape)
  by_device, everywhere = NamedSharding(mesh, P(*mesh.axis_names)), NamedSharding(mesh, P())
  array = jax.make_array_from_callback(numbers.shape, by_device, lambda index: numbers[index])
  time.sleep(35 * jax.process_index())
  for axis in (None, 0, 1):
    total = jax.jit(lambda x, axis=axis: x.sum(axis), out_shardings=everywhere)(array)
    print("sums", *np.ravel(total.addressable_data(0)), flush=True)


def compare() -> int:
  """Compares a text that is the same on all hosts, then one that is not."""
  check_same_on_all_processes("the first text", "text")
  try:
    check_same_on_all_processes("the second text", f"text {os.environ['T5LIKE_PROCESS_ID'] == '1'}")
  except UserError as error:
    print("refused", error.render().replace("\n", " "), flush=True)
    return 2
  return 0


def mesh_axes(meshes: str) -> list[parallel.MeshAxes]:
  return [parallel.MeshAxes(*map(int, sizes.split(","))) for sizes in meshes.split()]


def loop(stop_at: int | None = None) -> None:
  """Runs steps like a training loop; requests a stop at `stop_at`, if given."""
  for step in range(1, 2000):
    time.sleep(0.02 * (1 + jax.process_index()))  # hosts are not equally fast
    if step == 2:
      print("running", flush=True)
    if parallel.any_host_requested_stop(step, requested_here=stop_at is not None and step >= stop_at):
      print("stopped", step, flush=True)
      return


def main(action: str, config: str, timeout: str) -> int:
  print("loaded", flush=True)
  sys.stdin.readline()  # wait until all are
  began = time.monotonic()
  try:
    report = parallel.start(timeout=float(timeout), config=config)
  except UserError as error:
    print(f"failed after {time.monotonic() - began:.1f} s\nerror: {error}", flush=True)
    return 2
  print(f"report {report}", flush=True)
  if action == "collective":
    collective()
  elif action == "train":
    train(os.environ["MESHES"])
  elif action == "rows":
    rows(os.environ["MESHES"])
  elif action == "late":
    late(os.environ["MESHES"])
  elif action == "compare":
    return compare()
  elif action == "loop":
    loop()
  elif action == "stop_itself":
    loop(stop_at=5 if os.environ["T5LIKE_PROCESS_ID"] == "1" else None)
  return 0


if __name__ == "__main__":
  sys.exit(main(*sys.argv[1:]))
