"""Benchmark sentence embeddings in tokens/s, compared with sentence-transformers on the same model and texts.

t5like bench embed --model=~/downloads/all-MiniLM-L6-v2
t5like bench embed --model=~/runs/nli_embeddings --texts=5000 --words=100 --dtype=bfloat16 --json

Times are those of `model.embed(texts)`: tokenization, batches of similar length, the model, vectors on the host. Texts
are sentences of SNLI. If torch and transformers are installed, sentence-transformers (or, without it, transformers in
the same way) runs first on the same device.
"""

from __future__ import annotations

import argparse
import json

from t5like.cli.options import add_peer_python, at_least


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("--model", required=True, metavar="DIR", help="a folder or a model directory")
  parser.add_argument("--texts", type=at_least(1), default=20_000, help="number of texts (default: 20,000)")
  parser.add_argument("--words", type=at_least(1), help="words per text (default: single sentences, about 12)")
  parser.add_argument("--batch_size", type=at_least(1), default=256, help="texts per batch (default: 256)")
  parser.add_argument(
    "--dtype", choices=("float32", "bfloat16", "float16"), help="compute dtype (default: the model's)"
  )
  parser.add_argument("--no_peer", action="store_true", help="do not measure sentence-transformers")
  add_peer_python(parser)
  parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def run(args: argparse.Namespace) -> int:
  from t5like.bench.decode import compare
  from t5like.bench.embed import EmbedBench, describe, measure_embed

  settings = EmbedBench(
    args.model, args.texts, args.words, args.batch_size, args.dtype, not args.no_peer, args.peer_python
  )
  results = measure_embed(settings)
  for result in results:
    print(json.dumps(result) if args.json else describe(result), flush=True)
  for line in () if args.json else compare(results):
    print(line)
  return 0
