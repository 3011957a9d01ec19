"""`t5like convert gin`: a T5X gin file as ours, or as the command that takes its place."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from t5like.errors import UserError
from t5like.files import storage


def convert_gin(args: argparse.Namespace) -> int:
  """Prints or writes the translation; what was left out goes to standard error, too."""
  if args.target is not None:
    raise UserError("convert gin has no second folder", given=args.target, try_=f"--out={args.target}")
  if args.gin_file:
    raise UserError("convert gin takes one T5X file", try_=f"t5like convert gin {args.gin_file[0]}")
  path = storage.local_path(args.source, "the gin file")
  out = Path(args.out).expanduser() if args.out else None
  if out is not None and out.exists():
    raise UserError(f"{out} exists already", expected="a new file: conversion overwrites nothing")
  folders = [Path(p).expanduser() for given in args.gin_search_paths for p in given.split(",") if p]
  text, left_out = translate(path, args.gin_overrides, folders, str(args.out or "FILE.gin"))
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


def translate(path: Path, overrides: list[tuple[str, str]], folders: list[Path], name: str) -> tuple[str, list[str]]:
  """The text, and the lines that could not be translated."""
  from t5like.configuration.t5x_commands import command_kind, translate_command
  from t5like.configuration.t5x_files import read_t5x_file
  from t5like.configuration.t5x_translation import translate_training

  source = read_t5x_file(path, overrides, folders)
  if not source.settings and not source.unread:
    raise UserError(f"{path} sets nothing", expected="a gin file of T5X")
  origin = f"Translated from {path.name} by `t5like convert gin`."
  kind = command_kind(source)
  if kind == "train":
    result = translate_training(source)
    header = f"{origin}\n\n  t5like train --gin_file={name} --gin.MODEL_DIR=..."
    return result.gin_text(header), result.left_out
  commands, left_out = translate_command(source, kind)
  lines = [f"# {origin} In t5like this is a command, not a gin file.", *commands]
  if left_out:
    lines += ["", "# Not translated:", *(f"#   {' '.join(line.split())}" for line in left_out)]
  return "\n".join(lines) + "\n", left_out
