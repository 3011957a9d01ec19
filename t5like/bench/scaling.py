"""Scaling of a train step: tokens/s, model FLOP/s and memory as batch, length and number of layers grow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from t5like.bench.step import OurStep, matrix_ceiling, measure_in_turns
from t5like.bench.train import TrainBench, make_batch, optimizer, rates, read_workload

if TYPE_CHECKING:  # help must not wait for jax
  import flax.linen as nn

BATCHES = (1, 2, 4, 8)  # times an eighth of the requested rows
LENGTHS = (128, 256, 512, 1024, 2048)
LAYERS = (6, 12, 24, 48)
HEADER = (
  f"{'':8}{'rows':>6}{'inputs':>8}{'targets':>9}{'layers':>8}{'ms/step':>12}{'tokens/s':>12}{'TFLOP/s':>9}"
  f"{'of ceiling':>12}{'GiB':>8}{'compile s':>11}"
)


@dataclasses.dataclass(frozen=True)
class Point:
  """One row of the table."""

  series: str
  model: nn.Module
  rows: int
  lengths: dict[str, int]

  @property
  def layers(self) -> str:
    config = self.model.config
    return "+".join(str(n) for n in (config.num_encoder_layers, config.num_decoder_layers) if n)

  @property
  def sizes(self) -> dict[str, Any]:
    return {"series": self.series, "rows": self.rows, **self.lengths, "layers": self.layers}


def points(model: nn.Module, lengths: Mapping[str, int], rows: int) -> Iterator[Point]:
  """Yields points that vary one dimension at a time. The last batch is the requested one; longer rows are fewer, so
  that the tokens per step stay the same; deeper models use an eighth of the rows, so that 48 layers fit."""
  lengths = dict(lengths)
  for times in BATCHES:
    yield Point("batch", model, max(1, rows * times // BATCHES[-1]), lengths)
  for length in LENGTHS:
    longer = {name: max(1, size * length // lengths["inputs"]) for name, size in lengths.items()}
    config = model.config
    if config.position_limit is not None:
      config = dataclasses.replace(config, max_positions=max(length, config.max_positions))
    yield Point("length", model.clone(config=config), max(1, rows * lengths["inputs"] // length), longer)
  for layers in LAYERS:
    counts = {f: layers for f in ("num_encoder_layers", "num_decoder_layers") if getattr(model.config, f)}
    yield Point(
      "layers", model.clone(config=dataclasses.replace(model.config, **counts)), max(1, rows // BATCHES[-1]), lengths
    )


def measure_scaling(settings: TrainBench) -> Iterator[tuple[Point, dict[str, Any]]]:
  """Yields each point with its result: {"step_seconds", "tokens_per_second", ...}, or {"error"}."""
  work = read_workload(settings)
  ceiling = matrix_ceiling(work.dtype)
  for point in points(work.model, work.lengths, work.rows):
    batch = make_batch(point.model, point.rows, point.lengths, settings.packed)
    step = OurStep(point.model, optimizer(settings.optimizer), batch)
    (result,) = measure_in_turns([step], settings.steps, settings.seconds, lambda line: None)
    if "step_seconds" in result:
      result |= rates(point.model, point.rows, point.lengths, result["step_seconds"], ceiling)
    yield point, result


def describe(point: Point, result: Mapping[str, Any]) -> str:
  """Returns a line under HEADER."""
  targets = point.lengths.get("targets", "-")
  start = f"{point.series:8}{point.rows:>6}{point.lengths['inputs']:>8}{targets:>9}{point.layers:>8}"
  if "error" in result:
    return f"{start}  {result['error']}"
  memory = f"{result['memory_bytes'] / 2**30:>8.2f}" if result["memory_bytes"] else f"{'-':>8}"
  return (
    f"{start}{1e3 * result['step_seconds']:>12,.1f}{result['tokens_per_second']:>12,.0f}"
    f"{result['model_flops_per_second'] / 1e12:>9.4g}{result['share_of_ceiling']:>12.1%}{memory}"
    f"{result['compile_seconds']:>11.1f}"
  )
