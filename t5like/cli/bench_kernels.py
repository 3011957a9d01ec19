"""Which kernels a train step's time goes into, from JAX's own profiler."""

from __future__ import annotations

import collections
import dataclasses
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

# A GPU's plane has a line for each stream, a TPU's one for the operations of its programs.
_LINES = re.compile(r"Stream #|XLA Ops$")


@dataclasses.dataclass(frozen=True)
class Kernel:
  """Kernels of one name, and what one step spends in them."""

  name: str
  calls: float
  seconds: float


def profile(run: Callable[[int], float], steps: int = 3) -> list[Kernel]:
  """Runs `steps` steps; their kernels on the first device, the most expensive first. Empty on a CPU."""
  import jax

  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      run(steps)
    (recorded,) = Path(folder).rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(recorded)).planes
    devices = sorted((plane for plane in planes if plane.name.startswith("/device:")), key=lambda plane: plane.name)
    events = [
      event for plane in devices[:1] for line in plane.lines if _LINES.match(line.name) for event in line.events
    ]
    return by_name(((event.name, event.duration_ns * 1e-9) for event in events), steps)


def by_name(events: Iterable[tuple[str, float]], steps: int) -> list[Kernel]:
  """Sums (name, seconds) of several steps; a number that the compiler put behind a name does not part it."""
  seconds, calls = collections.Counter(), collections.Counter()
  for name, duration in events:
    name = re.sub(r"(?:[._]\d+)+$", "", name)
    seconds[name] += duration
    calls[name] += 1
  return [Kernel(name, calls[name] / steps, total / steps) for name, total in seconds.most_common()]


def table(kernels: list[Kernel], count: int) -> str:
  """The `count` most expensive ones, and all others together."""
  if not kernels:
    return "  kernels are known on GPUs and TPUs only"
  total = sum(kernel.seconds for kernel in kernels)
  shown, rest = kernels[:count], kernels[count:]
  if rest:
    others = f"{len(rest)} others"
    shown = [*shown, Kernel(others, sum(k.calls for k in rest), sum(k.seconds for k in rest))]
  return "\n".join(
    f"  {1e3 * kernel.seconds:8.2f} ms {kernel.seconds / total:6.1%} {kernel.calls:6.0f} x  {kernel.name[:90]}"
    for kernel in shown
  )
