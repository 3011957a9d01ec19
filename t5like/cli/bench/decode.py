"""How fast outputs are written: tokens/s, beside Hugging Face's `generate` and the limit of the memory's bandwidth.

t5like bench decode --model=t5_1_1/base
t5like bench decode --model=gpt2/medium --batch_size=32 --inputs=128 --outputs=256 --json
t5like bench decode --model=t5_1_1/small --beams=4

Random weights and prompts; no row ends early. Tokens are written ones, the time that of a whole call: prompts to the
device, encoder or prompt, all steps, outputs back. A step reads the decoder's weights and the filled part of all caches
once: their bytes over the bandwidth that a copy reaches here are the limit, told for steps alone.
Where torch and transformers are installed, Hugging Face's model of the same sizes runs on the same device first:
with a static cache and torch.compile, and plain.
"""

from __future__ import annotations

import argparse
import json

from t5like.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("--model", required=True, help="a file of gin/models, such as t5_1_1/base or gpt2/medium")
  parser.add_argument("--batch_size", type=int, default=64, help="prompts at a time (default: 64)")
  parser.add_argument("--inputs", type=int, default=512, help="tokens of each prompt (default: 512)")
  parser.add_argument("--outputs", type=int, default=128, help="tokens to write after each (default: 128)")
  parser.add_argument("--beams", type=int, default=1, help="more than 1: beam search (default: greedy)")
  parser.add_argument("--dtype", default="bfloat16", help="of the computation (default: bfloat16)")
  parser.add_argument("--backend", default="auto", help="attention back end (default: auto)")
  parser.add_argument("--no_peer", action="store_true", help="leave Hugging Face out")
  parser.add_argument("--peer_python", metavar="PYTHON", help="an interpreter that has torch (default: this one)")
  parser.add_argument("--json", action="store_true", help="one JSON object a line instead of text")


def run(args: argparse.Namespace) -> int:
  for name in ("batch_size", "inputs", "outputs", "beams"):
    if getattr(args, name) < 1:
      raise UserError(f"--{name}={getattr(args, name)} cannot work", expected="a whole number of at least 1")
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
    )
  )
  for result in results:
    print(json.dumps(result) if args.json else describe(result), flush=True)
  for line in () if args.json else compare(results):
    print(line)
  return 0
