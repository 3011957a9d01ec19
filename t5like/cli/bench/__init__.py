"""Benchmark this machine, compared with a peer or a hardware limit where available.

t5like bench data
t5like bench cache
t5like bench decode --model=t5_1_1/base
t5like bench train --model=t5_1_1/base
t5like bench embed --model=~/downloads/all-MiniLM-L6-v2
t5like bench loop
t5like bench startup
t5like bench gpu
"""

import argparse

from t5like.cli.subcommands import add_subcommands, run_subcommand

SUBCOMMANDS = {
  "train": ("train steps, compared with Hugging Face if installed", "cli.bench.train"),
  "decode": ("generation, compared with Hugging Face and the memory bandwidth limit", "cli.bench.decode"),
  "embed": ("sentence embeddings, compared with sentence-transformers", "cli.bench.embed"),
  "loop": ("overhead of the train loop and of checkpoints", "cli.bench.loop"),
  "startup": ("time to the first step: cold, warm and from a checkpoint", "cli.bench.startup"),
  "gpu": ("show the last result of launch/test_gpu.sh", "cli.bench.gpu"),
  "data": ("objectives, tokenization, and batches from a token cache", "cli.bench.data"),
  "cache": ("building token caches: local, with Apache Beam, and seqio's job", "cli.bench.cache"),
}


def configure(parser: argparse.ArgumentParser) -> None:
  add_subcommands(parser, SUBCOMMANDS, "BENCHMARK")


def run(args: argparse.Namespace) -> int:
  return run_subcommand(args, SUBCOMMANDS)
