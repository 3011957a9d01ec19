"""Which mesh, rematerialization and number of parts are fastest, of those that fit."""

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
_PARTS = (1, 2, 4, 8, 16, 32)
# Tensor parallelism waits for its sums: beyond a machine's eight, nothing is gained.
_MOST_TENSOR = 8


def candidates(
  work: Work, topology: Topology, batch_sizes: Sequence[int], remats: Sequence[str] = REMATS
) -> list[Forecast]:
  """All that could be run, without their memory, the most tokens a second first."""
  found = [
    forecast(variant, topology, axes, with_memory=False)
    for axes in meshes(work, topology)
    for variant in variants(work, axes, topology, batch_sizes, remats)
  ]
  return sorted(found, key=lambda f: -f.work.tokens / f.time.seconds)


def meshes(work: Work, topology: Topology) -> Iterator[parallel.MeshAxes]:
  """Every split into data, fsdp and tensor whose widths divide; slices are the machine's own."""
  config = work.model.config
  slices = topology.groups if topology.chip.platform == "tpu" else 1
  devices = topology.devices // slices
  for tensor in _divisors(devices):
    if tensor > min(_MOST_TENSOR, topology.size):
      continue
    if any(width % tensor for width in (config.num_heads, config.mlp_dim, config.vocab_size)):
      continue
    for fsdp in _divisors(devices // tensor):
      if config.embed_dim % fsdp == 0:
        # Named, so that it takes the place of any that is configured.
        preset = "fsdp_tensor" if fsdp * tensor > 1 else "data_parallel"
        yield parallel.MeshAxes(devices // tensor // fsdp, fsdp, tensor, slices, preset)


def variants(
  work: Work, axes: parallel.MeshAxes, topology: Topology, batch_sizes: Iterable[int], remats: Sequence[str]
) -> Iterator[Work]:
  """The same training in other batches, parts and with other rematerialization."""
  sizes = axes.sizes(topology.devices)
  for rows in batch_sizes:
    for parts in _PARTS:
      if rows % (sizes["data"] * sizes["fsdp"] * parts):
        continue
      for remat in remats:
        yield dataclasses.replace(
          work, model=_with_remat(work.model, remat), batch=with_rows(work.batch, rows), microbatches=parts,
          steps=-(-work.steps * work.rows // rows),
        )  # fmt: skip


def fastest_that_fits(found: Iterable[Forecast], most: int = 1) -> list[Forecast]:
  """The first `most` of them whose memory fits; memory is only counted as far as that takes."""
  fitting = []
  for each in found:
    whole = forecast(each.work, each.topology, each.axes)
    if whole.fits:
      fitting.append(whole)
      if len(fitting) == most:
        break
  return fitting


def nearest_that_fits(work: Work, topology: Topology) -> Forecast | None:
  """The fastest way for the same batch on the same machine; else on the smallest of the same chips that has room."""
  for size in _machines(topology):
    fitting = fastest_that_fits(candidates(work, size, [work.rows]))
    if fitting:
      return fitting[0]
  return None


def _machines(topology: Topology) -> Iterator[Topology]:
  """The given one and, where chips of its kind can be had, larger ones."""
  yield topology
  if topology.name == "local":
    return
  size, groups = topology.size, topology.groups
  for _ in range(6):
    size, groups = (2 * size, groups) if 2 * size <= topology.chip.most else (size, 2 * groups)
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
  """What differs from `given`, as options of the command line."""
  axes = each.axes
  options = [f"--gin.MESH.{name}={getattr(axes, name)}" for name in ("data", "fsdp", "tensor")]
  options += [f"--gin.MESH.slices={axes.slices}"] if axes.slices > 1 else []
  options += [f"--gin.MESH.preset={axes.preset}"] if axes.preset else []
  remat = each.work.model.config.remat
  options += ["--gin.REMAT=\"'none'\"" if remat == "none" else f"--gin.REMAT={remat}"]  # a bare none is gin's None
  options += [f"--gin.MICROBATCHES={each.work.microbatches}"] if each.work.microbatches != given.microbatches else []
  if each.work.rows != given.rows:
    options += [f"--gin.BATCH_SIZE={each.work.rows}", f"--gin.TRAIN_STEPS={each.work.steps}"]
  return " ".join(options)


def with_slices(axes: parallel.MeshAxes, topology: Topology) -> parallel.MeshAxes:
  """The configured mesh with the machine's slices, which are no choice on TPUs."""
  if topology.chip.platform != "tpu" or axes.slices == topology.groups:
    return axes
  if axes.slices != 1:
    raise UserError(
      f"{topology.name} has {topology.groups} slice(s), the mesh says {axes.slices}",
      try_=f"--gin.MESH.slices={topology.groups}",
    )
  return dataclasses.replace(axes, slices=topology.groups)
