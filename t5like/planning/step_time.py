"""How long a train step takes: every operation at the roofline of its device.

An operation takes as long as its arithmetic or its memory traffic, whichever is longer. The shares of a peak that are
reached are the same for every model. Those of GPUs are measured on an H200 with `t5like bench train` and its profile;
those of TPUs are fitted to the step times that others published (published.py), and tests repeat the fit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from t5like.planning.collectives import Collective
from t5like.planning.devices import DeviceSpec
from t5like.planning.operations import Operation


@dataclasses.dataclass(frozen=True)
class Reached:
  """What a platform, or a generation of TPUs, reaches of its devices' peaks.

  product     of the peak, by a product of large matrices. H200: 810 of 989 TFLOP/s, held down by its power limit.
              TPU: in whole train steps. One product alone reaches 0.9 on v6e too (tpu-recipes, microbenchmarks)
  ramp        the start and end of a product, and of attention, take as long as so many steps of the axis it goes along:
              on a GPU, filling the pipeline and writing a tile; a TPU's systolic array is as deep as it is wide (128,
              or 256 in v6e)
  wave        entries of a product that are made at one time: 132 cores with a tile of 128 x 256 each. A TPU's cores
              are few
  attention   of the peak, by fused attention but for its ramp. H200, heads of 64: 254 TFLOP/s at length 512 without a
              bias; from length 128 to 2,048 a step of T5 base grows by 68 ms. TPU: heads of 128 and 256
  bandwidth   of memory, by fusions that stream. v6e: 1,360 of 1,638 GB/s (tpu-recipes, microbenchmarks)
  launch      seconds that a program costs however small it is: its start, its last threads, the gap to the next
  sums        of the time of tensor-parallel sums, the share that a step waits for. XLA cuts them on TPUs, and the
              products around them, into parts that run side by side (Wang et al. 2023)
  gathers     the same of what could run beside the computation
  slices      by which a step takes longer each time the number of its slices doubles: the slowest is waited for
  """

  product: float
  ramp: int
  wave: float
  attention: float
  bandwidth: float
  launch: float
  sums: float = 1.0
  gathers: float = 0.0
  slices: float = 0.0

  def waited(self, collective: Collective) -> float:
    """The share of its time that a step waits for it."""
    if not collective.waits:
      return self.gathers
    return self.sums if collective.axis == "tensor" else 1.0


_TPU = Reached(
  product=0.85, ramp=128, wave=0, attention=0.30, bandwidth=0.85, launch=1e-6, sums=0.05, gathers=0.65, slices=0.007
)
# By platform; v6e differs from other TPUs.
REACHED = {
  "gpu": Reached(product=0.82, ramp=192, wave=132 * 128 * 256, attention=0.35, bandwidth=0.85, launch=4e-6),
  "tpu": _TPU,
  "v6e": dataclasses.replace(_TPU, product=0.71, ramp=256),
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
  operations: Iterable[Operation],
  collectives: Sequence[Collective],
  spec: DeviceSpec,
  reached: Reached,
  float32: bool,
  slices: int = 1,
) -> StepTime:
  """`float32`: products are computed in it, at half the speed of the peak's (TF32, or passes of bfloat16)."""
  peak = spec.flops * (0.5 if float32 and reached != REACHED["cpu"] else 1.0)
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
  waiting = sum(c.seconds * reached.waited(c) for c in collectives if c.waits)
  beside: dict[str, float] = {}
  for collective in collectives:
    if not collective.waits:
      beside[collective.link] = beside.get(collective.link, 0.0) + collective.seconds
  longest = max(beside.values(), default=0.0)
  exposed = max(longest - computation, reached.gathers * longest)
  waiting += exposed + reached.slices * math.log2(slices) * (computation + waiting + exposed)
  if waiting:
    spent["communication"] = by_part["communication"] = waiting
  seconds = computation + waiting
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


def reached_by(platform: str, chip: str) -> Reached:
  return REACHED.get(chip, REACHED[platform])


def _bound(spent: Mapping[str, float], beside: Mapping[str, float]) -> str:
  most = max(spent, key=spent.get)
  if most == "communication" and beside:
    return f"communication over {max(beside, key=beside.get)}"
  return most
