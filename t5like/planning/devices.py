"""Published peak performance by JAX's `device_kind`, for one JAX device.

If a chip appears as two devices (TPU v2, v3, 7x, and the AMD MI250X), a device has half of its numbers.

`flops` is the peak of dense matrix products in bfloat16 with float32 accumulation, without structured sparsity. Chips
without bfloat16 (V100, T4) have their float16 peak. A run in float32 is compared with the same peak: TPUs and, by
default, recent NVIDIA GPUs multiply float32 in narrower formats, so its MFU shows the gain that bfloat16 could bring.

Sources: Google's "System architecture" page of each TPU version; NVIDIA's and AMD's data sheets. NVIDIA often states
peaks with sparsity, which are halved here. GeForce cards: the appendices of NVIDIA's Ampere, Ada and Blackwell white
papers, which list products with float32 accumulation separately.
"""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class DeviceSpec:
  flops: float  # per second
  memory: float  # bytes
  bandwidth: float  # of the memory, bytes per second


def _spec(teraflops: float, gigabytes: float, gigabytes_per_second: float) -> DeviceSpec:
  return DeviceSpec(teraflops * 1e12, gigabytes * 1e9, gigabytes_per_second * 1e9)


def _tpu(teraflops: float, gibibytes: float, gigabytes_per_second: float) -> DeviceSpec:
  """Builds the spec of a TPU, whose memory Google states in GiB."""
  return DeviceSpec(teraflops * 1e12, gibibytes * 2**30, gigabytes_per_second * 1e9)


# Regular expressions for the full name; the first match counts.
_DEVICES: dict[str, DeviceSpec] = {
  r"TPU v2": _tpu(22.5, 8, 350),
  r"TPU v3": _tpu(61.5, 16, 450),
  r"TPU v4 lite": _tpu(138, 8, 614),
  r"TPU v4": _tpu(275, 32, 1228),
  r"TPU v5( lite|e)": _tpu(197, 16, 819),
  r"TPU v5p?": _tpu(459, 95, 2765),
  r"TPU v6( lite|e)": _tpu(918, 32, 1638),
  r"TPU ?(v7|7)x?": _tpu(1153.5, 96, 3690),
  r"NVIDIA GB200.*": _spec(2500, 186, 8000),
  r"NVIDIA B200.*": _spec(2250, 180, 7700),
  r"NVIDIA (GB300|B300).*": _spec(2500, 279, 8000),
  r"NVIDIA GH200 144G.*": _spec(989.4, 144, 4900),
  r"NVIDIA GH200.*": _spec(989.4, 96, 4000),
  r"NVIDIA H200 NVL": _spec(835.5, 141, 4800),
  r"NVIDIA H200.*": _spec(989.4, 141, 4800),
  r"NVIDIA H100 NVL": _spec(835.5, 94, 3900),
  r"NVIDIA H100 PCIe": _spec(756, 80, 2039),
  r"NVIDIA H[18]00.*": _spec(989.4, 80, 3350),
  r"NVIDIA H20": _spec(148, 96, 4000),
  r"(NVIDIA )?A[18]00.*80GB.*PCI.*": _spec(312, 80, 1935),
  r"(NVIDIA )?A[18]00.*80GB.*": _spec(312, 80, 2039),
  r"(NVIDIA )?A[18]00.*": _spec(312, 40, 1555),
  r"NVIDIA A40": _spec(149.7, 48, 696),
  r"NVIDIA A30": _spec(165, 24, 933),
  r"NVIDIA A10G": _spec(70, 24, 600),
  r"NVIDIA A10": _spec(125, 24, 600),
  r"NVIDIA L40S": _spec(362, 48, 864),
  r"NVIDIA L40": _spec(181, 48, 864),
  r"NVIDIA L4": _spec(121, 24, 300),
  r"(NVIDIA |Tesla )*V100.*(PCI|FHHL).*": _spec(112, 16, 900),
  r"(NVIDIA |Tesla )*V100.*32GB.*": _spec(125, 32, 900),
  r"(NVIDIA |Tesla )*V100.*": _spec(125, 16, 900),
  r"(NVIDIA |Tesla )*T4": _spec(65, 16, 320),
  r"NVIDIA GeForce RTX 5090": _spec(209.5, 32, 1792),
  r"NVIDIA GeForce RTX 4090": _spec(165.2, 24, 1008),
  r"NVIDIA GeForce RTX 3090": _spec(71, 24, 936),
  r"NVIDIA RTX 6000 Ada.*": _spec(364.2, 48, 960),
  r"AMD Instinct MI250X.*": _spec(191.5, 64, 1638),
  r"AMD Instinct MI300X.*": _spec(1307.4, 192, 5300),
  r"AMD Instinct MI325X.*": _spec(1307.4, 256, 6000),
  r"AMD Instinct MI355X.*": _spec(2516.6, 288, 8000),
}


def device_spec(device_kind: str) -> DeviceSpec | None:
  """Returns the spec of a `jax.Device.device_kind`; None for CPUs and unknown devices."""
  return next((spec for pattern, spec in _DEVICES.items() if re.fullmatch(pattern, device_kind)), None)


def peak_flops(device_kind: str) -> float | None:
  """Returns the dense bfloat16 FLOP/s of one device; None if unknown."""
  spec = device_spec(device_kind)
  return spec.flops if spec else None
