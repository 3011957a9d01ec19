"""Machines by name: what a chip can do, how chips are linked, what an hour of one costs.

v5p-512      one slice. v2, v3, v4 and v5p are named by TensorCores, two a chip: 256 chips. v5e, v6e by chips
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
  """A kind of network; bytes a second of one device, one way."""

  name: str
  bandwidth: float


@dataclasses.dataclass(frozen=True)
class Chip:
  """One JAX device and what belongs to it.

  inside, between  the links of a slice or machine, and those between them
  torus            axes of a TPU slice's network; 0: every device reaches every other directly (NVLink)
  wraps_from       chips of a slice from which on its axes are rings; shorter ones are lines of half the speed
  watts            at most, of the chip alone; `watts_source` says who says so
  price            US dollars an hour; `price_source` says where
  """

  name: str
  device_kind: str
  platform: str
  spec: DeviceSpec
  inside: Link
  between: Link
  torus: int = 0
  wraps_from: int = 1
  cores: int = 1  # that a slice's name counts
  most: int = 8  # devices of a slice or machine
  watts: float = 0.0
  watts_source: str = ""
  price: float = 0.0
  price_source: str = ""


def _tpu(name: str, kind: str, ici: float, dcn: float, torus: int, wraps: int, cores: int, most: int, **rest) -> Chip:
  """ici: Google's bidirectional GB/s a chip; dcn: Gbit/s a chip."""
  links = Link("ICI", ici / 2 * 1e9), Link("DCN", dcn / 8 * 1e9)
  return Chip(name, kind, "tpu", device_spec(kind), *links, torus, wraps, cores, most, **rest)


def _gpu(name: str, kind: str, nvlink: float, **rest) -> Chip:
  """nvlink: NVIDIA's GB/s both ways together; 400 Gbit/s of InfiniBand for each GPU, as in DGX and HGX machines."""
  links = Link("NVLink", nvlink / 2 * 1e9), Link("InfiniBand", 400 / 8 * 1e9)
  return Chip(name, kind, "gpu", device_spec(kind), *links, **rest)


_LIST = "Google Cloud's list price of 2025, on demand, US, {} a chip-hour"
_AWS = "AWS's list price of 2025, on demand, {}, an eighth of the machine"
_NOT_SAID = "an estimate: Google does not publish it"
_NVIDIA = "NVIDIA's data sheet"

# ICI, DCN and slice sizes: Google's page of each version (docs.cloud.google.com/tpu/docs/v4, v5e, v5p, v6e); where it
# gives a NIC of a host, a chip has its share. v4 names no DCN figure: v5p's is taken. NVLink, watts: data sheets.
CHIPS = {
  chip.name: chip
  for chip in (
    _tpu("v4", "TPU v4", 600, 50, 3, 64, 2, 4096, watts=192, watts_source="Google's page of v4, largest measured",
         price=3.22, price_source=_LIST.format("$3.22")),
    _tpu("v5e", "TPU v5e", 400, 25, 2, 256, 1, 256, watts=175, watts_source=_NOT_SAID,
         price=1.20, price_source=_LIST.format("$1.20")),
    _tpu("v5p", "TPU v5p", 1200, 50, 3, 64, 2, 6144, watts=400, watts_source=_NOT_SAID,
         price=4.20, price_source=_LIST.format("$4.20")),
    _tpu("v6e", "TPU v6e", 800, 100, 2, 256, 1, 256, watts=300, watts_source=_NOT_SAID,
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
    """The link that a collective over `devices` devices is limited by, and bytes a second of one of them.

    span  devices from the first to the last of the group that takes part, in the order of the mesh. A torus gives a
          mesh axis as many of its own axes as the axis needs, each with links in both directions.
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
  """The machine that a name of the form above stands for."""
  text = name.strip().lower()
  if text == "local":
    return local_topology()
  found = re.fullmatch(r"(?:(\d+)x)?([a-z]\d+[a-z]*)(?:-(\d+)|x(\d+))?", text)
  if not found or found[2] not in CHIPS:
    raise UserError(
      f"no machine is called {name!r}",
      nearest=nearest(found[2] if found else text, CHIPS),
      chips=", ".join(CHIPS),
      try_=f"--topology=X, such as {EXAMPLES}",
    )
  groups, chip = int(found[1] or 1), CHIPS[found[2]]
  is_tpu = chip.platform == "tpu"
  if bool(found[3]) != is_tpu:  # 'v5p-8' is a slice, 'h100x8' or 'h100' a machine
    form = f"{chip.name}-{8 * chip.cores}" if is_tpu else f"{chip.name}x8"
    raise UserError(f"{name!r} is no name of {chip.device_kind}s", try_=f"--topology={form}")
  count = int(found[3] or found[4] or 1)
  if count < 1 or groups < 1 or count % chip.cores:
    raise UserError(
      f"{name!r} has {count} cores",
      expected=f"a multiple of {chip.cores}: {chip.name} slices are named by TensorCores, {chip.cores} a chip",
    )
  size = count // chip.cores
  if size > chip.most:
    unit = "slice" if is_tpu else "machine"
    smaller = f"{-(-size // chip.most)}x{chip.name}{'-' if is_tpu else 'x'}{chip.most * chip.cores}"
    raise UserError(
      f"{name!r}: a {unit} of {chip.device_kind}s has {chip.most} chips at most, not {size}",
      try_=f"--topology={smaller}",
    )
  return Topology(name, chip, size, groups)


def local_chip() -> Chip:
  """That of this machine's devices; one that is not in the table is known by its name alone."""
  kind, platform = jax.devices()[0].device_kind, jax.devices()[0].platform
  spec = device_spec(kind)
  known = next((chip for chip in CHIPS.values() if chip.spec == spec), None)
  if known:
    return known
  spec = spec or DeviceSpec(0.0, 0.0, 0.0)
  memory = Link("this machine's memory", spec.bandwidth)
  return Chip(kind, kind, "gpu" if platform == "cuda" else platform, spec, memory, memory, most=jax.device_count())


def known_local_topology(slices: int = 1) -> Topology | None:
  """This run's devices; None where the table has no figures of them."""
  chip, devices = local_chip(), jax.device_count()
  if not chip.spec.flops:
    return None
  groups = slices if slices > 1 else max(devices // jax.local_device_count() if chip.platform == "gpu" else 1, 1)
  return Topology("local", chip, devices // groups, groups)


def local_topology() -> Topology:
  """The devices that JAX has here. What a CPU can do is measured, in about a second."""
  chip, devices = local_chip(), jax.device_count()
  if not chip.spec.flops:
    spec = measured_spec(devices)
    memory = Link("this machine's memory", spec.bandwidth)
    chip = dataclasses.replace(chip, spec=spec, inside=memory, between=memory)
  return Topology("local", chip, devices)
