"""The time from the start of a run to its first step, by category.

`t5like train` runs three times, each for a few steps: cold (tokens and programs are built); in another directory with
tokens and compiled programs cached; and in that directory again, from its checkpoint. The times are those that each run
recorded in goodput.jsonl.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5like.bench.peer import child_environment
from t5like.errors import RunError

_STEPS = 2
# Everything that `t5like train` imports.
_IMPORTS = ("t5like.experiments.experiment", "t5like.runs.preparing", "t5like.runs.trainer")
# Categories before the first step, in order.
_BEFORE_STEPS = ("starting up", "preparing", "initializing", "compiling")


@dataclasses.dataclass(frozen=True)
class StartupBench:
  """Settings of the benchmark: span corruption with the model of these files."""

  gin_files: Sequence[str]
  overrides: Sequence[tuple[str, str]] = ()
  search_paths: Sequence[str] = ()

  @property
  def options(self) -> list[str]:
    """The options of `t5like train`."""
    files = [*self.gin_files, "objectives/span_corruption.gin", "runs/pretrain.gin"]
    return [
      *(f"--gin_file={file}" for file in files),
      *(f"--gin_search_paths={path}" for path in self.search_paths),
      *(f"--gin.{name}={value}" for name, value in self.overrides),
    ]


def measure_startup(settings: StartupBench) -> Iterator[tuple[str, dict[str, float]]]:
  """Yields the name of each of the three starts, and its seconds by category."""
  with tempfile.TemporaryDirectory(prefix="t5like-startup-") as folder:
    for name, model_dir, steps in (
      ("cold: no tokens, no programs", "a", _STEPS),
      ("warm: both are cached", "b", _STEPS),
      ("resumed: from its checkpoint", "b", 2 * _STEPS),
    ):
      yield name, start(settings.options, Path(folder), model_dir, steps)


def import_seconds() -> float:
  """Returns the seconds of a process that imports what a training process imports, and exits."""
  code = "; ".join(f"import {module}" for module in _IMPORTS)
  started = time.monotonic()
  subprocess.run([sys.executable, "-c", code], check=True, env=child_environment())
  return time.monotonic() - started


def start(options: Sequence[str], folder: Path, model_dir: str, steps: int) -> dict[str, float]:
  """Runs one `t5like train` and returns its seconds by category."""
  from t5like.training.records.goodput import FILE, read_attempts

  command = [sys.executable, "-m", "t5like", "train", *options, f"--gin.MODEL_DIR={folder / model_dir}"]
  command += [f"--gin.CACHE_DIR={folder / 'cache'}", f"--gin.TRAIN_STEPS={steps}"]
  environment = child_environment()
  environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # programs are cached in CACHE_DIR, which is empty at first
  done = subprocess.run(command, capture_output=True, text=True, env=environment)
  if done.returncode:
    raise RunError("the benchmarked run failed", stderr=done.stderr.strip()[-2000:])
  return read_attempts(folder / model_dir / FILE)[-1]["spent"]


def table(spent: Mapping[str, float]) -> str:
  before = {name: spent.get(name, 0.0) for name in _BEFORE_STEPS}
  rows: dict[str, Any] = before | {"to the first step": sum(before.values())}
  rows |= {name: seconds for name, seconds in spent.items() if name not in before}
  return "\n".join(f"  {name:<34}{seconds:8.1f} s" for name, seconds in rows.items())
