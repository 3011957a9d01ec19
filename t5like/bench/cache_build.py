"""Measures how fast text becomes a token cache: the local builder, Apache Beam, and seqio's own cache job with Beam.

All three are commands on the same files. Rates are tokens per second of CPU time, which other processes on the machine
disturb little; the time of a run on almost no text (imports, start of workers) is subtracted.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from t5like.errors import RunError, UserError

_TASK = "bench_text"
_FILES = 8
_WORDS = (100, 600)  # of a document
_SHOWN = 1000  # last characters of what a command that failed has printed


@dataclasses.dataclass(frozen=True)
class CacheBench:
  """Text to tokenize, and the number of processes."""

  megabytes: int = 128
  workers: int = 2
  vocabulary: str = "t5"


@dataclasses.dataclass(frozen=True)
class BuildRate:
  """The speed of one builder."""

  name: str
  tokens: int
  cpu_seconds: float  # without the start
  start_seconds: float  # of CPU
  wall_seconds: float  # of all of it

  @property
  def tokens_per_core(self) -> float:
    """Tokens per second of one core."""
    return self.tokens / self.cpu_seconds

  def __str__(self) -> str:
    return (
      f"  {self.name:<34} {self.tokens_per_core:>10,.0f} tokens/s per core   "
      f"({self.tokens:,} tokens, start {self.start_seconds:.0f} s of CPU, {self.wall_seconds:.0f} s in all)"
    )


def measure_builds(settings: CacheBench) -> Iterator[BuildRate | str]:
  """Yields the rates of the builders that are installed."""
  if settings.megabytes < 1 or settings.workers < 1:
    raise UserError(f"invalid --megabytes or --workers: {settings.megabytes}, {settings.workers} (expected 1 or more)")
  processes = f"--direct_num_workers={settings.workers} --direct_running_mode=multi_processing"
  with tempfile.TemporaryDirectory() as scratch:
    folder = Path(scratch)
    yield f"{settings.megabytes} MB of text in {_FILES} files, {settings.workers} processes"
    for name, size in (("start", 1000), ("all", settings.megabytes * 10**6)):
      _write_text(folder / name, size)
    (folder / "bench_module.py").write_text(
      "import os\nfrom t5like.tasks.library.corpora import register_corpus\n"
      f"register_corpus({_TASK!r}, {{'train': os.environ['T5LIKE_BENCH'] + '/*.jsonl'}})\n"
    )
    own = ["t5like", "cache", _TASK, f"--vocabulary={settings.vocabulary}", "--task_modules=bench_module"]
    yield _rate("t5like cache", [*own, f"--workers={settings.workers}"], folder)
    if importlib.util.find_spec("apache_beam") is None:
      yield "  Apache Beam is not installed: pip install 't5like[beam]'"
      return
    yield _rate("t5like cache --beam_options", [*own, f"--beam_options=--runner=DirectRunner {processes}"], folder)
    seqio = ["seqio.scripts.cache_tasks_main", f"--tasks={_TASK}", "--module_import=bench_module", "--alsologtostderr"]
    options = ",".join(["--runner=DirectRunner", *processes.split()])
    yield _rate("seqio's cache_tasks, with Beam", [*seqio, f"--pipeline_options={options}"], folder)


def _rate(name: str, line: Sequence[str], folder: Path) -> BuildRate:
  """Runs a command on almost no text and on all; returns the difference."""
  times, tokens = {}, 0
  out = "--output_cache_dir" if line[0].startswith("seqio") else "--out"
  for text in ("start", "all"):
    target = folder / f"{name.replace(' ', '_')}.{text}"
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
      [sys.executable, "-m", *line, f"{out}={target}"],
      env={**os.environ, "T5LIKE_BENCH": str(folder / text), "PYTHONPATH": _with_path(folder)},
      capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
      printed = done.stderr.strip() or done.stdout.strip()
      raise RunError(f"{name} failed", because=printed[max(printed.rfind("error: "), len(printed) - _SHOWN, 0) :])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    times[text] = (cpu, time.monotonic() - began)
    tokens = _tokens(target) - tokens
  cpu = times["all"][0] - times["start"][0]
  return BuildRate(name, tokens, max(cpu, 1e-9), times["start"][0], times["all"][1])


def _tokens(folder: Path) -> int:
  """Returns the number of tokens in a cache of t5like or seqio."""
  for path in folder.rglob("cache.json"):
    return json.loads(path.read_text())["tokens"]
  stats = json.loads(next(folder.rglob("stats.train.json")).read_text())
  return next(count for name, count in stats.items() if name.endswith("targets_tokens"))


def _write_text(folder: Path, characters: int) -> None:
  """Writes documents from the embedded novels, cut at random places."""
  from t5like.tasks import sources

  novels = Path(sources.__file__).parent / "embedded/novels.train.jsonl.gz"
  words = " ".join(sources.read_documents(novels, "text", "line")).split()
  chosen = random.Random(0)
  folder.mkdir()
  for number in range(_FILES):
    with (folder / f"{number}.jsonl").open("w", encoding="utf-8") as file:
      while file.tell() < characters / _FILES:
        start = chosen.randrange(len(words) - _WORDS[1])
        file.write(json.dumps({"text": " ".join(words[start : start + chosen.randrange(*_WORDS)])}) + "\n")


def _with_path(folder: Path) -> str:
  return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
