"""The forecast of a run: memory, collectives and time of a step, and the time of all steps."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax

from t5like import parallel
from t5like.planning.accuracy import accuracy_of
from t5like.planning.collectives import Collective, step_collectives
from t5like.planning.flops import step_flops_by_part, train_step_flops
from t5like.planning.memory import MemoryEstimate, StateBytes, estimate_memory, state_bytes
from t5like.planning.operations import DeviceShare, Operation, layer_operations, optimizer_operations
from t5like.planning.step_time import StepTime, efficiency_of, step_time
from t5like.planning.topology import Topology
from t5like.training.optimizers.selection import Selection
from t5like.training.state import weight_count

TEACHER = "teacher"  # of a student, among its parts and parameters
# Share of a device's memory that is usable; the rest goes to the runtime and to fragmentation.
USABLE = 0.92


class State:
  """The shapes of a train state: parameters with their logical axes, and the optimizer's state.

  update_flops  of the matrix products in one update; 0 except for optimizers like Muon
  selection     the parameters that train; None: all
  """

  def __init__(self, boxed: Any, opt_state: Any, update_flops: int = 0, selection: Selection | None = None):
    self.boxed, self.params, self.opt_state = boxed, nn.meta.unbox(boxed), opt_state
    self.update_flops, self.selection = update_flops, selection

  @functools.cache  # noqa: B019 - a plan has one state, and few meshes that are used many times
  def on(self, axes: parallel.MeshAxes, devices: int, dtype: str) -> StateBytes:
    """Returns the bytes per device on a mesh."""
    mesh = parallel.abstract_mesh(axes, devices)
    with parallel.use_preset(axes.preset):
      shardings = parallel.parameter_shardings(self.boxed, mesh)
    optimizer = parallel.shardings_like_parameters(self.opt_state, self.params, shardings, mesh)
    return state_bytes(self.params, shardings, self.opt_state, optimizer, dtype, self.selection)


@dataclasses.dataclass(frozen=True)
class Work:
  """The work of a run that a plan depends on, as shapes: `steps` batches of one shape."""

  model: nn.Module
  state: State
  batch: Mapping[str, Any]
  steps: int = 1
  microbatches: int = 1
  teacher: nn.Module | None = None  # whose forward pass is part of a step
  flops_share: float = 1.0  # of a step that trains everything

  @property
  def rows(self) -> int:
    return next(iter(self.batch.values())).shape[0]

  @property
  def lengths(self) -> dict[str, int]:
    """The tokens of a row in each stack; 0 for a stack that the model lacks."""
    tokens = {side: self.batch.get(f"{side}_input_tokens") for side in ("encoder", "decoder")}
    return {f"{side}_length": 0 if x is None else x.shape[1] for side, x in tokens.items()}

  @property
  def tokens(self) -> int:
    """The tokens of one step."""
    return self.rows * sum(self.lengths.values())

  def flops_by_part(self) -> dict[str, int]:
    """Returns the model FLOPs of a train step by part of the model."""
    parts = step_flops_by_part(self.model, self.rows, **self.lengths)
    parts = {part: round(self.flops_share * flops) for part, flops in parts.items()}
    if self.teacher:
      parts[TEACHER] = train_step_flops(self.teacher, self.rows, **self.lengths) // 3
    return parts


@dataclasses.dataclass(frozen=True)
class Forecast:
  """The forecast of a train step on a machine; `memory` is None if it was not requested."""

  work: Work
  topology: Topology
  axes: parallel.MeshAxes
  mesh: Mapping[str, int]
  memory: MemoryEstimate | None
  collectives: Sequence[Collective]
  time: StepTime

  @property
  def capacity(self) -> float:
    return USABLE * self.topology.chip.spec.memory

  @property
  def fits(self) -> bool:
    return self.memory is None or self.memory.total <= self.capacity

  @property
  def flops(self) -> int:
    return sum(self.work.flops_by_part().values())

  @property
  def peak_share(self) -> float:
    """The model FLOPs utilization (MFU)."""
    return self.flops / self.time.seconds / (self.topology.devices * self.topology.chip.spec.flops)

  @property
  def step_range(self) -> tuple[float, float] | None:
    """The shortest and the longest time of a step; None if the accuracy of the forecast is unknown."""
    accuracy = accuracy_of(self.topology.chip)
    return accuracy and accuracy.step_range(self.time.seconds, self.peak_share)

  @property
  def seconds(self) -> float:
    """The time of all steps, without checkpoints, evaluation and restarts."""
    return self.work.steps * self.time.seconds


def forecast(work: Work, topology: Topology, axes: parallel.MeshAxes, with_memory: bool = True) -> Forecast:
  """Forecasts a step; raises UserError if the mesh does not fit the devices or the batch."""
  mesh = parallel.abstract_mesh(axes, topology.devices)
  parallel.check_batch(work.rows, mesh)
  config, platform = work.model.config, topology.chip.platform
  memory = None
  if with_memory:
    state = work.state.on(axes, topology.devices, config.compute_dtype)
    by_position = axes.preset == "sequence"
    memory = estimate_memory(work.model, work.batch, state, mesh.shape, work.microbatches, by_position, platform)
  operations, collectives = step_parts(work, topology, axes)
  slices = topology.groups if platform == "tpu" else 1
  efficiency, float32 = efficiency_of(platform, topology.chip.name), config.compute_dtype == "float32"
  time = step_time(operations, collectives, topology.chip.spec, efficiency, float32, slices)
  return Forecast(work, topology, axes, dict(mesh.shape), memory, collectives, time)


def step_parts(
  work: Work, topology: Topology, axes: parallel.MeshAxes, score_bytes: int = 4
) -> tuple[Sequence[Operation], Sequence[Collective]]:
  """Returns the operations of each device in a step, and the collectives; `score_bytes` as in DeviceShare."""
  mesh, config = parallel.abstract_mesh(axes, topology.devices), work.model.config
  state = work.state.on(axes, topology.devices, config.compute_dtype)
  share = DeviceShare(
    rows=work.rows / (parallel.row_shards(mesh.shape) * work.microbatches),
    **work.lengths,
    tensor=mesh.shape["tensor"],
    fsdp=mesh.shape["fsdp"],
    by_position=axes.preset == "sequence",
    platform=topology.chip.platform,
    score_bytes=score_bytes,
  )

  def count(operation: Operation) -> float:
    # Frozen weights have no products for their gradients.
    return operation.count * work.microbatches * (work.flops_share if operation.kind == "product" else 1.0)

  operations = [
    dataclasses.replace(operation, count=count(operation)) for operation in layer_operations(work.model, share)
  ]
  if work.teacher:  # a forward pass is a third of a step
    operations += [
      dataclasses.replace(operation, part=TEACHER, count=operation.count * work.microbatches / 3)
      for operation in layer_operations(work.teacher, share)
    ]
  operations += optimizer_operations(state.gradients, state.optimizer, state.variables, work.microbatches)
  if work.state.update_flops:
    split = mesh.shape["fsdp"] * mesh.shape["tensor"]
    # In float32, at half the peak.
    operations.append(Operation("optimizer", "product", 2 * work.state.update_flops / split, 0, config.embed_dim))
  return operations, step_collectives(config, share, mesh.shape, state, work.microbatches, topology)


def parameters_by_part(params: Any) -> dict[str, int]:
  """Returns the number of parameters by part: embeddings, attention, MLPs and the rest, of each stack."""
  parts: dict[str, int] = {}
  for path, leaf in jax.tree.leaves_with_path(params):
    names = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
    part = _part(names)
    parts[part] = parts.get(part, 0) + weight_count("/".join(names), leaf)
  return parts


def _part(names: Sequence[str]) -> str:
  if names[0] in ("token_embedder", "decoder_embedder"):
    return "embedding"
  if names[0] in ("logits_dense", "logits_bias", "logits_mixture"):
    return "output"
  if names[0] in ("generator", TEACHER):
    return names[0]
  if len(names) < 2 or names[0] not in ("encoder", "decoder", "shared"):
    return "heads"
  kinds = {"attention": f"{names[0]} attention", "cross_attention": "cross-attention", "mlp": f"{names[0]} MLP"}
  return next((kinds[name] for name in names if name in kinds), f"{names[0]} norms and positions")
