"""Searches for the fastest mesh, rematerialization and number of microbatches that fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from t5like import parallel
from t5like.errors import UserError
from t5like.models.config import CHOICES
from t5like.planning.forecast import Forecast, Work, forecast
from t5like.planning.residuals import with_rows
from t5like.planning.topology import Topology

REMATS = CHOICES["remat"]
_MICROBATCHES = (1, 2, 4, 8, 16, 32)
# Tensor parallelism waits for its sums: more than a machine's eight devices gain nothing.
_MAX_TENSOR = 8


def candidates(work: Work, topology: Topology, batch_sizes: Sequence[int]) -> list[Forecast]:
  """Returns forecasts of all candidates without memory, sorted by tokens per second."""
  found = [
    forecast(variant, topology, axes, with_memory=False)
    for axes in meshes(work, topology)
    for variant in variants(work, axes, topology, batch_sizes)
  ]
  return sorted(found, key=lambda f: -f.work.tokens / f.time.seconds)


def meshes(work: Work, topology: Topology) -> Iterator[parallel.MeshAxes]:
  """Yields all meshes of data, fsdp and tensor that divide the model's widths; slices are the machine's."""
  config = work.model.config
  slices = topology.groups if topology.chip.platform == "tpu" else 1
  devices = topology.devices // slices
  for tensor in _divisors(devices):
    if tensor > min(_MAX_TENSOR, topology.size):
      continue
    if any(width % tensor for width in (config.kv_heads, config.num_heads, config.mlp_dim, config.vocab_size)):
      continue
    for fsdp in _divisors(devices // tensor):
      if config.embed_dim % fsdp == 0:
        # Explicit, so that it overrides a configured preset.
        preset = "fsdp_tensor" if fsdp * tensor > 1 else "data_parallel"
        yield parallel.MeshAxes(devices // tensor // fsdp, fsdp, tensor, slices, preset)


def least_batch_size(work: Work, topology: Topology) -> int:
  """Returns the number of rows of which a batch must be a multiple on the mesh that splits it least."""
  sizes = (axes.sizes(topology.devices) for axes in meshes(work, topology))
  return min(each["data"] * each["fsdp"] for each in sizes)


def with_batch_size(work: Work, rows: int) -> Work:
  return dataclasses.replace(work, batch=with_rows(work.batch, rows), steps=-(-work.steps * work.rows // rows))


def variants(work: Work, axes: parallel.MeshAxes, topology: Topology, batch_sizes: Iterable[int]) -> Iterator[Work]:
  """Yields the same work with other batch sizes, microbatches and rematerialization."""
  sizes = axes.sizes(topology.devices)
  for rows in batch_sizes:
    for microbatches in _MICROBATCHES:
      if rows % (sizes["data"] * sizes["fsdp"] * microbatches):
        continue
      for remat in REMATS:
        resized = with_batch_size(work, rows)
        yield dataclasses.replace(resized, model=_with_remat(work.model, remat), microbatches=microbatches)


def fastest_that_fits(found: Iterable[Forecast], count: int = 1) -> list[Forecast]:
  """Returns the first `count` candidates that fit in memory, which is estimated only as far as needed."""
  fitting = []
  for each in found:
    complete = forecast(each.work, each.topology, each.axes)
    if complete.fits:
      fitting.append(complete)
      if len(fitting) == count:
        break
  return fitting


def nearest_that_fits(work: Work, topology: Topology) -> Forecast | None:
  """Returns the fastest forecast for the same batch on this machine, or else on the smallest larger one that fits."""
  for size in _machines(topology):
    fitting = fastest_that_fits(candidates(work, size, [work.rows]))
    if fitting:
      return fitting[0]
  return None


def _machines(topology: Topology) -> Iterator[Topology]:
  """Yields the given machine and, unless it is the local one, larger ones with the same chips."""
  yield topology
  if topology.name == "local":
    return
  size, groups = topology.size, topology.groups
  for _ in range(6):
    size, groups = (2 * size, groups) if 2 * size <= topology.chip.max_size else (size, 2 * groups)
    yield dataclasses.replace(topology, name=machine_name(topology, size, groups), size=size, groups=groups)


def machine_name(topology: Topology, size: int, groups: int) -> str:
  chip = topology.chip
  inner = f"{chip.name}-{size * chip.cores}" if chip.platform == "tpu" else chip.name + (f"x{size}" if size > 1 else "")
  return inner if groups == 1 else f"{groups}x{inner}"


def _with_remat(model: Any, remat: str) -> Any:
  config = model.config
  return model if config.remat == remat else model.clone(config=dataclasses.replace(config, remat=remat))


def _divisors(number: int) -> list[int]:
  return [n for n in range(1, number + 1) if number % n == 0]


def options_text(each: Forecast, given: Work) -> str:
  """Returns the command line options by which a forecast differs from `given`."""
  axes = each.axes
  options = [f"--gin.MESH.{name}={getattr(axes, name)}" for name in ("data", "fsdp", "tensor")]
  options += [f"--gin.MESH.{name}={getattr(axes, name)}" for name in ("slices", "expert") if getattr(axes, name) > 1]
  options += [f"--gin.MESH.preset={axes.preset}"] if axes.preset else []
  remat = each.work.model.config.remat
  options += ["--gin.REMAT=\"'none'\"" if remat == "none" else f"--gin.REMAT={remat}"]  # unquoted none is gin's None
  options += [f"--gin.MICROBATCHES={each.work.microbatches}"] if each.work.microbatches != given.microbatches else []
  if each.work.rows != given.rows:
    options += [f"--gin.BATCH_SIZE={each.work.rows}", f"--gin.TRAIN_STEPS={each.work.steps}"]
  return " ".join(options)


def with_slices(axes: parallel.MeshAxes, topology: Topology) -> parallel.MeshAxes:
  """Returns the configured mesh with the machine's slices, which are fixed on TPUs."""
  if topology.chip.platform != "tpu" or axes.slices == topology.groups:
    return axes
  if axes.slices != 1:
    raise UserError(
      f"{topology.name} has {topology.groups} slice(s), but the mesh has {axes.slices}",
      try_=f"--gin.MESH.slices={topology.groups}",
    )
  return dataclasses.replace(axes, slices=topology.groups)
