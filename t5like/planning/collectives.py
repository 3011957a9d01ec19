"""What devices send each other in a train step: bytes by collective, and the links that they go over.

Rings (Patarasuk and Yuan 2009): to gather or to reduce-scatter x bytes over n devices, each sends x (n - 1) / n; an
all-reduce is both. The mesh is laid out with `tensor` innermost, then `fsdp`, then `data`, slices outermost.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping

from t5like.models.config import TransformerConfig
from t5like.models.stack import choose_layer_loop
from t5like.planning.memory import StateBytes
from t5like.planning.operations import Share
from t5like.planning.topology import Topology


@dataclasses.dataclass(frozen=True)
class Collective:
  """One kind of exchange, all of a step's together.

  bytes    that one device sends
  waits    the step waits for it: what comes next needs its result at once. Others run beside the computation
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
  share: Share,
  mesh: Mapping[str, int],
  state: StateBytes,
  microbatches: int,
  topology: Topology,
) -> list[Collective]:
  tensor, fsdp, data = mesh["tensor"], mesh["fsdp"], mesh["data"]
  # Gathered for the forward and again for the backward pass, unless unrolled layers keep what was gathered.
  loops = choose_layer_loop(config, topology.chip.platform)[0] == "loop"
  times = (2 if loops or config.remat != "none" else 1) * microbatches
  found = []
  for name, size, messages in _of_tensor(config, share):
    sent = _Sent(name, "tensor", size * microbatches, messages * microbatches, waits=True)
    found += _over_links(sent, tensor, 1, topology)
  weights, variables = state.weights, state.variables
  found += _over_links(_Sent("gather weights", "fsdp", weights * times, variables * times), fsdp, tensor, topology)
  scattered = _Sent("scatter gradients", "fsdp", weights * microbatches, variables * microbatches)
  found += _over_links(scattered, fsdp, tensor, topology)
  # XLA sums gradients of many variables in one message; those of layers in a loop after it, when little is left to do.
  summed = _Sent("sum gradients", "data", 2 * state.parameters, 8, waits=loops)
  found += _over_links(summed, data, tensor * fsdp, topology)
  return found


@dataclasses.dataclass(frozen=True)
class _Sent:
  name: str
  axis: str
  bytes: float
  messages: int
  waits: bool = False


def _over_links(sent: _Sent, devices: int, stride: int, topology: Topology) -> Iterator[Collective]:
  """An exchange over an axis whose neighbors are `stride` devices apart.

  Where the axis leaves a slice or machine, it is done in two stages: inside, and then between them, each device with
  its part of what the inside has put together.
  """
  inside = max(min(devices, topology.size // stride), 1)
  stages = ((inside, inside * stride, sent.bytes), (devices // inside, topology.size + 1, sent.bytes / inside))
  for count, span, size in stages:
    if count > 1 and size:
      link, bandwidth = topology.bandwidth(count, span)
      each = size * (count - 1) / count
      seconds = each / (bandwidth * REACHED) + sent.messages * LATENCY[link.name]
      yield Collective(sent.name, sent.axis, count, each, link.name, seconds, sent.waits)


# Of a link's bandwidth that large collectives reach (NCCL's own tests: 360 of 450 GB/s on an H100 machine).
REACHED = 0.8
# Seconds that a message takes however small it is: NCCL's tests, and about a microsecond a hop of ICI.
LATENCY = collections.defaultdict(lambda: 1e-6, {"NVLink": 15e-6, "InfiniBand": 30e-6, "ICI": 5e-6, "DCN": 100e-6})


def _sums(config: TransformerConfig, sublayers: int) -> int:
  """Of a layer: forward, backward, and where all is recomputed once more but for the last, which no gradient reads."""
  if config.remat != "full":
    return 2 * sublayers
  return 3 * sublayers - (config.norm_position == "pre")


def _of_tensor(config: TransformerConfig, share: Share) -> Iterator[tuple[str, float, int]]:
  """Every sublayer's result is a sum over the devices that share it, forward, and its input's gradient backward."""
  width = config.dtype.itemsize
  stacks = (
    ("encoder", share.encoder_length, config.num_encoder_layers, 2),
    ("decoder", share.decoder_length, config.num_decoder_layers, 3 if share.encoder_length else 2),
  )
  for stack, length, layers, sublayers in stacks:
    stream, times = share.rows * length * config.embed_dim * width, layers * _sums(config, sublayers)
    if stream:
      what = "gather and scatter positions" if share.by_position else "sum activations"
      yield f"{what}, {stack}", 2 * stream * times, times
      yield f"sum embeddings, {stack}", 2 * stream, 1
  if share.decoder_length and share.encoder_length:  # keys and values of all layers read the encoder's result
    yield "sum gradients of the encoded", 2 * share.rows * share.encoder_length * config.embed_dim * width, 1
  hidden = share.rows * (share.decoder_length or share.encoder_length) * config.embed_dim
  yield "sum gradients of the output", 2 * hidden * width, 1
