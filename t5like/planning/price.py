"""What device-hours cost: money, energy, and the CO2e of that energy."""

from __future__ import annotations

import dataclasses

from t5like.planning.topology import Chip

# Google's fleet, 2024 (Environmental Report 2025); large clouds are between 1.1 and 1.2.
PUE = 1.1
# kg a kWh, US average (EPA, eGRID2022). A region's own figure may be a tenth or twice of it.
CO2E = 0.373
# A busy accelerator draws a little less than its limit; host, network and fans draw about a third of that again
# (a DGX H100 is rated 10.2 kW for eight GPUs of 700 W).
BUSY, REST_OF_MACHINE = 0.85, 0.35


@dataclasses.dataclass(frozen=True)
class Price:
  """Of a run. None where a price or the watts are not known."""

  device_hours: float
  dollars: float | None
  kilowatt_hours: float | None
  kilograms: float | None


def price_of(
  device_hours: float, chip: Chip, dollars_an_hour: float | None = None, pue: float = PUE, co2e: float = CO2E
) -> Price:
  """`dollars_an_hour` of one device; None: the list price of the chip."""
  rate = chip.price if dollars_an_hour is None else dollars_an_hour
  known = rate > 0 or dollars_an_hour is not None
  energy = device_hours * device_watts(chip) / 1000 * pue if chip.watts else None
  return Price(device_hours, device_hours * rate if known else None, energy, None if energy is None else energy * co2e)


def device_watts(chip: Chip) -> float:
  """A device at work, with its share of the machine around it."""
  return chip.watts * BUSY * (1 + REST_OF_MACHINE)


def assumptions(chip: Chip, dollars_an_hour: float | None, pue: float, co2e: float) -> list[str]:
  """What the figures rest on, for people."""
  price = f"${dollars_an_hour:g} a device-hour, as given" if dollars_an_hour is not None else chip.price_source
  lines = [f"price: {price or 'none is known for this device'}"]
  if not chip.watts:
    return [*lines, "energy: the watts of this device are not known"]
  return [
    *lines,
    f"energy: {chip.watts:g} W a chip ({chip.watts_source}), {BUSY:.0%} drawn, {REST_OF_MACHINE:.0%} more for the "
    f"machine around it, times {pue:g} for cooling and losses",
    f"CO2e: {co2e:g} kg a kWh{' (US average, EPA eGRID2022)' if co2e == CO2E else ''}",
  ]
