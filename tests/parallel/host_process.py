"""One host of several, as tests start it: `host_process.py ACTION CONFIG TIMEOUT`, its place in T5LIKE_* variables.

Prints lines that begin with a word the tests look for. An error of the user ends it with status 2, as the
command does.
"""

import os
import sys
import time

import jax
import numpy as np

from t5like import parallel
from t5like.data import HostShare
from t5like.errors import UserError


def collective() -> None:
  """A sum over one number of each host's, which only comes out right if all are connected."""
  from jax.experimental import multihost_utils

  everyones = multihost_utils.process_allgather(jax.numpy.int32(10 ** jax.process_index()))
  print("sum", int(everyones.sum()), flush=True)


def train(meshes: str) -> None:
  """Three steps of a model that is split over all hosts, on each of some meshes, such as "2,1,4 8,1,1"."""
  from tiny_runs import losses

  for axes in mesh_axes(meshes):
    print("losses", *losses("gpt", axes, steps=3), flush=True)


def rows(meshes: str) -> None:
  """Which rows of a batch of 48 this host made on each mesh, and whether every device got those of its place."""
  for axes in mesh_axes(meshes):
    mesh = parallel.make_mesh(axes)
    parts = parallel.batch_parts(mesh)
    numbers = HostShare(parts.held, parts.total).rows(48)
    array = parallel.to_global_arrays({"rows": numbers}, mesh)["rows"]
    right = all((np.asarray(shard.data) == np.arange(48)[shard.index]).all() for shard in array.addressable_shards)
    print("rows", *numbers, "right" if right and array.shape == (48,) else "wrong", flush=True)


def mesh_axes(meshes: str) -> list[parallel.MeshAxes]:
  return [parallel.MeshAxes(*map(int, sizes.split(","))) for sizes in meshes.split()]


def loop(stop_at: int | None = None) -> None:
  """Steps without end, as a training loop makes them; with `stop_at`, asks to stop there itself."""
  for step in range(1, 2000):
    time.sleep(0.02 * (1 + jax.process_index()))  # hosts are not equally fast
    if step == 2:
      print("running", flush=True)
    if parallel.any_host_requested_stop(step, requested_here=stop_at is not None and step >= stop_at):
      print("stopped", step, flush=True)
      return


def main(action: str, config: str, timeout: str) -> int:
  print("loaded", flush=True)
  sys.stdin.readline()  # until all are
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
  elif action == "loop":
    loop()
  elif action == "stop_itself":
    loop(stop_at=5 if os.environ["T5LIKE_PROCESS_ID"] == "1" else None)
  return 0


if __name__ == "__main__":
  sys.exit(main(*sys.argv[1:]))
