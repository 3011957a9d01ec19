"""How long a run takes from its command to its first steps, and with what.

t5like bench startup
t5like bench startup --gin_file=models/t5_1_1/base.gin --gin.BATCH_SIZE=64

`t5like train` is started three times, each for a few steps: with nothing prepared (tokens and programs are made anew);
in another directory with tokens and compiled programs there; and in that directory again, from its checkpoint. Where
the time went is what each run wrote itself into goodput.jsonl.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5like.cli.options import add_gin_arguments
from t5like.errors import RunError

_STEPS = 2
# Everything that a training process imports, as `t5like train` does.
_IMPORTS = ("t5like.experiments.experiment", "t5like.runs.preparing", "t5like.runs.trainer")
# In the order in which a run comes to them; saving and the rest come after its steps.
_BEFORE_STEPS = ("starting up", "preparing", "initialising", "compiling")


def configure(parser: argparse.ArgumentParser) -> None:
  add_gin_arguments(parser)


def run(args: argparse.Namespace) -> int:
  print(f"imports of a training process       {import_seconds():8.1f} s", flush=True)
  with tempfile.TemporaryDirectory(prefix="t5like-startup-") as folder:
    given = _options(args)
    for name, model_dir, steps in (
      ("cold: no tokens, no programs", "a", _STEPS),
      ("warm: both are kept", "b", _STEPS),
      ("again: from its checkpoint", "b", 2 * _STEPS),
    ):
      spent = start(given, Path(folder), model_dir, steps)
      print(f"\n{name}\n{table(spent)}", flush=True)
  return 0


def _options(args: argparse.Namespace) -> list[str]:
  """The run that is started: the tiny T5 on novels, unless files are given."""
  files = args.gin_file or ["models/t5/tiny.gin"]
  options = [f"--gin_file={file}" for file in [*files, "objectives/span_corruption.gin", "runs/pretrain.gin"]]
  options += [f"--gin_search_paths={path}" for path in args.gin_search_paths]
  return options + [f"--gin.{name}={value}" for name, value in args.gin_overrides]


def import_seconds() -> float:
  """Of a process that imports what a training process imports, and ends."""
  code = "; ".join(f"import {module}" for module in _IMPORTS)
  began = time.monotonic()
  subprocess.run([sys.executable, "-c", code], check=True, env=_environment())
  return time.monotonic() - began


def start(options: Sequence[str], folder: Path, model_dir: str, steps: int) -> dict[str, float]:
  """Seconds by what they were spent on, of one `t5like train`."""
  from t5like.training.records.goodput import FILE, read_attempts

  command = [sys.executable, "-m", "t5like", "train", *options, f"--gin.MODEL_DIR={folder / model_dir}"]
  command += [f"--gin.CACHE_DIR={folder / 'cache'}", f"--gin.TRAIN_STEPS={steps}"]
  done = subprocess.run(command, capture_output=True, text=True, env=_environment())
  if done.returncode:
    raise RunError("the run that was to be measured failed", said=done.stderr.strip()[-2000:])
  return read_attempts(folder / model_dir / FILE)[-1]["spent"]


def table(spent: Mapping[str, float]) -> str:
  before = {name: spent.get(name, 0.0) for name in _BEFORE_STEPS}
  rows: dict[str, Any] = before | {"to the first step": sum(before.values())}
  rows |= {name: seconds for name, seconds in spent.items() if name not in before}
  return "\n".join(f"  {name:<34}{seconds:8.1f} s" for name, seconds in rows.items())


def _environment() -> dict[str, str]:
  package = str(Path(__file__).resolve().parents[2])
  return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))}
