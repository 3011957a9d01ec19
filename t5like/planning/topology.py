"""Machines by name: performance, links and prices of their chips.

v5p-512      one slice. v2, v3, v4 and v5p are named by TensorCores, two per chip: 256 chips. v5e, v6e by chips
4xv5p-128    four slices, linked by the data center's network
h100x8       a machine of eight GPUs; h100 is one GPU
2xh100x8     two such machines, linked by InfiniBand
local        the devices of this machine
"""

from __future__ import annotations

import dataclasses
import math
import re

import jax

from t5like.errors import UserError, nearest
from t5like.planning.devices import DeviceSpec, device_spec
from t5like.planning.this_machine import measured_spec


@dataclasses.dataclass(frozen=True)
class Link:
  """A kind of network; bytes per second of one device in one direction."""

  name: str
  bandwidth: float


@dataclasses.dataclass(frozen=True)
class Chip:
  """One JAX device, its links, power and price.

  inside, between  links within a slice or machine, and between them
  torus            number of axes of a TPU slice's network; 0: all devices are connected directly (NVLink)
  wraps_from       smallest slice (in chips) with wraparound links; axes of smaller ones have half the speed
  watts            maximum of the chip alone, from `watts_source`
  price            US dollars per hour, from `price_source`
  """

  name: str
  device_kind: str
  platform: str
  spec: DeviceSpec
  inside: Link
  between: Link
  torus: int = 0
  wraps_from: int = 1
  cores: int = 1  # per chip, in names of slices
  max_size: int = 8  # devices of a slice or machine
  watts: float = 0.0
  watts_source: str = ""
  price: float = 0.0
  price_source: str = ""


def _tpu(name: str, kind: str, ici: float, dcn: float, torus: int, wraps: int, cores: int, size: int, **rest) -> Chip:
  """Builds a TPU; ici: Google's bidirectional GB/s per chip; dcn: Gbit/s per chip; size: of the largest slice."""
  links = Link("ICI", ici / 2 * 1e9), Link("DCN", dcn / 8 * 1e9)
  return Chip(name, kind, "tpu", device_spec(kind), *links, torus, wraps, cores, size, **rest)


def _gpu(name: str, kind: str, nvlink: float, **rest) -> Chip:
  """Builds a GPU; nvlink: NVIDIA's bidirectional GB/s. InfiniBand: 400 Gbit/s per GPU, as in DGX and HGX machines."""
  links = Link("NVLink", nvlink / 2 * 1e9), Link("InfiniBand", 400 / 8 * 1e9)
  return Chip(name, kind, "gpu", device_spec(kind), *links, **rest)


_LIST = "Google Cloud's list price of 2025, on demand, US, {} per chip-hour"
_AWS = "AWS's list price of 2025, on demand, {}, an eighth of the machine"
_ESTIMATE = "an estimate: not published by Google"
_NVIDIA = "NVIDIA's data sheet"

# ICI, DCN and slice sizes: Google's page of each version (docs.cloud.google.com/tpu/docs/v4, v5e, v5p, v6e), with the
# NIC of a host divided among its chips. v4 has no DCN bandwidth there: v5p's is used. NVLink, watts: data sheets.
CHIPS = {
  chip.name: chip
  for chip in (
    _tpu("v4", "TPU v4", 600, 50, 3, 64, 2, 4096, watts=192, watts_source="Google's page of v4, largest measured",
         price=3.22, price_source=_LIST.format("$3.22")),
    _tpu("v5e", "TPU v5e", 400, 25, 2, 256, 1, 256, watts=175, watts_source=_ESTIMATE,
         price=1.20, price_source=_LIST.format("$1.20")),
    _tpu("v5p", "TPU v5p", 1200, 50, 3, 64, 2, 6144, watts=400, watts_source=_ESTIMATE,
         price=4.20, price_source=_LIST.format("$4.20")),
    _tpu("v6e", "TPU v6e", 800, 100, 2, 256, 1, 256, watts=300, watts_source=_ESTIMATE,
         price=2.70, price_source=_LIST.format("$2.70")),
    _gpu("a100", "NVIDIA A100-SXM4-80GB", 600, watts=400, watts_source=_NVIDIA,
         price=3.43, price_source=_AWS.format("p4de.24xlarge")),
    _gpu("h100", "NVIDIA H100 80GB HBM3", 900, watts=700, watts_source=_NVIDIA,
         price=6.88, price_source=_AWS.format("p5.48xlarge")),
    _gpu("h200", "NVIDIA H200", 900, watts=700, watts_source=_NVIDIA,
         price=7.91, price_source=_AWS.format("p5en.48xlarge")),
    _gpu("b200", "NVIDIA B200", 1800, watts=1000, watts_source=_NVIDIA,
         price=14.24, price_source=_AWS.format("p6-b200.48xlarge")),
  )
}  # fmt: skip
EXAMPLES = "v5p-512, v5e-256, v6e-16, 4xv5p-128, h100x8, h200, 2xh100x8, local"


@dataclasses.dataclass(frozen=True)
class Topology:
  """Chips in groups: `groups` slices or machines of `size` devices each."""

  name: str
  chip: Chip
  size: int
  groups: int = 1

  @property
  def devices(self) -> int:
    return self.size * self.groups

  def describe(self) -> str:
    unit = "slice" if self.chip.platform == "tpu" else "machine"
    groups = f" in {self.groups} {unit}s of {self.size}, {self.chip.between.name} between" if self.groups > 1 else ""
    return f"{self.devices} x {self.chip.device_kind}{groups}"

  def bandwidth(self, devices: int, span: int) -> tuple[Link, float]:
    """Returns the link that limits a collective over `devices` devices, and the bytes per second of one of them.

    span  distance from the first to the last device of a group, in mesh order. A mesh axis uses as many axes of a
          torus as it needs, each with links in both directions.
    """
    if span > self.size:
      return self.chip.between, self.chip.between.bandwidth
    link = self.chip.inside
    if not self.chip.torus or self.size == 1:
      return link, link.bandwidth
    side = self.size ** (1 / self.chip.torus)
    axes = min(self.chip.torus, max(1, round(math.log(devices, side))))
    ring = 1.0 if self.size >= self.chip.wraps_from else 0.5
    return link, link.bandwidth * axes / self.chip.torus * ring


def parse_topology(name: str) -> Topology:
  """Returns the machine with a name of the form above."""
  text = name.strip().lower().replace("v5litepod-", "v5e-")  # Google Cloud's name
  if text == "local":
    return local_topology()
  found = re.fullmatch(r"(?:(\d+)x)?([a-z]\d+[a-z]*)(?:-(\d+)|x(\d+))?", text)
  if not found or found[2] not in CHIPS:
    raise UserError(
      f"unknown machine {name!r}",
      nearest=nearest(found[2] if found else text, CHIPS),
      chips=", ".join(CHIPS),
      try_=f"--topology=X, such as {EXAMPLES}",
    )
  groups, chip = int(found[1] or 1), CHIPS[found[2]]
  is_tpu = chip.platform == "tpu"
  if bool(found[3]) != is_tpu:  # 'v5p-8' is a slice, 'h100x8' or 'h100' a machine
    form = f"{chip.name}-{8 * chip.cores}" if is_tpu else f"{chip.name}x8"
    raise UserError(f"invalid name for a machine of {chip.device_kind}s: {name!r}", try_=f"--topology={form}")
  count, unit = int(found[3] or found[4] or 1), "slice" if is_tpu else "machine"
  if count < 1 or groups < 1:
    raise UserError(f"{name!r} has no chips", expected=f"at least one {unit} with at least one chip")
  if count % chip.cores:
    raise UserError(
      f"invalid size of {name!r}: {count}",
      expected=f"a multiple of {chip.cores}: {chip.name} slices are named by TensorCores, {chip.cores} per chip",
    )
  size = count // chip.cores
  if chip.torus == 2 and size & (size - 1):
    raise UserError(f"invalid size of {name!r}: {count}", expected=f"a power of 2, up to {chip.max_size}")
  if size > chip.max_size:
    smaller = f"{-(-size // chip.max_size)}x{chip.name}{'-' if is_tpu else 'x'}{chip.max_size * chip.cores}"
    raise UserError(
      f"{name!r}: a {unit} of {chip.device_kind}s has at most {chip.max_size} chips, not {size}",
      try_=f"--topology={smaller}",
    )
  return Topology(name, chip, size, groups)


def local_chip() -> Chip:
  """Returns the chip of this machine's devices; the spec of an unknown one is zero."""
  kind, platform = jax.devices()[0].device_kind, jax.devices()[0].platform
  spec = device_spec(kind)
  known = next((chip for chip in CHIPS.values() if chip.spec == spec), None)
  if known:
    return known
  spec = spec or DeviceSpec(0.0, 0.0, 0.0)
  memory = Link("this machine's memory", spec.bandwidth)
  return Chip(kind, kind, "gpu" if platform == "cuda" else platform, spec, memory, memory, max_size=jax.device_count())


def known_local_topology(slices: int = 1) -> Topology | None:
  """Returns the topology of this run's devices; None for unknown devices."""
  chip, devices = local_chip(), jax.device_count()
  if not chip.spec.flops:
    return None
  groups = slices if slices > 1 else max(devices // jax.local_device_count() if chip.platform == "gpu" else 1, 1)
  return Topology("local", chip, devices // groups, groups)


def local_topology() -> Topology:
  """Returns the topology of JAX's devices here; a CPU is measured, in about a second."""
  chip, devices = local_chip(), jax.device_count()
  if not chip.spec.flops:
    spec = measured_spec(devices)
    memory = Link("this machine's memory", spec.bandwidth)
    chip = dataclasses.replace(chip, spec=spec, inside=memory, between=memory)
  return Topology("local", chip, devices)
