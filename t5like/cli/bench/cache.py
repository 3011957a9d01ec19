"""Benchmark the building of token caches: local, with Apache Beam, and seqio's cache job, on the same text.

t5like bench cache --megabytes=128 --workers=2
"""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("--megabytes", type=int, default=128, help="megabytes of text (default: 128)")
  parser.add_argument("--workers", type=int, default=2, help="processes that tokenize (default: 2)")
  parser.add_argument("--vocabulary", default="t5", help="of the token cache; seqio's job always has t5 (default: t5)")


def run(args: argparse.Namespace) -> int:
  from t5like.bench.cache_build import CacheBench, measure_builds

  for line in measure_builds(CacheBench(args.megabytes, args.workers, args.vocabulary)):
    print(line, flush=True)
  return 0
