"""Benchmark generation in tokens/s, compared with Hugging Face's `generate` and the memory bandwidth limit.

t5like bench decode --model=t5_1_1/base
t5like bench decode --model=gpt2/medium --batch_size=32 --inputs=128 --outputs=256 --json
t5like bench decode --model=t5_1_1/small --beams=4
t5like bench decode --model=t5_1_1/base --no_peer --kernels=10

Weights and prompts are random; no row ends early. Tokens are generated tokens, times those of a complete call: transfer
of prompts, encoder or prefill, all steps, transfer of outputs. A step reads the decoder's weights and the filled part
of all KV caches once: the limit is their size over the bandwidth of a copy on this machine.
If torch and transformers are installed, Hugging Face's model of the same sizes runs first on the same device, with a
static cache and torch.compile, and plain.
--kernels prints the most expensive kernels of a call on an accelerator, from JAX's profiler.
"""

from __future__ import annotations

import argparse
import dataclasses
import json

from t5like.cli.options import add_peer_python, at_least


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("--model", required=True, help="a file of gin/models, such as t5_1_1/base or gpt2/medium")
  parser.add_argument("--batch_size", type=at_least(1), default=64, help="prompts per batch (default: 64)")
  parser.add_argument("--inputs", type=at_least(1), default=512, help="tokens per prompt (default: 512)")
  parser.add_argument("--outputs", type=at_least(1), default=128, help="tokens generated per prompt (default: 128)")
  parser.add_argument("--beams", type=at_least(1), default=1, help="more than 1: beam search (default: greedy)")
  parser.add_argument("--dtype", default="bfloat16", help="dtype of the computation (default: bfloat16)")
  parser.add_argument("--backend", default="auto", help="attention backend (default: auto)")
  parser.add_argument("--no_peer", action="store_true", help="do not measure Hugging Face")
  add_peer_python(parser)
  parser.add_argument("--kernels", type=at_least(0), default=0, metavar="N", help="print the N most expensive kernels")
  parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def run(args: argparse.Namespace) -> int:
  from t5like.bench.decode import DecodeBench, compare, describe, measure_decode

  results = measure_decode(
    DecodeBench(
      model=args.model,
      batch_size=args.batch_size,
      inputs=args.inputs,
      outputs=args.outputs,
      beams=args.beams,
      dtype=args.dtype,
      backend=args.backend,
      peer=not args.no_peer,
      peer_python=args.peer_python,
      profiled=bool(args.kernels),
    )
  )
  for result in results:
    print(json.dumps(result, default=dataclasses.asdict) if args.json else describe(result, args.kernels), flush=True)
  for line in () if args.json else compare(results):
    print(line)
  return 0
