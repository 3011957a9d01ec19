"""Convert the original files of a data set to the TFDS data set that its tasks read, if TFDS cannot download it.

t5like tasks prepare glue/sst2 --from glue_data
t5like tasks prepare super_glue --from superglue
t5like tasks prepare wmt_t2t_translate/de-en --from corpus --files train=a.de,a.en
t5like tasks prepare my_ner --from folder --format conll
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from t5like.cli.options import add_task_modules, task_modules
from t5like.console import ProgressLine
from t5like.errors import UserError

DEFAULT_OUT = "~/tensorflow_datasets"


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("name", help="a TFDS name (glue/sst2), a task (glue_sst2) or a group (glue, super_glue, squad)")
  parser.add_argument("--from", dest="source", required=True, metavar="DIR", help="folder of the original files")
  parser.add_argument(
    "--out", metavar="DIR", help=f"TFDS data directory to write to (default: $TFDS_DATA_DIR or {DEFAULT_OUT})"
  )
  parser.add_argument(
    "--files",
    action="append",
    default=[],
    metavar="SPLIT=PATH[,PATH]",
    help="files of a split, if their names do not contain it",
  )
  parser.add_argument(
    "--format", choices=("conll", "text"), help="create a data set that is not in TFDS from files of this format"
  )
  parser.add_argument(
    "--documents",
    choices=("line", "paragraph", "file"),
    default="line",
    help="unit of a document in plain text files (default: line)",
  )
  parser.add_argument("--source_language", metavar="LANGUAGE", help="language of src-*.txt files")
  parser.add_argument("--force", action="store_true", help="replace an already prepared data set")
  add_task_modules(parser)


def run(args: argparse.Namespace) -> int:
  files = _files(args.files)
  out = args.out or os.environ.get("TFDS_DATA_DIR") or DEFAULT_OUT
  print(f"reading {args.source} ...", flush=True)
  from t5like.tasks.preparation import storing

  with ProgressLine(sys.stderr, eager=False, first_host_only=False) as line:  # C4 takes hours
    started = time.monotonic()
    for report in storing.prepare_all(
      args.name,
      args.source,
      out,
      files=files,
      custom_format=args.format,
      documents=args.documents,
      source_language=args.source_language,
      force=args.force,
      task_modules=task_modules(args),
      progress=lambda split, rows: line.show(f"  {split}: {rows:,} rows"),
    ):
      line.end_line()
      print(report.text(time.monotonic() - started), flush=True)
      started = time.monotonic()
  return 0


def _files(given: list[str]) -> dict[str, list[str]]:
  files: dict[str, list[str]] = {}
  for text in given:
    split, equals, paths = text.partition("=")
    if not equals or not paths:
      raise UserError(f"invalid --files: {text!r}", expected="--files SPLIT=PATH[,PATH]")
    files.setdefault(split, []).extend(path for path in paths.split(",") if path)
  return files
