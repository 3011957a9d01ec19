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
import sys

from t5like.cli.options import add_gin_arguments, gin_search_paths
from t5like.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
  add_gin_arguments(parser)
  parser.add_argument("--model", help="a file of gin/models, such as t5_1_1/base, gpt2/medium or bert/large")
  parser.add_argument("--batch_size", type=int, help="rows of a step (default: the model file's, on a CPU at most 8)")
  parser.add_argument("--inputs", type=int, help="input tokens of a row (default: the model file's)")
  parser.add_argument("--targets", type=int, help="target tokens of an encoder-decoder (default: as span corruption)")
  parser.add_argument("--packed", action="store_true", help="rows of several examples, kept apart by segment ids")
  parser.add_argument("--dtype", help="of the computation (default: bfloat16; on a CPU float32)")
  parser.add_argument("--backend", default="auto", help="attention back end (default: auto)")
  parser.add_argument("--optimizer", choices=("adafactor", "adamw"), default="adafactor", help="(default: adafactor)")
  parser.add_argument("--steps", type=int, default=30, help="timed steps (default: 30)")
  parser.add_argument("--seconds", type=float, default=60.0, help="fewer steps where they take longer (default: 60)")
  parser.add_argument("--peer", action="store_true", help="Hugging Face's model beside it (torch, transformers)")
  parser.add_argument("--peer_python", metavar="PYTHON", help="an interpreter that has them (default: this one)")
  parser.add_argument("--scaling", action="store_true", help="a table: other batches, lengths and numbers of layers")
  parser.add_argument("--kernels", type=int, default=0, metavar="N", help="the N most expensive kernels of a step")
  parser.add_argument("--json", action="store_true", help="one JSON object a line instead of text")


def run(args: argparse.Namespace) -> int:
  from t5like.bench.step import WINDOWS
  from t5like.bench.train import TrainBench, compare, describe, measure_train

  if args.steps < WINDOWS:
    raise UserError(f"--steps={args.steps} is too few", expected=f"at least {WINDOWS}")
  files = [f"models/{args.model.removesuffix('.gin')}.gin"] if args.model else []
  if not files and not args.gin_file:
    raise UserError("which model?", try_="t5like bench train --model=t5_1_1/base")
  settings = TrainBench(
    gin_files=[*files, *args.gin_file],
    overrides=args.gin_overrides,
    search_paths=gin_search_paths(args),
    batch_size=args.batch_size,
    inputs=args.inputs,
    targets=args.targets,
    packed=args.packed,
    dtype=args.dtype,
    backend=args.backend,
    optimizer=args.optimizer,
    steps=args.steps,
    seconds=args.seconds,
    peer=args.peer or bool(args.peer_python),
    peer_python=args.peer_python,
    profiled=bool(args.kernels),
  )
  if args.scaling:
    return _show_scaling(settings, args.json)
  results = measure_train(settings, _say)
  for result in results:
    print(json.dumps(result, default=dataclasses.asdict) if args.json else describe(result, args.kernels), flush=True)
  for line in () if args.json else compare(results):
    print(line, flush=True)
  return 1 if "error" in results[-1] else 0


def _show_scaling(settings, as_json: bool) -> int:
  from t5like.bench.scaling import HEADER, describe, measure_scaling

  if not as_json:
    print(HEADER, flush=True)
  for point, result in measure_scaling(settings):
    print(json.dumps(point.sizes | result) if as_json else describe(point, result), flush=True)
  return 0


def _say(line: str) -> None:
  """Prints progress to stderr; stdout carries results only."""
  print(line, file=sys.stderr, flush=True)
