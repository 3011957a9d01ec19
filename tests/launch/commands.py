"""Puts stand-ins on the PATH of a script under test."""

import shlex
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
STAND_INS = Path(__file__).parent / "stand_ins"


def put_on_path(folder: Path, tools: dict[str, list]) -> None:
  """Commands of these names in `folder`, each the beginning of a command line; Python ones start as fast as can be."""
  folder.mkdir(exist_ok=True)
  for name, words in tools.items():
    if Path(words[0]).suffix == ".py":
      words = [sys.executable, "-S", "-E", *words]
    (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n')
    (folder / name).chmod(0o755)
