"""How fast a train step is: time, tokens/s, model FLOP/s, share of this machine's matrix-product ceiling, memory.

t5like bench train --model=t5_1_1/base
t5like bench train --model=gpt2/medium --batch_size=32 --inputs=1024 --peer
t5like bench train --model=t5_1_1/base --packed --json
t5like bench train --model=t5_1_1/base --scaling
t5like bench train --model=t5_1_1/base --kernels=10

Batches are random tokens, parameters float32, dropout off, the optimizer included; compilation is timed apart.
Tokens count inputs and targets. Model FLOPs are those of planning/flops.py: matrix products once forward, twice
backward, attention in full. Memory is what the compiled step takes on one device, its state included.
With --peer, Hugging Face's model of the same sizes trains on the same device, eager and compiled: first, and on a CPU
in turns with ours. Torch may live elsewhere: --peer_python=~/torch/bin/python.
With --scaling, a table of tokens/s and memory as batch, length and layers grow.
With --kernels, the most expensive kernels of a step on an accelerator, as JAX's profiler saw them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from t5like.bench.kernels import table
from t5like.bench.step import WINDOWS, OurStep, Subject, matrix_ceiling, measure_in_turns
from t5like.cli.options import add_gin_arguments, gin_search_paths
from t5like.errors import UserError

if TYPE_CHECKING:  # help must not wait for jax
  import flax.linen as nn

  from t5like.experiments.experiment import Experiment
  from t5like.training.optimizers import Optimizer

_MASKED_SHARE = 0.15
_PREDICTED_SHARE = 0.16  # only masked positions are predicted
_ACCELERATORS = ("/dev/nvidiactl", "/dev/accel0", "/dev/vfio/0", "/dev/kfd")
_CPU_ROWS = 8  # a step of T5's 128 rows of 512 tokens takes minutes there
OPTIMIZERS = ("adafactor", "adamw")


def configure(parser: argparse.ArgumentParser) -> None:
  add_gin_arguments(parser)
  parser.add_argument("--model", help="a file of gin/models, such as t5_1_1/base, gpt2/medium or bert/large")
  parser.add_argument("--batch_size", type=int, help="rows of a step (default: the model file's, on a CPU at most 8)")
  parser.add_argument("--inputs", type=int, help="input tokens of a row (default: the model file's)")
  parser.add_argument("--targets", type=int, help="target tokens of an encoder-decoder (default: as span corruption)")
  parser.add_argument("--packed", action="store_true", help="rows of several examples, kept apart by segment ids")
  parser.add_argument("--dtype", help="of the computation (default: bfloat16; on a CPU float32)")
  parser.add_argument("--backend", default="auto", help="attention back end (default: auto)")
  parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adafactor", help="(default: adafactor)")
  parser.add_argument("--steps", type=int, default=30, help="timed steps (default: 30)")
  parser.add_argument("--seconds", type=float, default=60.0, help="fewer steps where they take longer (default: 60)")
  parser.add_argument("--peer", action="store_true", help="Hugging Face's model beside it (torch, transformers)")
  parser.add_argument("--peer_python", metavar="PYTHON", help="an interpreter that has them (default: this one)")
  parser.add_argument("--scaling", action="store_true", help="a table: other batches, lengths and numbers of layers")
  parser.add_argument("--kernels", type=int, default=0, metavar="N", help="the N most expensive kernels of a step")
  parser.add_argument("--json", action="store_true", help="one JSON object a line instead of text")


def run(args: argparse.Namespace) -> int:
  if args.steps < WINDOWS:
    raise UserError(f"--steps={args.steps} is too few", expected=f"at least {WINDOWS}")
  experiment, model, lengths, rows = _model_and_sizes(args)
  if args.scaling:
    from t5like.bench.scaling import measure_scaling

    return measure_scaling(model, lengths, rows, args)
  batch = make_batch(model, rows, lengths, args.packed)
  ours = OurStep(model, optimizer(args.optimizer), batch, bool(args.kernels), experiment.deterministic)
  results = _measure([*_peers(args, model, lengths, rows), ours], args)
  ceiling = matrix_ceiling(args.dtype)
  for result in results:
    if "step_seconds" in result:
      result |= rates(model, rows, lengths, result["step_seconds"], ceiling)
    print(json.dumps(result, default=dataclasses.asdict) if args.json else _text(result, args.kernels), flush=True)
  if not args.json:
    _compare(results)
  return 1 if "error" in results[-1] else 0


def _peers(args: argparse.Namespace, model: nn.Module, lengths: Mapping[str, int], rows: int) -> list[Subject]:
  if not args.peer and not args.peer_python:
    return []
  from t5like.bench.peer import PeerStep

  return [
    PeerStep(model.config, model.batch_layout, rows, lengths, args.dtype, compiled, args.peer_python)
    for compiled in (False, True)
  ]


def _measure(subjects: list[Subject], args: argparse.Namespace) -> list[dict[str, Any]]:
  """On a CPU in turns. On other devices one after the other, ours last: jax keeps the memory it has once taken."""
  groups = [subjects] if _on_cpu() else [[subject] for subject in subjects]
  return [result for group in groups for result in measure_in_turns(group, args.steps, args.seconds, say)]


def say(line: str) -> None:
  """Of how it goes: the results alone are on standard output."""
  print(line, file=sys.stderr, flush=True)


def _on_cpu() -> bool:
  """Whether there is no accelerator. jax is not asked: it would take the memory that a peer needs first."""
  if os.environ.get("JAX_PLATFORMS") == "cpu":
    return True
  return not any(Path(device).exists() for device in _ACCELERATORS)


def _model_and_sizes(args: argparse.Namespace) -> tuple[Experiment, nn.Module, dict[str, int], int]:
  from t5like.experiments.reading import read_model
  from t5like.objectives import CATALOGUE

  files = [f"models/{args.model.removesuffix('.gin')}.gin"] if args.model else []
  if not files and not args.gin_file:
    raise UserError("which model?", try_="t5like bench train --model=t5_1_1/base")
  args.dtype = args.dtype or ("float32" if _on_cpu() else "bfloat16")
  # A run file binds the model; what else it asks for has no part in a measurement.
  fixed = [("DROPOUT_RATE", "0.0"), ("COMPUTE_DTYPE", args.dtype), ("ATTENTION_BACKEND", args.backend)]
  overrides = [("train.objective", "@span_corruption()"), *fixed, *args.gin_overrides]
  experiment = read_model(["runs/pretrain.gin", *files, *args.gin_file], overrides, gin_search_paths(args))
  lengths = {"inputs": experiment.lengths["inputs"] if args.inputs is None else args.inputs}
  if experiment.model.batch_layout == "encoder_decoder":
    wanted = CATALOGUE["span_corruption"].lengths(max(lengths["inputs"], 1)).targets
    lengths["targets"] = wanted if args.targets is None else args.targets
  model = experiment.model
  if model.batch_layout == "encoder":
    model = model.clone(predicted_share=_PREDICTED_SHARE)
  rows = min(experiment.batch_size, _CPU_ROWS) if _on_cpu() else experiment.batch_size
  rows = rows if args.batch_size is None else args.batch_size
  for name, value in {"batch_size": rows, **lengths}.items():
    if value < 1:
      raise UserError(f"--{name}={value} cannot work", expected="a whole number of at least 1")
  return experiment, model, lengths, rows


def stack_lengths(layout: str, lengths: Mapping[str, int]) -> dict[str, int]:
  """The tokens of a row in each stack; 0 where the model has none."""
  if layout == "encoder_decoder":
    return {"encoder_length": lengths["inputs"], "decoder_length": lengths["targets"]}
  side = "encoder" if layout == "encoder" else "decoder"
  return {"encoder_length": 0, "decoder_length": 0} | {f"{side}_length": lengths["inputs"]}


def make_batch(model: nn.Module, rows: int, lengths: Mapping[str, int], packed: bool = False) -> dict[str, np.ndarray]:
  """Random tokens without padding; packed rows hold four examples."""
  rng = np.random.default_rng(0)
  layout = model.batch_layout

  def tokens(length):
    return rng.integers(2, model.config.vocab_size, (rows, length), dtype=np.int32)

  batch = {}
  for side, length in stack_lengths(layout, lengths).items():
    if not length:
      continue
    side = side.removesuffix("_length")
    batch[f"{side}_input_tokens"] = tokens(length)
    if side == "decoder" or layout == "encoder":
      batch[f"{side}_target_tokens"] = tokens(length)
      batch[f"{side}_loss_weights"] = np.ones((rows, length), np.float32)
    if packed:
      segments = np.minimum(np.arange(length) * 4 // length, 3)
      starts = np.searchsorted(segments, segments)
      batch[f"{side}_segment_ids"] = np.tile((segments + 1).astype(np.int32), (rows, 1))
      batch[f"{side}_positions"] = np.tile((np.arange(length) - starts).astype(np.int32), (rows, 1))
  if layout == "encoder":
    length = lengths["inputs"]
    masked = np.argsort(rng.random((rows, length)), axis=1) < max(1, round(_MASKED_SHARE * length))
    batch["encoder_loss_weights"] = masked.astype(np.float32)
    batch["encoder_token_types"] = np.zeros((rows, length), np.int32)
  if layout == "prefix_lm":
    batch["decoder_causal_attention"] = np.tile(np.arange(lengths["inputs"]) < lengths["inputs"] // 2, (rows, 1)) * 1
  return batch


def optimizer(name: str) -> Optimizer:
  from t5like.training import optimizers

  return getattr(optimizers, name)(1e-3)


def rates(model: nn.Module, rows: int, lengths: Mapping[str, int], seconds: float, ceiling: float) -> dict[str, float]:
  from t5like import planning

  flops = planning.train_step_flops(model.config, rows, **stack_lengths(model.batch_layout, lengths))
  return {
    "tokens_per_second": rows * sum(lengths.values()) / seconds,
    "model_flops_per_second": flops / seconds,
    "share_of_ceiling": flops / seconds / ceiling,
    "ceiling_flops_per_second": ceiling,
  }


def _text(result: Mapping[str, Any], kernels: int = 0) -> str:
  from t5like.console import memory_size

  if "error" in result:
    return f"{result['name']}: {result['error']}"
  lines = [
    f"{result['name']}: {1e3 * result['step_seconds']:.1f} ms a step (spread {result['spread']:.1%}), "
    f"{result['tokens_per_second']:,.0f} tokens/s, {result['model_flops_per_second'] / 1e12:.4g} model TFLOP/s, "
    f"{result['share_of_ceiling']:.1%} of {result['ceiling_flops_per_second'] / 1e12:.4g}",
    f"  {result['device']}, {result['optimizer']}",
  ]
  if result["memory_bytes"]:
    lines.append(f"  memory {memory_size(result['memory_bytes'])} a device")
  lines.append(f"  compiled in {result['compile_seconds']:.1f} s")
  if "attention" in result:
    lines.append("  attention " + result["attention"].replace("\n", "\n            "))
  if "layers" in result:
    lines.append(f"  layers {result['layers']}")
  if "kernels" in result:
    lines.append(table(result["kernels"], kernels))
  return "\n".join(lines)


def _compare(results: Sequence[Mapping[str, Any]]) -> None:
  *peers, ours = results
  for peer in peers:
    if "step_seconds" in peer and "step_seconds" in ours:
      print(f"t5like is {peer['step_seconds'] / ours['step_seconds']:.2f} times as fast as {peer['name']}", flush=True)
