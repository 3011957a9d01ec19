"""Plans as text: aligned tables, and bars for memory."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from t5like.console import memory_size, table
from t5like.kernels.attention import compile_for
from t5like.models.attention import describe_backend
from t5like.models.stack import describe_layer_loop
from t5like.planning.forecast import Forecast, parameters_by_part
from t5like.planning.price import Price
from t5like.planning.run_card import large
from t5like.planning.step_time import efficiency_of

_BAR = 40
_WIDTH = 110
# In the order of the data flow.
_PARTS = (
  "embedding", "encoder attention", "encoder MLP", "encoder norms and positions", "decoder attention",
  "cross-attention", "decoder MLP", "decoder norms and positions", "shared attention", "shared MLP",
  "shared norms and positions", "generator", "heads", "output", "teacher", "optimizer", "communication",
)  # fmt: skip


def render_plan(forecasts: Sequence[Forecast], price: Price, assumptions: Sequence[str]) -> str:
  """Formats the plan of a run with a forecast for each phase; the last is shown in detail."""
  last = forecasts[-1]
  sections = {
    "machine": _machine(last),
    "model": _parts(last),
    "memory": _memory(max(forecasts, key=lambda f: f.memory.total)),
    "network": _network(last),
    "step": _step(last),
    "run": _run(forecasts, price),
    "assumed": [part for line in assumptions for part in textwrap.wrap(line, _WIDTH, subsequent_indent="  ")],
  }
  return "\n".join(_section(name, lines) for name, lines in sections.items() if lines)


def _section(name: str, lines: Sequence[str]) -> str:
  width = 9
  return "\n".join(f"{name if not i else '':<{width}}{line}".rstrip() for i, line in enumerate(lines))


def numbers_table(rows: Sequence[Sequence[str]]) -> list[str]:
  """Returns the lines of a table whose first column is text and whose other columns are numbers."""
  return table(rows, right=range(1, len(rows[0]))).split("\n")


def _machine(forecast: Forecast) -> list[str]:
  spec = forecast.topology.chip.spec
  mesh = " ".join(f"{axis}={size}" for axis, size in forecast.mesh.items())
  each = f"{large(spec.flops, 'FLOP')}/s, {memory_size(spec.memory)} at {large(spec.bandwidth, 'B')}/s"
  return [f"{forecast.topology.describe()}; each {each}", f"mesh {mesh}"]


def _parts(forecast: Forecast) -> list[str]:
  work, config = forecast.work, forecast.work.model.config
  numbers, flops = parameters_by_part(work.state.params), work.flops_by_part()
  seconds = forecast.time.by_part
  rows = [("part", "parameters", "FLOPs/step", "share", "time")]
  for part in (part for part in _PARTS if part in {**numbers, **flops, **seconds}):
    share = f"{flops[part] / forecast.flops:.1%}" if part in flops else ""
    rows.append(
      (
        part,
        f"{numbers[part]:,}" if part in numbers else "",
        large(flops[part], "FLOP") if part in flops else "",
        share,
        milliseconds(seconds[part]) if part in seconds else "",
      )
    )
  total = sum(numbers.values())
  rows.append(("total", f"{total:,}", large(forecast.flops, "FLOP"), "", milliseconds(forecast.time.seconds)))
  lengths = " + ".join(str(n) for n in work.lengths.values() if n)
  parts = f" in {work.microbatches} microbatches" if work.microbatches > 1 else ""
  head = f"{type(work.model).__name__}, batches of {work.rows} x ({lengths}) tokens{parts}, remat {config.remat}"
  attention = [f"attention {line}" for line in attention_backends(forecast).split("\n")]
  layers = f"layers {describe_layer_loop(config, forecast.topology.chip.platform)}"
  return [f"{head}, compute in {config.compute_dtype}", layers, *attention, *numbers_table(rows)]


def attention_backends(forecast: Forecast) -> str:
  """Describes the attention backends that the planned machine would use, and why."""
  with compile_for(forecast.topology.chip.platform):
    return describe_backend(forecast.work.model.config, **forecast.work.lengths)


def _memory(forecast: Forecast) -> list[str]:
  memory, capacity = forecast.memory, forecast.capacity
  rows = []
  for part in ("parameters", "optimizer", "gradients", "activations", "temporaries"):
    size = getattr(memory, part)
    rows.append((part, memory_size(size), _bar(size, capacity)))
  verdict = "fits" if forecast.fits else "DOES NOT FIT"
  rows.append(("peak", memory_size(memory.total), _bar(memory.total, capacity)))
  return [
    f"per device, {memory_size(capacity)} of {memory_size(forecast.topology.chip.spec.memory)} usable: {verdict}",
    *table(rows, right=(1,)).split("\n"),
    f"peak {memory.moment}; gradients replace activations during the backward pass",
  ]


def _bar(size: float, capacity: float) -> str:
  filled = max(round(_BAR * min(size / capacity, 1.0)), int(size > 0))  # at least one mark
  return f"|{'#' * filled}{'.' * (_BAR - filled)}| {size / capacity:.1%}"


def _network(forecast: Forecast) -> list[str]:
  if not forecast.collectives:
    return ["no communication (one device)"] if forecast.topology.devices == 1 else ["no communication"]
  rows = [("collective", "axis", "devices", "link", "bytes/device", "time", "")]
  chip = forecast.topology.chip
  for c in forecast.collectives:
    exposed = efficiency_of(chip.platform, chip.name).exposed_share(c)
    overlap = {0.0: "overlapped", 1.0: "exposed"}.get(exposed, f"{exposed:.0%} exposed")
    rows.append((c.name, c.axis, str(c.devices), c.link, memory_size(c.bytes), milliseconds(c.seconds), overlap))
  return numbers_table(rows)


def _step(forecast: Forecast) -> list[str]:
  time = forecast.time
  spent = ", ".join(f"{name} {seconds / time.seconds:.0%}" for name, seconds in time.spent.items() if seconds)
  tokens = forecast.work.tokens
  rate, spread = tokens / time.seconds, forecast.step_range
  seconds, shares, rates = "", "", ""
  if spread:
    shortest, longest = spread
    seconds = f" ({milliseconds(shortest)} to {milliseconds(longest)})"
    low, high = (forecast.peak_share * time.seconds / end for end in (longest, shortest))
    shares = f" ({low:.0%} to {high:.0%})"
    rates = f" ({large(tokens / longest)} to {large(tokens / shortest)})"
  skips = time.spent["attention"] and any(name.endswith("segment_ids") for name in forecast.work.batch)
  return [
    f"{milliseconds(time.seconds)}{seconds}, bound by {time.bound} ({spent})",
    *(["upper bound: counts attention between the examples of a packed row, which kernels may skip"] if skips else []),
    f"{forecast.peak_share:.1%} MFU{shares}, {rate:,.0f} tokens/s{rates}, {large(86_400 * rate)} tokens/day",
  ]


def _run(forecasts: Sequence[Forecast], price: Price) -> list[str]:
  steps = sum(f.work.steps for f in forecasts)
  tokens = sum(f.work.steps * f.work.tokens for f in forecasts)
  flops = sum(f.work.steps * f.flops for f in forecasts)
  seconds = sum(f.seconds for f in forecasts)
  ends = run_range(forecasts)
  times = f" ({' to '.join(days(end) for end in ends)})" if ends else ""
  lines = [
    f"{steps:,} steps, {large(tokens)} tokens, {large(flops, 'FLOP')}: {days(seconds)}{times}",
    "(steps only; without compilation, checkpoints, evaluation and restarts)",
    price_text(price, [end / seconds for end in ends] if ends else None),
  ]
  if len(forecasts) > 1:
    rows = [("phase", "steps", "batch", "step", "total")]
    for number, f in enumerate(forecasts, 1):
      lengths = "+".join(str(n) for n in f.work.lengths.values() if n)
      rows.append(
        (str(number), f"{f.work.steps:,}", f"{f.work.rows} x {lengths}", milliseconds(f.time.seconds), days(f.seconds))
      )
    lines += numbers_table(rows)
  return lines


def run_range(forecasts: Sequence[Forecast]) -> tuple[float, float] | None:
  """Returns the shortest and the longest time of all steps; None if a forecast has no range."""
  ranges = [f.step_range for f in forecasts]
  if None in ranges:
    return None
  shortest, longest = (sum(f.work.steps * ends[i] for f, ends in zip(forecasts, ranges, strict=True)) for i in (0, 1))
  return shortest, longest


def price_text(price: Price, factors: Sequence[float] | None = None) -> str:
  """Formats a price; `factors` are the multiples of it for the shortest and the longest run, if known."""
  parts = [f"{_number(price.device_hours)} device-hours"]
  if price.dollars is not None:
    ends = " to ".join(f"${_number(price.dollars * factor)}" for factor in factors or ())
    parts.append(f"${_number(price.dollars)}" + (f" ({ends})" if ends else ""))
  if price.kilowatt_hours is not None:
    for amount, small, big in ((price.kilowatt_hours, "kWh", "MWh"), (price.kilograms, "kg CO2e", "t CO2e")):
      parts.append(f"{amount:.3g} {small}" if amount < 1000 else f"{amount / 1000:,.3g} {big}")
  return ", ".join(parts)


def _number(value: float) -> str:
  return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def milliseconds(seconds: float) -> str:
  return f"{seconds:.2f} s" if seconds >= 10 else f"{1e3 * seconds:.1f} ms"


def days(seconds: float) -> str:
  for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
    if seconds >= 2 * size:
      return f"{seconds / size:,.1f} {unit}"
  return f"{seconds:.1f} seconds"


def candidates_table(found: Sequence[Forecast]) -> list[str]:
  """Returns a table with a line for each candidate."""
  rows = [("mesh", "batch", "microbatches", "remat", "step", "tokens/s", "MFU", "memory", "bound by")]
  for f in found:
    axes = {name: getattr(f.axes, name) for name in ("slices", "data", "fsdp", "expert", "tensor")}
    shown = " ".join(f"{name}={size}" for name, size in axes.items() if size > 1 or name == "data")
    rows.append(
      (
        shown, str(f.work.rows), str(f.work.microbatches), f.work.model.config.remat, milliseconds(f.time.seconds),
        f"{f.work.tokens / f.time.seconds:,.0f}", f"{f.peak_share:.1%}", memory_size(f.memory.total), f.time.bound,
      )
    )  # fmt: skip
  return numbers_table(rows)


def as_dict(forecast: Forecast) -> dict[str, object]:
  """Returns a forecast in bytes, seconds and FLOPs, for JSON."""
  work, topology, memory = forecast.work, forecast.topology, forecast.memory
  result: dict[str, object] = {
    "topology": topology.name,
    "device": topology.chip.device_kind,
    "devices": topology.devices,
    "mesh": {**forecast.mesh, "slices": forecast.axes.slices},
    "batch_size": work.rows,
    "microbatches": work.microbatches,
    "remat": work.model.config.remat,
    "layers": describe_layer_loop(work.model.config, topology.chip.platform),
    "attention": attention_backends(forecast),
    "lengths": work.lengths,
    "parameters": parameters_by_part(work.state.params),
    "flops_a_step": work.flops_by_part(),
    "step_seconds": forecast.time.seconds,
    "seconds_by_kind": dict(forecast.time.spent),
    "seconds_by_part": dict(forecast.time.by_part),
    "bound": forecast.time.bound,
    "step_seconds_range": forecast.step_range,
    "peak_share": forecast.peak_share,
    "tokens_a_step": work.tokens,
    "tokens_a_day": 86_400 * work.tokens / forecast.time.seconds,
    "steps": work.steps,
    "seconds": forecast.seconds,
    "collectives": [_fields(c) for c in forecast.collectives],
  }
  if memory:
    result["memory"] = {**_fields(memory), "total": memory.total, "usable": forecast.capacity}
    result["fits"] = forecast.fits
  return result


def _fields(item: object) -> Mapping[str, object]:
  return dict(vars(item))
