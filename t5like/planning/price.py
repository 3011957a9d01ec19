"""The cost of device-hours: money, energy, and CO2e."""

from __future__ import annotations

import dataclasses

from t5like.planning.topology import Chip

# Google's fleet, 2024 (Environmental Report 2025); large clouds are between 1.1 and 1.2.
PUE = 1.1
# kg per kWh, US average (EPA, eGRID2022). Regions range from a tenth to twice of it.
CO2E = 0.373
# A busy accelerator draws slightly less than its limit; host, network and fans add about a third (a DGX H100 is rated
# at 10.2 kW for eight GPUs of 700 W).
BUSY, REST_OF_MACHINE = 0.85, 0.35


@dataclasses.dataclass(frozen=True)
class Price:
  """The cost of a run; None for unknown prices or power."""

  device_hours: float
  dollars: float | None
  kilowatt_hours: float | None
  kilograms: float | None


def price_of(
  device_hours: float, chip: Chip, dollars_per_hour: float | None = None, pue: float = PUE, co2e: float = CO2E
) -> Price:
  """Returns the cost of device-hours; `dollars_per_hour` is per device, None: the chip's list price."""
  rate = chip.price if dollars_per_hour is None else dollars_per_hour
  known = rate > 0 or dollars_per_hour is not None
  energy = device_hours * device_watts(chip) / 1000 * pue if chip.watts else None
  return Price(device_hours, device_hours * rate if known else None, energy, None if energy is None else energy * co2e)


def device_watts(chip: Chip) -> float:
  """Returns the power of a busy device, including its share of the host."""
  return chip.watts * BUSY * (1 + REST_OF_MACHINE)


def assumptions(chip: Chip, dollars_per_hour: float | None, pue: float, co2e: float) -> list[str]:
  """Returns the assumptions behind prices, energy and CO2e, as text."""
  price = f"${dollars_per_hour:g} per device-hour, as given" if dollars_per_hour is not None else chip.price_source
  lines = [f"price: {price or 'unknown for this device'}"]
  if not chip.watts:
    return [*lines, "energy: the power of this device is unknown"]
  return [
    *lines,
    f"energy: {chip.watts:g} W per chip ({chip.watts_source}), {BUSY:.0%} drawn, {REST_OF_MACHINE:.0%} more for the "
    f"host, times {pue:g} for cooling and losses (PUE)",
    f"CO2e: {co2e:g} kg per kWh{' (US average, EPA eGRID2022)' if co2e == CO2E else ''}",
  ]
