"""Train a SentencePiece vocabulary on the text of registered tasks, or on text and JSON-lines files.

  t5like tasks vocabulary novels --size=8000 --out=my.model
  t5like tasks vocabulary texts/*.txt corpus.jsonl.gz --size=32000 --out=my.model

Padding is 0, EOS 1, unknown 2; 100 sentinels are added when it is loaded, as in T5.
The same text and options produce the same file.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from t5like.cli.options import add_task_modules, task_modules
from t5like.errors import UserError
from t5like.files import storage
from t5like.tasks.quiet_start import load_seqio


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("sources", nargs="+", metavar="TASK_OR_FILE", help="tasks, or .txt and .jsonl files (.gz, .xz)")
  parser.add_argument("--size", type=int, default=32_000, help="number of pieces without sentinels (default: 32000)")
  parser.add_argument("--out", required=True, help="the .model file to write")
  parser.add_argument("--model_type", default="unigram", choices=("unigram", "bpe", "char", "word"))
  parser.add_argument("--byte_fallback", action="store_true", help="encode unknown characters as bytes")
  parser.add_argument(
    "--character_coverage", type=float, default=0.9995, help="share of characters to keep (default: 0.9995)"
  )
  parser.add_argument(
    "--max_sentences", type=int, default=1_000_000, help="maximum number of sampled sentences (default: 1000000)"
  )
  parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default: 0)")
  parser.add_argument("--split", default="train", help="the split of a task (default: train)")
  parser.add_argument("--field", default="text", help="the field of JSON lines with the text (default: text)")
  add_task_modules(parser)


def run(args: argparse.Namespace) -> int:
  from t5like.vocabularies.training import train_sentencepiece

  vocabulary, report = train_sentencepiece(
    _texts(args),
    args.size,
    args.out,
    model_type=args.model_type,
    byte_fallback=args.byte_fallback,
    character_coverage=args.character_coverage,
    max_sentences=args.max_sentences,
    seed=args.seed,
  )
  pieces = vocabulary.vocab_size - vocabulary.extra_ids
  rows = -(-vocabulary.vocab_size // 128) * 128  # as models pad their embedding
  print(f"{args.out}: {pieces:,} pieces + {vocabulary.extra_ids} sentinels, from {report.sentences:,} sentences")
  print(f"  covers {report.coverage:.4%} of the characters")
  print(f"  {report.tokens_per_word:.2f} tokens per word, {report.characters_per_token:.2f} characters per token")
  print(f"use it with  --gin.VOCABULARY={args.out} --gin.VOCAB_SIZE={rows}")
  return 0


def _texts(args: argparse.Namespace) -> Iterator[str]:
  from t5like.vocabularies.training import read_texts

  for source in args.sources:
    if storage.as_path(source).is_file():
      yield from read_texts(source, args.field)
    elif "/" in source or Path(source).suffix:
      raise UserError(f"no file {source}", expected="a file, or the name of a registered task")
    else:
      yield from _task_texts(source, args)


def _task_texts(name: str, args: argparse.Namespace) -> Iterator[str]:
  print(f"loading seqio for task {name!r} ...", flush=True)
  load_seqio()
  from t5like.tasks import registry
  from t5like.tasks.caching import text_pipeline

  return text_pipeline.texts(registry.find_task(name, task_modules(args)), args.split)
