"""Rows per second of the data pipeline: objectives on one core, from text, and from a token cache.

If the original `t5` library is installed, its pipeline is measured on the same text in the same run.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from t5like.tasks.quiet_start import load_seqio

INPUTS = 512
_DOCUMENT = 10_000  # characters
_PACKED_TARGETS = 114


@dataclasses.dataclass(frozen=True)
class DataBench:
  """Settings of the benchmark."""

  files: Sequence[str] = ()  # JSON lines or text; empty: the embedded novels
  threads: int = 2  # that tokenize and build batches
  megabytes: int = 20  # of text
  rows: int = 100_000  # from the cache
  packed_tasks: Sequence[str] = ()  # labeled tasks whose packing efficiency is measured
  all_objectives: bool = False


@dataclasses.dataclass(frozen=True)
class Rate:
  """One measurement."""

  name: str
  per_second: float
  unit: str = "rows/s"
  note: str = ""

  def __str__(self) -> str:
    return f"  {self.name:<44} {self.per_second:>12,.0f} {self.unit}{'   ' + self.note if self.note else ''}"


def measure_data(settings: DataBench) -> Iterator[Rate | str]:
  """Yields measurements as they finish, with headings and notes as text."""
  load_seqio()
  texts = _texts(settings.files, settings.megabytes * 1_000_000)
  megabytes = sum(map(len, texts)) / 1e6
  yield f"{len(texts):,} documents, {megabytes:.1f} M characters, {os.cpu_count()} cores, {settings.threads} threads\n"
  yield from _objectives(settings.all_objectives)
  with tempfile.TemporaryDirectory(prefix="t5like-bench-") as folder:
    yield "from text: tokenize, split, corrupt, pad"
    tokens, ours = _from_text(texts, settings.threads)
    yield from (tokens, ours)
    yield from _compare_with_t5(texts, ours)
    yield from _from_cache(texts, Path(folder), settings.threads, settings.rows)
  for task in settings.packed_tasks:
    yield from _packing(task)


def _texts(files: Sequence[str], characters: int) -> list[str]:
  from t5like.tasks import sources

  paths = files or [str(Path(sources.__file__).parent / "embedded/novels.train.jsonl.gz")]
  texts, total = [], 0
  for path in paths:
    for text in sources.read_documents(path, "text", "line"):
      # t5's pipeline would take only one random piece of a book.
      texts += [text[i : i + _DOCUMENT] for i in range(0, len(text), _DOCUMENT)]
      total += len(text)
      if total >= characters:
        return texts
  return texts


def _min_seconds(function: Callable[[], object]) -> float:
  """Returns the shortest of several runs, which is the least disturbed by other processes."""
  function()
  times = []
  for _ in range(5):
    started = time.perf_counter()
    function()
    times.append(time.perf_counter() - started)
  return min(times)


def _objectives(all_objectives: bool) -> Iterator[Rate | str]:
  from t5like.objectives import CATALOGUE, Draws, Ragged, Rows, SpecialTokens
  from t5like.vocabularies import load_vocabulary

  yield f"objectives, one core, {INPUTS} input tokens, 1,024 rows at a time"
  special = {makes: SpecialTokens.of(load_vocabulary(v)) for makes, v in (("pairs", "t5"), ("masked", "bert_uncased"))}
  rng, count = np.random.default_rng(0), 1024
  for name in CATALOGUE if all_objectives else ("span_corruption", "bert_mlm"):
    objective = CATALOGUE[name]
    lengths = objective.lengths(INPUTS)
    ours = special[objective.makes]
    text, other = (
      ours.replacement_ids[rng.integers(0, len(ours.replacement_ids), (count, lengths.raw))] for _ in range(2)
    )
    rows, draws = Rows(text, np.full(count, lengths.raw), Ragged.full(other)), Draws.of(0, 0, np.arange(count))
    seconds = _min_seconds(lambda o=objective, r=rows, d=draws, s=ours: o(r, d, s))
    yield Rate(f"{name}, {lengths.raw} tokens of text", count / seconds)
  yield ""


def _from_text(texts: Sequence[str], threads: int) -> tuple[Rate, Rate]:
  """Measures tokens and span-corruption rows of 512/115 from text: tokenize, join, split, corrupt, pad."""
  from t5like.data.rows import to_batch
  from t5like.objectives import CATALOGUE, Draws, Rows, SpecialTokens
  from t5like.vocabularies import load_vocabulary

  vocabulary = load_vocabulary("t5")
  special = SpecialTokens.of(vocabulary)
  objective = CATALOGUE["span_corruption"]
  lengths = objective.lengths(INPUTS)
  tokens = rows = 0
  started = time.perf_counter()
  left = np.zeros(0, np.int32)
  for begin in range(0, len(texts), 128):
    ids = vocabulary.encode_batch(texts[begin : begin + 128], threads=threads)
    stream = np.concatenate([left, *(np.asarray(row, np.int32) for row in ids)])
    count = len(stream) // lengths.raw
    left = stream[count * lengths.raw :]
    text = stream[: count * lengths.raw].reshape(count, lengths.raw)
    pairs = objective(Rows.full(text), Draws.of(0, 0, np.arange(rows, rows + count)), special)
    to_batch(pairs, objective, lengths, special, "encoder_decoder")
    tokens, rows = tokens + text.size, rows + count
  seconds = time.perf_counter() - started
  name = f"span corruption {lengths.inputs}/{lengths.targets}"
  return Rate("tokens", tokens / seconds, "tokens/s"), Rate(name, rows / seconds)


def _compare_with_t5(texts: Sequence[str], ours: Rate) -> Iterator[Rate | str]:
  """Measures the original pipeline: seqio's tokenizer, t5's span corruption, packed batches."""
  try:
    from t5like.tasks import t5_pipeline
  except ImportError:
    yield "  (the t5 library is not installed: no comparison with its pipeline)\n"
    return
  rows, seconds = t5_pipeline.packed_rows(texts, INPUTS, 114)
  theirs = Rate("t5 + seqio, packed 512/114", rows / seconds)
  yield theirs
  yield f"  t5like is {ours.per_second / theirs.per_second:.1f} times as fast\n"


def _from_cache(texts: Sequence[str], folder: Path, threads: int, rows: int) -> Iterator[Rate | str]:
  from t5like import data
  from t5like.objectives import CATALOGUE, SpecialTokens
  from t5like.vocabularies import load_vocabulary

  yield f"from a token cache, batches of 128 rows, {threads} threads reading ahead"
  for name, vocabulary_name, inputs in (
    ("span_corruption", "t5", INPUTS), ("bert_mlm", "bert_uncased", INPUTS), ("causal_lm", "gpt2", 1024),
  ):  # fmt: skip
    vocabulary = load_vocabulary(vocabulary_name)
    cache = _cache(texts, folder / vocabulary_name, vocabulary_name, vocabulary, threads)
    objective = CATALOGUE[name]
    lengths = objective.lengths(inputs)
    layout = "encoder" if objective.makes == "masked" else "encoder_decoder" if lengths.inputs else "decoder"
    source = data.CorpusRows(cache, objective, lengths, SpecialTokens.of(vocabulary), 0, layout)
    batches = data.Batches([data.PhaseRows(source, 128)])
    steps = max(rows // 128, 2)
    _drain(data.read_ahead(batches, 0, 8, threads))
    before, started = _resident_megabytes(), time.perf_counter()
    _drain(data.read_ahead(batches, 0, steps, threads))
    seconds = time.perf_counter() - started
    growth = f"memory {_resident_megabytes() - before:+.0f} MB over {steps * 128:,} rows"
    yield Rate(f"{name} {lengths.inputs or lengths.targets}", steps * 128 / seconds, note=growth)
    if name == "span_corruption":
      yield f"  rows are {_full(batches[0]):.2%} full; {_same_batches(batches)}"
      first, far = (_seconds_to_first(batches, step, threads) for step in (0, 1_000_000))
      yield f"  first batch at step 0 after {first:.3f} s, at step 1,000,000 after {far:.3f} s"


def _cache(texts: Sequence[str], folder: Path, name: str, vocabulary, threads: int):
  from t5like import data

  data.write_cache(
    folder,
    ({"targets": text} for text in texts),
    ["targets"],
    lambda some: vocabulary.encode_batch(some, threads=threads),
    vocabulary={"name": name, "size": vocabulary.vocab_size, "fingerprint": vocabulary.fingerprint},
    description={"task": "bench", "split": "train", "source_files": []},
    scoring={"postprocessor": None, "metrics": []},
  )
  return data.open_cache(folder, rebuild_command="t5like bench data")


def _full(batch) -> float:
  """Returns the share of input positions that are not padding."""
  return float(np.mean(batch["encoder_input_tokens"] > 0))


def _same_batches(batches) -> str:
  """Checks that batches are identical for different numbers of threads and hosts."""
  from t5like import data

  for step in (0, 10_000):
    expected = batches[step]
    variants = [next(data.read_ahead(batches, step, step + 1, threads)) for threads in (0, 1, 4)]
    for hosts in (2, 4):
      parts = [data.Batches(batches.phases, data.HostShare((host,), hosts))[step] for host in range(hosts)]
      variants.append({name: np.concatenate([part[name] for part in parts]) for name in expected})
    if any(variant[name].tobytes() != array.tobytes() for variant in variants for name, array in expected.items()):
      return f"BATCHES DIFFER at step {step}"
  return "identical bytes with 1, 2 and 4 hosts and 0, 1 and 4 threads, at steps 0 and 10,000"


def _packing(task: str) -> Iterator[str]:
  from t5like import data
  from t5like.experiments.token_caches import TokenCaches
  from t5like.files.storage import DEFAULT_ROOT
  from t5like.objectives import Lengths, SpecialTokens
  from t5like.vocabularies import load_vocabulary

  vocabulary = load_vocabulary("t5")
  for member in TokenCaches(DEFAULT_ROOT, "t5", vocabulary).open_or_build(task, "train"):
    started = time.perf_counter()
    rows = data.ExampleRows(
      member.cache, Lengths(INPUTS, INPUTS, _PACKED_TARGETS), SpecialTokens.of(vocabulary), 0, pack=True
    )
    count, seconds = rows.rows_per_epoch, time.perf_counter() - started
    yield (
      f"{member.task}: {member.cache.examples:,} examples in {count:,} rows of {INPUTS}/{_PACKED_TARGETS}, "
      f"{rows.efficiency:.1%} full, planned in {seconds:.1f} s"
    )


def _seconds_to_first(batches, step: int, threads: int) -> float:
  from t5like import data

  started = time.perf_counter()
  next(data.read_ahead(batches, step, step + 1, threads))
  return time.perf_counter() - started


def _drain(batches: Iterable) -> None:
  for _ in batches:
    pass


def _resident_megabytes() -> float:
  try:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
  except OSError:
    import resource

    scale = 1e6 if sys.platform == "darwin" else 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale
