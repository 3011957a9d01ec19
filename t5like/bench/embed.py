"""Speed of sentence embeddings in tokens/s, compared with sentence-transformers on the same folder and texts.

Times are those of a complete call with texts of different lengths: tokenization, batching, the model, the vectors on
the host. Tokens are those of the texts, special tokens included, without padding.
"""

from __future__ import annotations

import dataclasses
import gzip
import importlib.util
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_REPEATS = 3
_TIMEOUT = 600  # seconds
_SENTENCES = Path(__file__).parents[1] / "tasks" / "embedded" / "snli.train.jsonl.gz"


@dataclasses.dataclass(frozen=True)
class EmbedBench:
  """Settings of the benchmark."""

  model: str  # a folder of sentence-transformers or Hugging Face, or a model directory
  texts: int = 20_000
  words: int | None = None  # per text: sentences are joined to this length; None: single sentences
  batch_size: int = 256
  dtype: str | None = None  # of the computation; None: the model's
  peer: bool = True  # measure the peer too, if torch and transformers are installed
  peer_python: str | None = None  # an interpreter that has torch; None: this one


def measure_embed(settings: EmbedBench) -> list[dict[str, Any]]:
  """Returns a result per subject, ours last: {"name", "tokens_per_second", ...}, or {"name", "error"} of a peer."""
  texts, results = make_texts(settings.texts, settings.words), []
  if settings.peer and (settings.peer_python or all(map(importlib.util.find_spec, ("torch", "transformers")))):
    results.append(_measure_peer(settings, texts))
  return [*results, _measure(settings, texts)]


def make_texts(count: int, words: int | None = None) -> list[str]:
  """Returns sentences of SNLI, or texts of about `words` words that join them."""
  with gzip.open(_SENTENCES, "rt", encoding="utf-8") as file:
    rows = [json.loads(line) for line in file]
  sentences = itertools.cycle([row[name] for row in rows for name in ("premise", "hypothesis")])
  return [next(sentences) if words is None else _joined(sentences, words) for _ in range(count)]


def _joined(sentences: Iterator[str], words: int) -> str:
  text = next(sentences)
  while text.count(" ") + 1 < words:
    text += " " + next(sentences)
  return text


def _measure(settings: EmbedBench, texts: list[str]) -> dict[str, Any]:
  import jax

  from t5like.inference import load
  from t5like.inference.embeddings.jobs import Embedding
  from t5like.inference.jobs import Limits
  from t5like.inference.rows import Row

  model = load(settings.model, dtype=settings.dtype)
  rows = [Row(number, "", text, {}) for number, text in enumerate(texts)]
  prepared = Embedding(model, Limits(truncate=True)).prepare(rows)
  tokens = sum(len(row.tokens) for row in prepared)

  def call() -> float:
    started = time.perf_counter()
    model.embed(texts, batch_size=settings.batch_size, truncate=True)
    return time.perf_counter() - started

  first, times = call(), [call() for _ in range(_REPEATS)]
  device = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
  return summary("t5like", device, tokens, len(texts), first, times)


def _measure_peer(settings: EmbedBench, texts: list[str]) -> dict[str, Any]:
  """Runs the peer in a subprocess; a model directory is exported to a folder for it first."""
  from t5like.bench.peer import run_peer

  with tempfile.TemporaryDirectory(prefix="t5like-") as temporary:
    folder = Path(settings.model).expanduser()
    if not (folder / "modules.json").is_file():
      from t5like.inference import load

      model = load(settings.model)
      has_head = getattr(getattr(model.module, "head", None), "form", "") == "embedding"
      folder = (model if has_head else model.pooled()).save_hf(Path(temporary) / "folder")
    (Path(temporary) / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    task = dict(folder=str(folder), texts=f"{temporary}/texts.json", batch_size=settings.batch_size)
    task["dtype"] = settings.dtype or "float32"
    return run_peer("t5like.bench.peer_embed", "sentence-transformers", task, _TIMEOUT, settings.peer_python)


def summary(name: str, device: str, tokens: int, texts: int, first: float, times: list[float]) -> dict[str, Any]:
  seconds = statistics.median(times)
  return {
    "name": name,
    "device": device,
    "texts": texts,
    "tokens": tokens,
    "first_call_seconds": first,
    "seconds": seconds,
    "spread": max(times) / min(times) - 1.0,
    "tokens_per_second": tokens / seconds,
    "texts_per_second": texts / seconds,
  }


def describe(result: dict[str, Any]) -> str:
  """Returns a result as text."""
  if "error" in result:
    return f"{result['name']}: {result['error']}"
  return (
    f"{result['name']}: {result['tokens_per_second']:,.0f} tokens/s, {result['texts_per_second']:,.0f} texts/s "
    f"({result['texts']:,} texts in {result['seconds']:.3f} s, spread {result['spread']:.1%})\n"
    f"  {result['device']}, first call {result['first_call_seconds']:.1f} s"
  )
