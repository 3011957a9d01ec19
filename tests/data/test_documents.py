"""Documents are found in the indices of their shards, of which only some are in memory."""

import json
import resource
import time

import numpy as np
import pytest

from t5like import data
from t5like.data import documents as documents_module
from t5like.data.document_plans import DocumentRows, StreamRows
from t5like.data.documents import Documents, Indices
from t5like.objectives import Lengths, SpecialTokens
from t5like.objectives.language_modeling import CausalLM

DESCRIPTION = {"task": "numbers", "split": "train", "source_files": []}
SPECIAL = SpecialTokens(pad=0, eos=1, sentinels=(), vocab_size=2000)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  """Documents of 0 to 30 tokens, seven to a shard: the texts, and the cache."""
  lengths = np.random.default_rng(3).integers(0, 31, 60)
  lengths[[7, 20, 59]] = 0  # the first and the last of a shard
  folder = tmp_path_factory.mktemp("documents") / "train"
  numbers = iter(range(2, 2000))
  texts = [[next(numbers) for _ in range(length)] for length in lengths]
  with data.sole_builder(folder):
    vocabulary = {"name": "numbers", "size": 2000, "fingerprint": "abc"}
    plan = data.plan_cache(["targets"], vocabulary, DESCRIPTION, {"postprocessor": None, "metrics": []})
    parts, encode = [lambda: [{"targets": str(n)} for n in range(60)]], lambda ns: [texts[int(n)] for n in ns]
    data.build_cache(folder, plan, parts, encode, limits=data.PieceLimits(examples=7))
  return texts, data.open_cache(folder, "")


def cut(texts, tokens):
  """The documents of the first tokens."""
  for text in texts:
    if tokens <= 0:
      return
    yield text[:tokens]
    tokens -= len(text)


@pytest.mark.parametrize("tokens", [None, 200, 301, 1])
@pytest.mark.parametrize("kept", [1 << 20, 1])
def test_rows_are_those_of_the_texts(corpus, tokens, kept, monkeypatch):
  monkeypatch.setattr(documents_module, "_KEPT", kept)
  texts, cache = corpus
  if tokens:
    texts, cache = list(cut(texts, tokens)), data.FirstTokens(cache, tokens)
  stream = [token for text in texts for token in [*text, 1]]
  assert cache.documents().count == len(texts)
  for raw in (1, 13, 40):
    if len(stream) >= raw:
      plan = StreamRows(cache, raw, separator=1)
      assert plan.rows == len(stream) // raw
      rows = np.random.default_rng(0).permutation(plan.rows)
      assert [row.tolist() for row in plan.read(rows).tokens] == [stream[r * raw : (r + 1) * raw] for r in rows]
      begin, end = plan.tokens(rows, rows + 1)
      counts = [sum(token != 1 for token in stream[: r * raw]) for r in [*rows, *(rows + 1)]]
      assert [*begin, *end] == counts
    plan = DocumentRows(cache, raw)
    pieces = [(text[i : i + raw], n) for n, text in enumerate(texts) for i in range(0, len(text), raw)]
    rows = np.random.default_rng(0).permutation(plan.rows)
    read = plan.read(rows)
    assert plan.rows == len(pieces)
    assert [t[:n].tolist() for t, n in zip(read.tokens, read.lengths, strict=True)] == [pieces[r][0] for r in rows]


def test_memory_is_bounded(monkeypatch):
  monkeypatch.setattr(documents_module, "_KEPT", 70 * 808)
  read = []
  indices = Indices(lambda shard: read.append(shard) or np.arange(101) * 7)
  first = np.arange(201) * 100
  documents = Documents.of(first, first * 7, indices)
  assert documents.starts(np.array([0, 19_999, 20_000, 123])).tolist() == [0, 139_993, 140_000, 861]
  assert sorted(read) == [0, 1, 199]
  documents.all()
  assert len(indices._kept) == 70 and len(read) <= 201


@pytest.mark.slow  # takes 1 GB and half a minute
def test_a_billion_documents_and_a_trillion_tokens(tmp_path):
  """The manifest of 238,000 shards opens in seconds; finding a row does not depend on the number of documents."""
  shards, documents, tokens = 238_000, 4_202, 4_201_700
  blocks = -(-2 * tokens // (1 << 18))
  files = {
    "tokens": {"bytes": 2 * tokens, "crc32": "0" * 8 * blocks},
    "index": {"bytes": 8 * (documents + 1), "crc32": "0" * 8},
  }
  entries = [
    {"name": f"shard-{n:05d}-00000", "examples": documents, "tokens": tokens, "files": files} for n in range(shards)
  ]
  manifest = {
    "format": 2, "dtype": "<u2", "features": ["targets"], "examples": shards * documents, "tokens": shards * tokens,
    "scoring": {}, "description": DESCRIPTION, "shards": entries,
  }  # fmt: skip
  (tmp_path / "cache.json").write_text(json.dumps(manifest, indent=1))
  del entries, manifest
  began, memory = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  cache = data.open_cache(tmp_path, "", pool=1 << 30)
  assert time.monotonic() - began < 30 and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 1e6  # kB
  assert cache.examples > 10**9 * 0.99 and cache.tokens > 10**12 * 0.99
  index = np.linspace(0, tokens, documents + 1).astype("<i8")
  cache._indices = Indices(lambda shard: index)  # as if read from the files, which would take 8 GB
  order = data.PooledOrder.of(2 * 1024, 1 << 30)
  source = data.CorpusRows(cache, CausalLM(), Lengths(inputs=0, targets=1024, raw=1024), SPECIAL, 5, order=order)
  began = time.monotonic()
  spans = source.plan.tokens(*order.spans(900, source.rows_per_epoch, 5))
  assert len(spans[0]) == 1024 and time.monotonic() - began < 5
