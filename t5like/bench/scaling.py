"""How cost grows with the work: tokens/s, model FLOP/s and memory for other batches, lengths and numbers of layers."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from t5like.bench import train as bench_train
from t5like.bench.step import OurStep, matrix_ceiling, measure_in_turns

if TYPE_CHECKING:  # help must not wait for jax
  import flax.linen as nn

BATCHES = (1, 2, 4, 8)  # times an eighth of the rows asked for
LENGTHS = (128, 256, 512, 1024, 2048)
LAYERS = (6, 12, 24, 48)


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


def points(model: nn.Module, lengths: Mapping[str, int], rows: int) -> Iterator[Point]:
  """One thing changes at a time. The last batch is the one asked for; longer rows are fewer, so that a step has as many
  tokens; deeper models take an eighth of the rows, which leaves room for 48 layers."""
  lengths = dict(lengths)
  for times in BATCHES:
    yield Point("batch", model, max(1, rows * times // BATCHES[-1]), lengths)
  for length in LENGTHS:
    longer = {name: max(1, size * length // lengths["inputs"]) for name, size in lengths.items()}
    config = model.config
    if config.positions == "learned":
      config = dataclasses.replace(config, max_positions=max(length, config.max_positions))
    yield Point("length", model.clone(config=config), max(1, rows * lengths["inputs"] // length), longer)
  for layers in LAYERS:
    counts = {f: layers for f in ("num_encoder_layers", "num_decoder_layers") if getattr(model.config, f)}
    yield Point(
      "layers", model.clone(config=dataclasses.replace(model.config, **counts)), max(1, rows // BATCHES[-1]), lengths
    )


def measure_scaling(model: nn.Module, lengths: Mapping[str, int], rows: int, args: argparse.Namespace) -> int:
  ceiling = matrix_ceiling(args.dtype)
  if not args.json:
    print(f"{'':8}{'rows':>6}{'inputs':>8}{'targets':>9}{'layers':>8}{'ms a step':>12}{'tokens/s':>12}{'TFLOP/s':>9}"
          f"{'of ceiling':>12}{'GiB':>8}{'compile s':>11}", flush=True)  # fmt: skip
  for point in points(model, lengths, rows):
    batch = bench_train.make_batch(point.model, point.rows, point.lengths, args.packed)
    step = OurStep(point.model, bench_train.optimizer(args.optimizer), batch)
    (result,) = measure_in_turns([step], args.steps, args.seconds, lambda line: None)
    if "step_seconds" in result:
      result |= bench_train.rates(point.model, point.rows, point.lengths, result["step_seconds"], ceiling)
    where = {"series": point.series, "rows": point.rows, **point.lengths, "layers": point.layers}
    print(json.dumps(where | result) if args.json else _row(where, result), flush=True)
  return 0


def _row(where: Mapping[str, Any], result: Mapping[str, Any]) -> str:
  start = f"{where['series']:8}{where['rows']:>6}{where['inputs']:>8}{where.get('targets', '-'):>9}{where['layers']:>8}"
  if "error" in result:
    return f"{start}  {result['error']}"
  memory = f"{result['memory_bytes'] / 2**30:>8.2f}" if result["memory_bytes"] else f"{'-':>8}"
  return (
    f"{start}{1e3 * result['step_seconds']:>12,.1f}{result['tokens_per_second']:>12,.0f}"
    f"{result['model_flops_per_second'] / 1e12:>9.4g}{result['share_of_ceiling']:>12.1%}{memory}"
    f"{result['compile_seconds']:>11.1f}"
  )
