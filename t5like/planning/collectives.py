"""The collectives of a train step: bytes per device, and the links that they use.

Rings (Patarasuk and Yuan 2009): to all-gather or reduce-scatter x bytes over n devices, each sends x (n - 1) / n; an
all-reduce is both. The mesh order is `tensor` innermost, then `expert`, `fsdp`, `data`, slices outermost.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping

from t5like.models.config import TransformerConfig
from t5like.models.modifications.experts import capacity
from t5like.models.stack import choose_layer_loop
from t5like.planning.memory import StateBytes
from t5like.planning.operations import DeviceShare
from t5like.planning.topology import Topology


@dataclasses.dataclass(frozen=True)
class Collective:
  """All collectives of one kind in a step.

  bytes    sent by one device
  waits    whether the step waits for the result; other collectives overlap with the computation
  """

  name: str
  axis: str
  devices: int
  bytes: float
  link: str
  seconds: float
  waits: bool


def step_collectives(
  config: TransformerConfig,
  share: DeviceShare,
  mesh: Mapping[str, int],
  state: StateBytes,
  microbatches: int,
  topology: Topology,
) -> list[Collective]:
  tensor, fsdp, data, expert = mesh["tensor"], mesh["fsdp"], mesh["data"], mesh.get("expert", 1)
  # Gathered for the forward and again for the backward pass, unless unrolled layers keep the gathered weights.
  loops = choose_layer_loop(config, topology.chip.platform)[0] == "loop"
  times = (2 if loops or config.remat != "none" else 1) * microbatches
  found = []
  for name, size, messages in _tensor_transfers(config, share):
    transfer = _Transfer(name, "tensor", size * microbatches, messages * microbatches, waits=True)
    found += _over_links(transfer, tensor, 1, topology)
  routed = _Transfer("move tokens to experts", "expert", _routed_bytes(config, share) * microbatches, 1, waits=True)
  found += _over_links(routed, expert, tensor, topology)
  # At most: gradients of experts are not summed over their own axis.
  found += _over_links(_Transfer("sum gradients", "expert", 2 * state.gradients, 8), expert, tensor, topology)
  inner = tensor * expert
  weights, variables = state.weights, state.variables
  found += _over_links(_Transfer("gather weights", "fsdp", weights * times, variables * times), fsdp, inner, topology)
  scattered = _Transfer("scatter gradients", "fsdp", weights * microbatches, variables * microbatches)
  found += _over_links(scattered, fsdp, inner, topology)
  # XLA combines gradients of many variables in one message; with a loop over layers, after the loop, when hardly any
  # computation is left to overlap with.
  summed = _Transfer("sum gradients", "data", 2 * state.gradients, 8, waits=loops)
  found += _over_links(summed, data, inner * fsdp, topology)
  return found


def _routed_bytes(config: TransformerConfig, share: DeviceShare) -> float:
  """Returns the bytes of tokens that move to experts and back, in both passes."""
  if not config.num_experts:
    return 0.0
  stacks = ((share.encoder_length, config.num_encoder_layers), (share.decoder_length, config.num_decoder_layers))
  places = sum(config.num_experts * capacity(config, length) * layers for length, layers in stacks if length)
  return 4 * share.rows * places * config.embed_dim * config.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class _Transfer:
  name: str
  axis: str
  bytes: float
  messages: int
  waits: bool = False


def _over_links(transfer: _Transfer, devices: int, stride: int, topology: Topology) -> Iterator[Collective]:
  """Yields the collectives over an axis whose neighbors are `stride` devices apart.

  An axis that extends beyond a slice or machine has two stages: inside, then between them, where each device
  exchanges its shard of the result.
  """
  inside, size = max(min(devices, topology.size // stride), 1), transfer.bytes
  stages = ((inside, inside * stride, size), (devices // inside, topology.size + 1, size / inside))
  for count, span, size in stages:
    if count > 1 and size:
      link, bandwidth = topology.bandwidth(count, span)
      each = size * (count - 1) / count
      seconds = each / (bandwidth * LINK_EFFICIENCY) + transfer.messages * LATENCY[link.name]
      yield Collective(transfer.name, transfer.axis, count, each, link.name, seconds, transfer.waits)


# Share of a link's bandwidth that large collectives achieve (NCCL's tests: 360 of 450 GB/s on an H100 machine).
LINK_EFFICIENCY = 0.8
# Seconds per message, from NCCL's tests, and about a microsecond per hop of ICI.
LATENCY = collections.defaultdict(lambda: 1e-6, {"NVLink": 15e-6, "InfiniBand": 30e-6, "ICI": 5e-6, "DCN": 100e-6})


def _sums(config: TransformerConfig, sublayers: int) -> int:
  """Returns the sums per layer: forward, backward, and recomputed, except the last, which no gradient needs."""
  if config.remat != "full":
    return 2 * sublayers
  return 3 * sublayers - (config.norm_position == "pre")


def _tensor_transfers(config: TransformerConfig, share: DeviceShare) -> Iterator[tuple[str, float, int]]:
  """Yields name, bytes and messages: each sublayer sums its output forward, and its input's gradient backward."""
  width = config.dtype.itemsize
  stacks = (
    ("encoder", share.encoder_length, config.num_encoder_layers, 2),
    ("decoder", share.decoder_length, config.num_decoder_layers, 3 if share.encoder_length else 2),
  )
  for stack, length, layers, sublayers in stacks:
    stream, times = share.rows * length * config.embed_dim * width, layers * _sums(config, sublayers)
    if stream:
      name = "gather and scatter positions" if share.by_position else "sum activations"
      yield f"{name}, {stack}", 2 * stream * times, times
      yield f"sum embeddings, {stack}", 2 * stream, 1
  if share.decoder_length and share.encoder_length:  # keys and values of all layers read the encoder's output
    yield "sum gradients of the encoder's output", 2 * share.rows * share.encoder_length * config.embed_dim * width, 1
  hidden = share.rows * (share.decoder_length or share.encoder_length) * config.embed_dim
  yield "sum gradients of the output", 2 * hidden * width, 1
