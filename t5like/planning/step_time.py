"""How long a train step takes: every operation at the roofline of its device.

An operation takes as long as its arithmetic or its memory traffic, whichever is longer. The shares of a peak that are
reached are measured on an H200 with `t5like bench train` and its profile, or by others where said so; they are the same
for every model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from t5like.planning.collectives import Collective
from t5like.planning.devices import DeviceSpec
from t5like.planning.operations import Operation


@dataclasses.dataclass(frozen=True)
class Reached:
  """What a platform reaches of its devices' peaks.

  product     of the peak, by a product of large matrices. H200: 810 of 989 TFLOP/s, held down by its power limit.
              TPU: 0.9, as Google's own kernels (Austin et al. 2025, "How to scale your model", chapter 4)
  ramp        the start and end of a product, and of attention, take as long as so many steps of the axis it goes along:
              on a GPU, filling the pipeline and writing a tile; a TPU's systolic array is as deep as it is wide (128,
              or 256 in v6e)
  wave        entries of a product that are made at one time: 132 cores with a tile of 128 x 256 each. A TPU's cores
              are few
  attention   of the peak, by fused attention but for its ramp. H200, heads of 64: 254 TFLOP/s at length 512 without a
              bias; from length 128 to 2,048 a step of T5 base grows by 68 ms. TPU: kernels of the same kind
  bandwidth   of memory, by fusions that stream
  launch      seconds that a program costs however small it is: its start, its last threads, the gap to the next
  """

  product: float
  ramp: int
  wave: float
  attention: float
  bandwidth: float
  launch: float


REACHED = {
  "gpu": Reached(product=0.82, ramp=192, wave=132 * 128 * 256, attention=0.35, bandwidth=0.85, launch=4e-6),
  "tpu": Reached(product=0.90, ramp=128, wave=0, attention=0.50, bandwidth=0.85, launch=1e-6),
  # A CPU's figures are measured: see this_machine.py.
  "cpu": Reached(product=1.0, ramp=16, wave=0, attention=1.0, bandwidth=1.0, launch=1e-6),
}


@dataclasses.dataclass(frozen=True)
class StepTime:
  """Seconds of a step, by what they go into; what runs beside the rest counts only as far as it is longer.

  bound  what a step waits for most
  """

  seconds: float
  spent: Mapping[str, float]
  by_part: Mapping[str, float]
  bound: str


def step_time(
  operations: Iterable[Operation], collectives: Sequence[Collective], spec: DeviceSpec, platform: str, float32: bool
) -> StepTime:
  """`float32`: products are computed in it, at half the speed of the peak's (TF32, or passes of bfloat16)."""
  reached = REACHED[platform]
  peak = spec.flops * (0.5 if float32 and platform != "cpu" else 1.0)
  spent = {"products": 0.0, "attention": 0.0, "memory traffic": 0.0, "launches": 0.0}
  by_part: dict[str, float] = {}
  for operation in operations:
    moving = operation.bytes / (spec.bandwidth * reached.bandwidth)
    computing = _arithmetic(operation, peak, reached)
    kind = {"product": "products", "memory": "memory traffic"}.get(operation.kind, "attention")
    spent[kind if computing >= moving else "memory traffic"] += operation.count * max(moving, computing)
    starting = operation.kernels * reached.launch
    spent["launches"] += operation.count * starting
    seconds = operation.count * (max(moving, computing) + starting)
    by_part[operation.part] = by_part.get(operation.part, 0.0) + seconds
  computation = sum(spent.values())
  waiting = sum(c.seconds for c in collectives if c.waits)
  beside: dict[str, float] = {}
  for collective in collectives:
    if not collective.waits:
      beside[collective.link] = beside.get(collective.link, 0.0) + collective.seconds
  exposed = max(max(beside.values(), default=0.0) - computation, 0.0)
  if waiting + exposed:
    spent["communication"] = by_part["communication"] = waiting + exposed
  seconds = computation + waiting + exposed
  return StepTime(seconds, spent, by_part, _bound(spent, beside))


def _arithmetic(operation: Operation, peak: float, reached: Reached) -> float:
  if not operation.flops:
    return 0.0
  share = reached.attention if operation.kind == "attention" else reached.product
  ramp = reached.ramp / operation.inner
  # The last wave is half empty on average. Or the product is cut along its inner axis until all cores have work: each
  # cut has a ramp of its own, and adding it up takes as long.
  lost = min(0.5, 2 * ramp) * reached.wave / operation.entries if operation.entries else 0.0
  return (1.0 + ramp + lost) * operation.flops / (peak * share)


def _bound(spent: Mapping[str, float], beside: Mapping[str, float]) -> str:
  most = max(spent, key=spent.get)
  if most == "communication" and beside:
    return f"communication over {max(beside, key=beside.get)}"
  return most
