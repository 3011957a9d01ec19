"""A corpus that is read in place: the same batches as from a copy, on any number of hosts, from a store that fails."""

import json

import numpy as np
import pytest
from gcs_server import reached_from_here, serving

from t5like import data
from t5like.data import in_place
from t5like.errors import UserError
from t5like.files import storage
from t5like.objectives import Lengths, SpecialTokens
from t5like.objectives.span_corruption import SpanCorruption

SPECIAL = SpecialTokens(pad=0, eos=1, sentinels=tuple(range(299, 199, -1)), vocab_size=300)
LENGTHS = Lengths(inputs=64, targets=32, raw=70)
POOL = 4 * in_place.UNIT
DESCRIPTION = {"task": "letters", "split": "train", "source_files": []}


def encode(texts):
  return [[2 + (int(text) + i) % 190 for i in range(300_000)] for text in texts]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A corpus of 12 documents of 600 kB, in shards of one: seven units."""
  folder = tmp_path_factory.mktemp("corpus") / "train"
  with data.sole_builder(folder):
    vocabulary = {"name": "letters", "size": 300, "fingerprint": "abc"}
    plan = data.plan_cache(["targets"], vocabulary, DESCRIPTION, {"postprocessor": None, "metrics": []})
    parts = [lambda: [{"targets": str(17 * n)} for n in range(12)]]
    data.build_cache(folder, plan, parts, encode, limits=data.PieceLimits(examples=1))
  return folder


@pytest.fixture
def remote(folder, tmp_path, monkeypatch):
  """The same corpus on a store, and the store."""
  monkeypatch.setattr(in_place, "_FIRST_PAUSE", 0.01)
  with serving("bucket") as (address, store), reached_from_here(monkeypatch, address, tmp_path):
    path = storage.as_path("gs://bucket/train")
    storage.upload_tree(folder, path)
    yield path, store


ALL = data.HostShare()


def batches(cache, share=ALL, pool=POOL):
  order = data.PooledOrder.of(LENGTHS.raw * 2, pool)
  source = data.CorpusRows(cache, SpanCorruption(), LENGTHS, SPECIAL, seed=5, order=order)
  return data.Batches([data.PhaseRows(source, 64)], share)


def equal(a, b):
  return all(np.array_equal(a[name], b[name]) for name in a | b)


def test_batches_are_those_of_a_copy_on_any_number_of_hosts(folder, remote):
  path, store = remote
  store.failing_share, store.delay = 0.05, 0.01
  copied = batches(data.open_cache(folder, ""))
  steps = [0, 1, 700, 3, copied.phases[0].source.rows_per_epoch // 64 + 5]
  for parts in (1, 2):
    hosts = [batches(data.open_cache(path, "", pool=POOL), data.HostShare((n,), parts)) for n in range(parts)]
    for step in steps:
      read = [host[step] for host in hosts]
      assert equal({name: np.concatenate([part[name] for part in read]) for name in read[0]}, copied[step])
  assert not list(storage.mirror_folder(path).rglob("*.tokens"))  # nothing was copied


def test_memory_is_bounded_and_the_next_pool_is_read_ahead(folder):
  cache = data.open_cache(folder, "", pool=POOL)
  units = cache._shards[0]._units
  read = batches(cache)
  rows = read.phases[0].source.order
  assert rows.blocks == 4
  read[0]
  wanted = {pool for *_, pool in cache._announced}
  assert wanted == {0, 1}
  for step in range(0, 4000, 100):
    read[step]
  assert len(units._kept) <= units._most


def test_every_block_of_a_pool_is_read_once(folder, monkeypatch):
  """Room for little more than three pools, which are one unit each, with the ends of five blocks."""
  fetched, fetch = [], in_place.StreamedFile.fetch

  def counted(file, first, last):
    fetched.extend((file.path.name, block) for block in range(first, last))
    return fetch(file, first, last)

  monkeypatch.setattr(in_place.StreamedFile, "fetch", counted)
  monkeypatch.setattr(in_place, "_THREADS", 1)
  cache = data.open_cache(folder, "", pool=in_place.UNIT)
  assert cache._shards[0]._units._most == 16
  source = batches(cache, pool=in_place.UNIT).phases[0].source
  pools = source.order.pools(np.arange(source.rows_per_epoch), source.rows_per_epoch)
  assert pools[-1] == 6
  for start in range(0, np.flatnonzero(pools == 4)[-1], 500):
    source.rows(np.arange(start, start + 64))
  cache._announcer.shutdown()
  assert len(cache._announced) == 6 and len(fetched) <= 6 * 6
  assert max(map(fetched.count, fetched)) <= 2  # of two pools at most, whose rows are in one block


def test_damaged_and_missing_files_are_named(remote):
  path, store = remote
  cache = data.open_cache(path, "t5like cache letters --force", pool=POOL)
  (name,) = (s["name"] for s in cache.manifest["shards"][:1])
  objects = store.buckets["bucket"]
  about, content = objects[f"train/{name}.tokens"]
  objects[f"train/{name}.tokens"] = (about, content[:300_000] + b"\0\1" + content[300_002:])
  cache.stream_rows(np.array([0]), 100)  # another block
  with pytest.raises(UserError) as raised:
    cache.stream_rows(np.array([150_000]), 100)
  assert "262,144 to 524,288" in str(raised.value) and f"{name}.tokens" in str(raised.value)
  assert raised.value.lines["try"] == f"t5like cache letters --repair={name}"
  del objects[f"train/{name}.tokens"]
  with pytest.raises(UserError, match="is missing"):
    cache.stream_rows(np.array([150_000]), 100)


def test_a_manifest_of_a_trillion_tokens_opens_with_checksums_as_numbers_in_arrays(tmp_path):
  """Here of 10^9: 8,000 blocks."""
  shard = {"examples": 10**6, "tokens": 10**9}
  blocks = 2 * 10**9 // (1 << 18) + 1
  index = {"bytes": 8 * (10**6 + 1), "crc32": [0] * 31}
  files = {"tokens": {"bytes": 2 * 10**9, "crc32": [0] * blocks}, "index": index}
  manifest = {
    "format": 2, "dtype": "<u2", "features": ["targets"], "examples": 10**6, "tokens": 10**9, "scoring": {},
    "description": DESCRIPTION, "shards": [{"name": "shard-00000", "files": files, **shard}],
  }  # fmt: skip
  (tmp_path / "cache.json").write_text(json.dumps(manifest))
  cache = data.open_cache(tmp_path, "", pool=1 << 30)
  order = data.PooledOrder.of(LENGTHS.raw * 2, 1 << 30)
  source = data.CorpusRows(cache, SpanCorruption(), LENGTHS, SPECIAL, seed=5, order=order)
  assert source.rows_per_epoch == 10**9 // LENGTHS.raw
