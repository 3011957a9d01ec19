"""Train a vocabulary on the text of registered tasks, or on text and JSON-lines files.

  t5like tasks vocabulary novels --size=8000 --out=my.model
  t5like tasks vocabulary texts/*.txt corpus.jsonl.gz --size=32000 --out=my.model
  t5like tasks vocabulary novels --kind=wordpiece --size=8000 --out=my_wordpiece
  t5like tasks vocabulary novels --kind=bpe --size=8000 --out=my_bpe

SentencePiece is for T5: padding 0, EOS 1, unknown 2; 100 sentinels are added when it is loaded. WordPiece is for BERT,
with its five special tokens first; byte-level BPE is for GPT-2, with <|endoftext|> last. Both are folders.
The same text and options produce the same file.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from t5like.cli.options import SEEDS, add_task_modules, at_least, task_modules
from t5like.errors import UserError
from t5like.files import storage
from t5like.tasks.quiet_start import load_seqio
from t5like.vocabularies import Vocabulary
from t5like.vocabularies.training import VocabularyReport, read_texts, train_sentencepiece


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("sources", nargs="+", metavar="TASK_OR_FILE", help="tasks, or .txt and .jsonl files (.gz, .xz)")
  parser.add_argument("--kind", default="sentencepiece", choices=("sentencepiece", "wordpiece", "bpe"))
  parser.add_argument("--size", type=int, default=32_000, help="number of pieces without sentinels (default: 32000)")
  parser.add_argument("--out", required=True, help="the .model file to write; a folder for wordpiece and bpe")
  parser.add_argument(
    "--model_type", choices=("unigram", "bpe", "char", "word"), help="of sentencepiece (default: unigram)"
  )
  parser.add_argument("--byte_fallback", action="store_true", help="sentencepiece: encode unknown characters as bytes")
  parser.add_argument(
    "--character_coverage", type=float, help="sentencepiece: share of characters to keep (default: 0.9995)"
  )
  parser.add_argument("--cased", action="store_true", help="wordpiece: keep capitals and accents")
  parser.add_argument(
    "--max_sentences", type=int, default=1_000_000, help="maximum number of sampled sentences (default: 1000000)"
  )
  parser.add_argument("--seed", type=at_least(0, SEEDS), default=0, help="seed of the sample (default: 0)")
  parser.add_argument("--split", default="train", help="the split of a task (default: train)")
  parser.add_argument("--field", default="text", help="the field of JSON lines with the text (default: text)")
  add_task_modules(parser)


def run(args: argparse.Namespace) -> int:
  _check(args)
  vocabulary, report = _train(args)
  sentinels = len(vocabulary.sentinel_ids)
  rows = -(-vocabulary.vocab_size // 128) * 128  # as models pad their embedding
  what = f"{vocabulary.vocab_size - sentinels:,} pieces" + (f" + {sentinels} sentinels" if sentinels else "")
  print(f"{args.out}: {what}, from {report.sentences:,} sentences")
  print(f"  covers {report.coverage:.4%} of the characters")
  print(f"  {report.tokens_per_word:.2f} tokens per word, {report.characters_per_token:.2f} characters per token")
  print(f"use it with  --gin.VOCABULARY={args.out} --gin.VOCAB_SIZE={rows}")
  return 0


def _check(args: argparse.Namespace) -> None:
  own = {
    "model_type": "sentencepiece", "byte_fallback": "sentencepiece", "character_coverage": "sentencepiece",
    "cased": "wordpiece",
  }  # fmt: skip
  for option, kind in own.items():
    if getattr(args, option) and args.kind != kind:
      raise UserError(f"--{option} is an option of --kind={kind}, not of {args.kind}")
  if args.kind != "sentencepiece" and Path(args.out).suffix:
    raise UserError(f"invalid --out: {args.out} (expected a folder for --kind={args.kind})")


def _train(args: argparse.Namespace) -> tuple[Vocabulary, VocabularyReport]:
  sample = {"max_sentences": args.max_sentences, "seed": args.seed}
  if args.kind == "sentencepiece":
    more = {"character_coverage": args.character_coverage} if args.character_coverage else {}
    kind = args.model_type or "unigram"
    return train_sentencepiece(_texts(args), args.size, args.out, kind, args.byte_fallback, **more, **sample)
  from t5like.vocabularies.subword_training import train_byte_bpe, train_wordpiece

  if args.kind == "wordpiece":
    return train_wordpiece(_texts(args), args.size, args.out, not args.cased, **sample)
  return train_byte_bpe(_texts(args), args.size, args.out, **sample)


def _texts(args: argparse.Namespace) -> Iterator[str]:
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
