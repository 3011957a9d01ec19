"""Bring a model in from Hugging Face or T5X, or take one out to Hugging Face: bit for bit, unless --dtype casts.
Translate a T5X gin file.

  t5like convert from_hf  ~/downloads/t5-small            ~/runs/t5_small
  t5like convert from_t5x ~/downloads/t5_1_1/checkpoint_1000000  ~/runs/t5_1_1
  t5like convert to_hf    ~/runs/t5_small                 ~/exported
  t5like convert gin      my_t5x_finetune.gin  --out=my_finetune.gin

A model brought in is a model directory like that of a run: score it with `t5like eval`, or train on
from it with --gin.INIT_FROM. conversion.txt there names every tensor used, missing and unexpected.
With --gin_file the checkpoint must be the model of that file; without it, sizes come from the checkpoint.

`gin` prints a gin file for `t5like train`, or the commands for T5X's eval and infer files, and lists what it could not
translate. --gin.NAME=VALUE sets T5X's macros that the file leaves open. Nothing that the file names is imported.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from t5like.cli.options import add_gin_arguments, add_task_modules, gin_search_paths, task_modules
from t5like.errors import UserError
from t5like.files import storage

if TYPE_CHECKING:  # help must not wait for jax
  from t5like.inference.converting import Conversion
  from t5like.models import TransformerConfig

_LIBRARIES = {"from_hf": "huggingface", "from_t5x": "t5x"}


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("direction", choices=("from_hf", "from_t5x", "to_hf", "gin"))
  parser.add_argument("source", help="a checkpoint of the other library; for to_hf, a model directory; a gin file")
  parser.add_argument("target", nargs="?", help="a new folder; for gin, none")
  parser.add_argument("--out", metavar="FILE", help="gin: write there (default: print)")
  parser.add_argument("--vocabulary", help="its name or file (default: the one beside the checkpoint, or by its size)")
  parser.add_argument("--scan_layers", action="store_true", help="store layers stacked, for SCAN_LAYERS = True")
  parser.add_argument(
    "--dtype", choices=("float32", "bfloat16", "float16"), help="cast parameters (default: as stored)"
  )
  parser.add_argument("--step", type=int, help="to_hf: the checkpoint's step (default: the newest)")
  parser.add_argument(
    "--average", action="store_true", help="to_hf: the moving average of the parameters, of a run with ema_decay"
  )
  add_task_modules(parser)
  add_gin_arguments(parser)


def run(args: argparse.Namespace) -> int:
  if args.direction == "gin":
    return _translate(args)
  if args.target is None or args.out:
    raise UserError(
      f"convert {args.direction} needs a new folder to write to", try_=f"t5like convert {args.direction} SOURCE FOLDER"
    )
  storage.check_reachable(args.source, "source")
  return _export(args) if args.direction == "to_hf" else _import(args)


def _import(args: argparse.Namespace) -> int:
  from t5like.inference import converting

  target = converting.new_folder(args.target)
  settings = converting.ImportSettings(
    args.source,
    target,
    _LIBRARIES[args.direction],
    args.vocabulary,
    args.scan_layers,
    args.dtype,
    _expected_config(args),
  )
  done = converting.import_checkpoint(settings)
  if done.note:
    print(f"{done.note}, text needs --vocabulary=FILE")
  print(f"{_describe(done)} from {storage.as_path(args.source)}\n{done.summary}")
  print(f"model directory: {done.target}  (every tensor: {converting.REPORT})")
  return 0


def _export(args: argparse.Namespace) -> int:
  from t5like.inference import converting

  target = converting.new_folder(args.target)
  if args.gin_file or args.gin_overrides or args.scan_layers:
    raise UserError(
      "to_hf takes the model as its directory has it", expected="no options but --step, --dtype and --vocabulary"
    )
  done = converting.export_model(
    converting.ExportSettings(
      args.source, target, args.vocabulary, args.dtype, args.step, args.average, task_modules(args)
    )
  )
  if done.note:
    print(f"{done.note} (--vocabulary=NAME_OR_FILE)")
  print(f"{_describe(done)} to {done.target}\nread them with transformers' from_pretrained({str(done.target)!r})")
  return 0


def _translate(args: argparse.Namespace) -> int:
  """Prints or writes the translation; what was left out goes to standard error, too."""
  from t5like.configuration.t5x_commands import translate_file

  if args.target is not None:
    raise UserError("convert gin has no second folder", given=args.target, try_=f"--out={args.target}")
  if args.gin_file:
    raise UserError("convert gin takes one T5X file", try_=f"t5like convert gin {args.gin_file[0]}")
  path = storage.local_path(args.source, "the gin file")
  out = Path(args.out).expanduser() if args.out else None
  if out is not None and out.exists():
    raise UserError(f"{out} exists already", expected="a new file: conversion overwrites nothing")
  folders = [Path(folder).expanduser() for folder in gin_search_paths(args)]
  text, left_out = translate_file(path, args.gin_overrides, folders, str(args.out or "FILE.gin"))
  if out is None:
    print(text, end="")
  else:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
  wrote = f"{out}: " if out else ""
  print(f"{wrote}lines that were not translated: {len(left_out)}", file=sys.stderr)
  for line in left_out:
    print(f"  {' '.join(line.split())}", file=sys.stderr)
  return 0


def _expected_config(args: argparse.Namespace) -> TransformerConfig | None:
  """The model that --gin_file describes, None where none is given."""
  from t5like.experiments.reading import read_model

  if not args.gin_file:
    if args.gin_overrides:
      raise UserError("--gin options change a gin file's model", try_="--gin_file=models/t5/small.gin beside them")
    return None
  # A run file binds MODEL and VOCABULARY; what else it needs has no part in a conversion.
  files = [*args.gin_file, "runs/finetune.gin"]
  config = read_model(files, args.gin_overrides, gin_search_paths(args)).model.config
  return dataclasses.replace(config, scan_layers=config.scan_layers or args.scan_layers)


def _describe(done: Conversion) -> str:
  return f"{done.parameters:,} parameters in {done.arrays} arrays"
