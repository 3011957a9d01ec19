"""The kernels that dominate a train step's time, from JAX's profiler."""

from __future__ import annotations

import collections
import dataclasses
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

# A GPU's plane has a line per stream, a TPU's one line of XLA operations.
_LINES = re.compile(r"Stream #|XLA Ops$")


@dataclasses.dataclass(frozen=True)
class Kernel:
  """All kernels with one name: calls and seconds per step."""

  name: str
  calls: float
  seconds: float


@dataclasses.dataclass(frozen=True)
class Profile:
  """The kernels of a step, the most expensive first."""

  kernels: list[Kernel]
  seconds: float  # from the first kernel to the last

  @property
  def busy(self) -> float:
    return sum(kernel.seconds for kernel in self.kernels)


def profile(run: Callable[[int], float], steps: int = 3) -> Profile:
  """Runs `steps` steps and returns their kernels on the first device; none on a CPU."""
  import jax

  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      run(steps)
    (recorded,) = Path(folder).rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(recorded)).planes
    devices = sorted((plane for plane in planes if plane.name.startswith("/device:")), key=lambda plane: plane.name)
    lines = [line for plane in devices[:1] for line in plane.lines if _LINES.match(line.name)]
    events = [(event.name, event.start_ns * 1e-9, event.duration_ns * 1e-9) for line in lines for event in line.events]
  return summary(events, steps)


def summary(events: Sequence[tuple[str, float, float]], steps: int) -> Profile:
  """Aggregates (name, start, seconds) events; kernels that differ only in a numeric suffix are merged."""
  seconds, calls = collections.Counter(), collections.Counter()
  for name, _, duration in events:
    name = re.sub(r"(?:[._]\d+)+$", "", name)
    seconds[name] += duration
    calls[name] += 1
  span = (
    max(start + duration for _, start, duration in events) - min(start for _, start, _ in events) if events else 0.0
  )
  kernels = [Kernel(name, calls[name] / steps, total / steps) for name, total in seconds.most_common()]
  return Profile(kernels, span / steps)


def table(profile: Profile, count: int) -> str:
  """Formats the `count` most expensive kernels, and the sum of all others."""
  if not profile.kernels:
    return "  kernels are profiled on GPUs and TPUs only"
  shown, rest = profile.kernels[:count], profile.kernels[count:]
  if rest:
    shown = [*shown, Kernel(f"{len(rest)} others", sum(k.calls for k in rest), sum(k.seconds for k in rest))]
  lines = [f"  in kernels {1e3 * profile.busy:.1f} of {1e3 * profile.seconds:.1f} ms, of which"]
  lines += [
    f"  {1e3 * kernel.seconds:8.2f} ms {kernel.seconds / profile.busy:6.1%} {kernel.calls:6.0f} x  {kernel.name[:90]}"
    for kernel in shown
  ]
  return "\n".join(lines)
