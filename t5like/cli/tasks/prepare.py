"""Turn a data set's original files into the TFDS data set that its tasks read, where TFDS cannot download it.

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
  parser.add_argument("--from", dest="source", required=True, metavar="DIR", help="the folder of the original files")
  parser.add_argument(
    "--out", metavar="DIR", help=f"where TFDS keeps its data sets (default: $TFDS_DATA_DIR or {DEFAULT_OUT})"
  )
  parser.add_argument(
    "--files",
    action="append",
    default=[],
    metavar="SPLIT=PATH[,PATH]",
    help="the files of a split, where their names do not say it",
  )
  parser.add_argument(
    "--format", choices=("conll", "text"), help="make a data set that TFDS does not know, from such files"
  )
  parser.add_argument(
    "--documents",
    choices=("line", "paragraph", "file"),
    default="line",
    help="what one document of a plain text file is (default: line)",
  )
  parser.add_argument("--source_language", metavar="LANGUAGE", help="the language of src-*.txt files")
  parser.add_argument("--force", action="store_true", help="replace what was prepared before")
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
      own_format=args.format,
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
      raise UserError(f"--files {text!r} names no file", expected="--files SPLIT=PATH[,PATH]")
    files.setdefault(split, []).extend(path for path in paths.split(",") if path)
  return files
