"""Benchmark train steps: time, tokens/s, model FLOP/s, share of this machine's matrix-product ceiling, memory.

t5like bench train --model=t5_1_1/base
t5like bench train --model=gpt2/medium --batch_size=32 --inputs=1024 --peer
t5like bench train --model=llama/llama3_2_1b --batch_size=8 --inputs=2048 --peer
t5like bench train --model=t5_1_1/base --packed --json
t5like bench train --model=t5_1_1/base --scaling
t5like bench train --model=t5_1_1/base --kernels=10
t5like bench train --model=t5_1_1/large --gin_file=finetune/methods/lora.gin --batch_size=16 --inputs=512 --targets=114

Batches are random tokens, parameters float32, dropout as the model file sets it (0 for T5 1.1, 0.1 for T5, BERT and
GPT-2; --dropout=0.1 for another rate), the optimizer included; compilation is timed separately.
Tokens are inputs and targets. Model FLOPs are those of planning/flops.py: matrix products once forward, twice
backward, attention in full. Memory is that of the compiled step on one device, including the train state.
--peer trains Hugging Face's model of the same sizes on the same device, eager and compiled: before ours, or in turns
with ours on a CPU. If torch is installed elsewhere: --peer_python=~/torch/bin/python.
With a file of finetune/methods/ (or --gin.TRAINABLE), only what it names trains; --peer then uses peft for LoRA and
prompt tuning. `base` is the memory of the frozen parameters.
--scaling prints a table of tokens/s and memory as batch, length and number of layers grow.
--kernels prints the most expensive kernels of a step on an accelerator, from JAX's profiler.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from t5like.cli.options import add_gin_arguments, add_peer_python, at_least, gin_search_paths
from t5like.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
  add_gin_arguments(parser)
  parser.add_argument("--model", help="a file of gin/models, such as t5_1_1/base, gpt2/medium or bert/large")
  parser.add_argument(
    "--batch_size", type=at_least(1), help="rows per step (default: the model file's, at most 8 on a CPU)"
  )
  parser.add_argument("--inputs", type=at_least(1), help="input tokens per row (default: the model file's)")
  parser.add_argument(
    "--targets",
    type=at_least(1),
    help="target tokens per row of an encoder-decoder (default: those of span corruption)",
  )
  parser.add_argument("--packed", action="store_true", help="rows of several examples, separated by segment ids")
  parser.add_argument("--dtype", help="dtype of the computation (default: bfloat16, or float32 on a CPU)")
  parser.add_argument("--backend", default="auto", help="attention backend (default: auto)")
  parser.add_argument("--dropout", type=float, metavar="RATE", help="dropout rate (default: the model file's)")
  parser.add_argument("--optimizer", choices=("adafactor", "adamw"), default="adafactor", help="(default: adafactor)")
  parser.add_argument("--steps", type=int, default=30, help="timed steps (default: 30)")
  parser.add_argument(
    "--seconds", type=float, default=60.0, help="run fewer steps if they would take longer (default: 60)"
  )
  parser.add_argument("--peer", action="store_true", help="compare with Hugging Face's model (torch, transformers)")
  add_peer_python(parser)
  parser.add_argument("--scaling", action="store_true", help="vary batch size, length and number of layers")
  parser.add_argument("--kernels", type=at_least(0), default=0, metavar="N", help="print the N most expensive kernels")
  parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def run(args: argparse.Namespace) -> int:
  from t5like.bench.step import WINDOWS
  from t5like.bench.train import TrainBench, compare, describe, measure_train

  if args.steps < WINDOWS:
    raise UserError(f"invalid --steps: {args.steps}", expected=f"at least {WINDOWS}")
  files = [f"models/{args.model.removesuffix('.gin')}.gin"] if args.model else []
  if not files and not args.gin_file:
    raise UserError("--model is required", try_="t5like bench train --model=t5_1_1/base")
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
    dropout=args.dropout,
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
