"""2 GB of tokens on a store with errors and latency, read in place with room for 200 MB. Prints what it measures:

python -m pytest -m slow -s tests/data/test_in_place_proof.py
"""

import threading
import time

import numpy as np
import pytest
from gcs_server import reached_from_here, serving

import t5like
from t5like import data
from t5like.data.cache_builder import manifest_of, plan_cache
from t5like.data.shards import block_sums
from t5like.files import storage
from t5like.objectives import Lengths, SpecialTokens
from t5like.objectives.span_corruption import SpanCorruption
from t5like.runs.pools import choose_pool

pytestmark = pytest.mark.slow  # three minutes, 6 GB of memory

TOKENS, SHARDS, DOCUMENT = 10**9, 200, 1000
SPECIAL = SpecialTokens(pad=0, eos=1, sentinels=tuple(range(32_099, 31_999, -1)), vocab_size=32_100)
LENGTHS, ROWS, SEED = Lengths(inputs=512, targets=114, raw=568), 128, 5
TOKENS_PER_SECOND = 590_000  # of an H200 with T5 1.1 base
DELAY, FAILING = 0.2, 0.05


def write_corpus(put):
  """Writes random tokens in documents of equal length with `put(name, content)`."""
  rng, shards, size = np.random.default_rng(0), [], TOKENS // SHARDS
  index = (np.arange(size // DOCUMENT + 1, dtype="<i8") * DOCUMENT).tobytes()
  for number in range(SHARDS):
    contents = {"tokens": rng.integers(3, 32_000, size, np.uint16).tobytes(), "index": index}
    name = f"shard-{number:05d}"
    for kind, content in contents.items():
      put(f"{name}.{kind}", content)
    files = {kind: {"bytes": len(content), "crc32": block_sums(content)} for kind, content in contents.items()}
    shards.append({"name": name, "examples": size // DOCUMENT, "tokens": size, "files": files})
  description = {"task": "random", "split": "train", "source_files": []}
  scoring = {"postprocessor": None, "metrics": []}
  plan = plan_cache(["targets"], {"name": "t5", "size": 32_100, "fingerprint": "abc"}, description, scoring, {})
  put("cache.json", manifest_of(plan, shards))
  return sum(file["bytes"] for shard in shards for file in shard["files"].values())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  """The folder on the store, a copy on this machine, the bytes of a pool, and the store."""
  local = tmp_path_factory.mktemp("copy")
  with pytest.MonkeyPatch.context() as patch, serving("bucket") as (address, store):
    with reached_from_here(patch, address, local / "mirror"):

      def put(name, content):
        store.put("bucket", f"corpus/{name}", content, {})
        (local / name).write_bytes(content)

      size = write_corpus(put)
      experiment = t5like.read_experiment(
        ["models/t5/tiny.gin", "objectives/span_corruption.gin", "runs/pretrain.gin"],
        MODEL_DIR=str(local / "run"), CACHE_LOCAL_GB=0.2,
      )  # fmt: skip
      folder = storage.as_path("gs://bucket/corpus")
      pool = choose_pool(experiment, folder, size)
      assert 0 < 4 * pool <= 200e6
      store.delay, store.failing_share = DELAY, FAILING
      yield folder, local, pool, store


def batches(folder, pool, held=0, hosts=1):
  order = data.PooledOrder.of(LENGTHS.raw * 2, pool)
  cache = data.open_cache(folder, "", pool=pool)
  source = data.CorpusRows(cache, SpanCorruption(), LENGTHS, SPECIAL, SEED, order=order)
  return data.Batches([data.PhaseRows(source, ROWS)], data.HostShare((held,), hosts))


def test_batches_are_equal_on_1_2_and_4_hosts_and_after_a_resume(corpus):
  folder, local, pool, _ = corpus
  copied = batches(local, pool)
  epoch = copied.phases[0].source.rows_per_epoch // ROWS
  for hosts, steps in ((1, (0, epoch // 2, epoch)), (2, (epoch // 2,)), (4, (epoch // 2,))):
    began = time.monotonic()
    for step in steps:  # new readers for each: a resume
      parts = [batches(folder, pool, host, hosts)[step] for host in range(hosts)]
      expected = copied[step]
      assert all(np.array_equal(np.concatenate([part[name] for part in parts]), expected[name]) for name in expected)
    print(f"\n{hosts} hosts: the batches of steps {steps} equal those of a copy ({time.monotonic() - began:.0f} s)")
  assert not list(storage.mirror_folder(folder).rglob("*.tokens"))


def test_the_input_wait_at_the_speed_of_an_h200(corpus):
  folder, local, pool, store = corpus
  requests = len(store.requests)
  step_seconds = ROWS * (LENGTHS.inputs + LENGTHS.targets) / TOKENS_PER_SECOND
  pool_steps = pool // (LENGTHS.raw * 2) // ROWS
  steps = round(1.3 * pool_steps)  # from one pool into the next
  read = data.read_ahead(batches(folder, pool), 0, steps + 1, threads=1)
  began = time.monotonic()
  next(read)
  first, waited, began = time.monotonic() - began, 0.0, time.monotonic()
  for _ in range(steps):
    asked = time.monotonic()
    next(read)
    waited += time.monotonic() - asked
    time.sleep(max(0.0, asked + step_seconds - time.monotonic()))
  seconds = time.monotonic() - began
  print(
    f"\n{steps * step_seconds / seconds * TOKENS_PER_SECOND:,.0f} tokens/s for {seconds:.0f} s ({steps} steps, "
    f"pools of {pool / 1e6:.0f} MB): first batch after {first:.1f} s, then input wait {waited / seconds:.2%}; "
    f"{len(store.requests) - requests} requests, {DELAY} s each, {FAILING:.0%} failed"
  )
  assert waited / seconds < 0.01


def test_the_quality_of_the_shuffle(corpus):
  _, local, pool, _ = corpus
  source = batches(local, pool).phases[0].source
  rows, block = source.rows_per_epoch, source.order.block
  _, pooled = source.order.shuffled(np.arange(rows), rows, SEED)
  assert np.array_equal(np.sort(pooled), np.arange(rows)), "every row exactly once"
  documents = pooled * LENGTHS.raw // DOCUMENT
  full = np.random.default_rng(1).permutation(rows)
  same_block = np.mean(pooled[1:] // block == pooled[:-1] // block)
  correlation, of_full = (np.corrcoef(x[:-1], x[1:])[0, 1] for x in (documents, full * LENGTHS.raw // DOCUMENT))
  same_document = np.mean(documents[1:] == documents[:-1])
  print(
    f"\n{rows:,} rows, each once per epoch; documents of neighboring rows: correlation {correlation:.4f} "
    f"(fully shuffled: {of_full:.4f}), the same document {same_document:.2e}, the same block of 1 MiB {same_block:.3f}"
  )
  assert abs(correlation) < 0.05 and abs(same_block - 1 / source.order.blocks) < 0.01


def test_a_store_that_stalls_for_a_minute_is_waited_for(corpus):
  folder, local, pool, store = corpus
  step, expected = 5000, batches(local, pool)[5000]
  reader = batches(folder, pool)
  store.delay, began = 60.0, time.monotonic()
  try:
    threading.Timer(60.0, lambda: setattr(store, "delay", DELAY)).start()
    found = reader[step]
  finally:
    store.delay = DELAY
  waited = time.monotonic() - began
  print(f"\nstalled for 60 s: the batch came after {waited:.0f} s, and is the same")
  assert waited > 50 and all(np.array_equal(found[name], expected[name]) for name in expected)
