"""The time of a train step from a roofline model of its operations.

An operation takes as long as its arithmetic or its memory traffic, whichever is longer. The efficiencies relative to
the peak are the same for every model. Those of GPUs are measured on an H200 with `t5like bench train` and its profile;
those of TPUs are fitted to published step times (published.py), and tests repeat the fit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from t5like.planning.collectives import Collective
from t5like.planning.devices import DeviceSpec
from t5like.planning.operations import Operation


@dataclasses.dataclass(frozen=True)
class Efficiency:
  """Efficiency of a platform, or of a generation of TPUs, relative to its devices' peaks.

  product     share of the peak in products of large matrices. H200: 810 of 989 TFLOP/s, due to its power limit.
              TPU: in complete train steps. A single product reaches 0.9 on v6e too (tpu-recipes, microbenchmarks)
  ramp        the start and end of a product, and of attention, in steps along its inner axis: on a GPU, filling the
              pipeline and writing a tile; on a TPU, the depth of the systolic array (128, or 256 in v6e)
  wave        entries of a product that are computed at once: 132 cores with a tile of 128 x 256 each. 0 for TPUs, which
              have few cores
  attention   share of the peak in fused attention, without its ramp. H200, heads of 64: fitted, with `launch`, to train
              steps of T5, GPT-2 and BERT. TPU: heads of 128 and 256
  bandwidth   share of the memory bandwidth in streaming fusions. v6e: 1,360 of 1,638 GB/s (tpu-recipes,
              microbenchmarks)
  launch      seconds of overhead per kernel: its start, its last threads, the gap to the next
  sums        exposed share of tensor-parallel sums. On TPUs XLA splits them, and the products around them, into parts
              that overlap (Wang et al. 2023)
  gathers     exposed share of collectives that can overlap with the computation
  slices      increase of the step time whenever the number of slices doubles, as the step waits for the slowest
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

  def exposed_share(self, collective: Collective) -> float:
    """Returns the share of a collective's time that the step waits for."""
    if not collective.waits:
      return self.gathers
    return self.sums if collective.axis == "tensor" else 1.0


_TPU = Efficiency(
  product=0.85, ramp=128, wave=0, attention=0.30, bandwidth=0.85, launch=1e-6, sums=0.05, gathers=0.65, slices=0.007
)
# By platform; v6e differs from other TPUs.
EFFICIENCIES = {
  "gpu": Efficiency(product=0.82, ramp=192, wave=132 * 128 * 256, attention=0.40, bandwidth=0.85, launch=2e-6),
  "tpu": _TPU,
  "v6e": dataclasses.replace(_TPU, product=0.71, ramp=256),
  # The peaks of a CPU are measured: see this_machine.py.
  "cpu": Efficiency(product=1.0, ramp=16, wave=0, attention=1.0, bandwidth=1.0, launch=1e-6),
}


@dataclasses.dataclass(frozen=True)
class StepTime:
  """Seconds of a step by category; overlapped communication counts only as far as it is exposed.

  bound  the category that takes the most time
  """

  seconds: float
  spent: Mapping[str, float]
  by_part: Mapping[str, float]
  bound: str


def step_time(
  operations: Iterable[Operation],
  collectives: Sequence[Collective],
  spec: DeviceSpec,
  efficiency: Efficiency,
  float32: bool,
  slices: int = 1,
) -> StepTime:
  """Computes the time of a step; `float32` products run at half the peak (TF32, or passes of bfloat16)."""
  peak = spec.flops * (0.5 if float32 and efficiency != EFFICIENCIES["cpu"] else 1.0)
  spent = {"products": 0.0, "attention": 0.0, "memory traffic": 0.0, "launches": 0.0}
  by_part: dict[str, float] = {}
  for operation in operations:
    moving = operation.bytes / (spec.bandwidth * efficiency.bandwidth)
    computing = _arithmetic(operation, peak, efficiency)
    kind = {"product": "products", "memory": "memory traffic"}.get(operation.kind, "attention")
    spent[kind if computing >= moving else "memory traffic"] += operation.count * max(moving, computing)
    starting = operation.kernels * efficiency.launch
    spent["launches"] += operation.count * starting
    seconds = operation.count * (max(moving, computing) + starting)
    by_part[operation.part] = by_part.get(operation.part, 0.0) + seconds
  computation = sum(spent.values())
  waiting = sum(c.seconds * efficiency.exposed_share(c) for c in collectives if c.waits)
  overlapped: dict[str, float] = {}  # by link
  for collective in collectives:
    if not collective.waits:
      overlapped[collective.link] = overlapped.get(collective.link, 0.0) + collective.seconds
  longest = max(overlapped.values(), default=0.0)
  exposed = max(longest - computation, efficiency.gathers * longest)
  waiting += exposed + efficiency.slices * math.log2(slices) * (computation + waiting + exposed)
  if waiting:
    spent["communication"] = by_part["communication"] = waiting
  seconds = computation + waiting
  return StepTime(seconds, spent, by_part, _bound(spent, overlapped))


def _arithmetic(operation: Operation, peak: float, efficiency: Efficiency) -> float:
  if not operation.flops:
    return 0.0
  share = efficiency.attention if operation.kind == "attention" else efficiency.product
  ramp = efficiency.ramp / operation.inner
  # The last wave is half empty on average. Alternatively the product is split along its inner axis until all cores have
  # work: each part has a ramp, and adding it takes as long.
  lost = min(0.5, 2 * ramp) * efficiency.wave / operation.entries if operation.entries else 0.0
  return (1.0 + ramp + lost) * operation.flops / (peak * share)


def efficiency_of(platform: str, chip: str) -> Efficiency:
  return EFFICIENCIES.get(chip, EFFICIENCIES[platform])


def _bound(spent: Mapping[str, float], overlapped: Mapping[str, float]) -> str:
  most = max(spent, key=spent.get)
  if most == "communication" and overlapped:
    return f"communication over {max(overlapped, key=overlapped.get)}"
  return most
