"""A run reads a corpus in place if it is larger than CACHE_LOCAL_GB, and keeps to that when it is resumed."""

import dataclasses
import json
import time
from pathlib import Path

import numpy as np
import pytest
from gcs_server import reached_from_here, serving

import t5like
from t5like import data
from t5like.files import storage
from t5like.models import T5, TransformerConfig
from t5like.objectives.span_corruption import SpanCorruption
from t5like.vocabularies import load_vocabulary

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
  """The cache of a corpus of 4 MB, which the task 'text' would build."""
  vocabulary, root = load_vocabulary("tiny"), tmp_path_factory.mktemp("caches")
  folder = data.cache_folder(root, "text", "train", "tiny", vocabulary.fingerprint)
  ids = np.random.default_rng(0).integers(10, 4000, (40, 50_000)).tolist()
  about = {"name": "tiny", "size": vocabulary.vocab_size, "fingerprint": vocabulary.fingerprint}
  description = {"task": "text", "split": "train", "source_files": []}
  scoring = {"postprocessor": None, "metrics": []}
  data.write_cache(folder, [{"targets": row} for row in ids], ["targets"], None, about, description, scoring)
  return str(root)


def experiment(caches, model_dir, **more):
  sizes = dict(embed_dim=8, mlp_dim=8, num_heads=1, head_dim=8, num_encoder_layers=1, num_decoder_layers=1)
  model = T5(TransformerConfig(vocab_size=4224, **sizes))
  return t5like.Experiment(
    model=model, model_dir=str(model_dir), task="text", objective=SpanCorruption(), vocabulary="tiny",
    lengths={"inputs": 32}, batch_size=8, cache_dir=caches, log_period=1, steps=2,
    optimizer=t5like.optimizers.adafactor(0.01), **more,
  )  # fmt: skip


def losses(folder):
  rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
  return {row["step"]: row["loss"] for row in rows if row["kind"] == "train"}


def test_a_damaged_record_of_the_order_of_rows_is_an_error(caches, tmp_path):
  t5like.train(experiment(caches, tmp_path / "run", cache_local_gb=0.003))
  (tmp_path / "run/run_card.json").write_text('{"pools": {')
  with pytest.raises(t5like.UserError, match="run_card.json is damaged"):
    t5like.train(experiment(caches, tmp_path / "run", cache_local_gb=0.003))


@pytest.mark.slow
def test_a_resumed_run_keeps_the_order_of_its_rows(caches, tmp_path):
  t5like.train(experiment(caches, tmp_path / "a", cache_local_gb=0.003))
  assert "read in place from" in (tmp_path / "a" / "run_card.txt").read_text()
  card = json.loads((tmp_path / "a" / "run_card.json").read_text())
  assert list(card["pools"].values()) == [1] and list(card["data_cards"]) == ["text"]
  assert "| documents | 40 |" in Path(card["data_cards"]["text"]).read_text()
  copied = t5like.train(experiment(caches, tmp_path / "b"))
  assert "read in place" not in (tmp_path / "b" / "run_card.txt").read_text()
  assert losses(tmp_path / "a") != losses(tmp_path / "b") and copied.step == 2
  # Resumed without the limit, and with another one for the other: the batches of step 3 and 4 stay what they were.
  longer = {"steps": 4}
  for name, more in (("a", {}), ("b", {"cache_local_gb": 0.003})):
    t5like.train(dataclasses.replace(experiment(caches, tmp_path / name, **more), **longer))
  t5like.train(dataclasses.replace(experiment(caches, tmp_path / "c", cache_local_gb=0.003), **longer))
  t5like.train(dataclasses.replace(experiment(caches, tmp_path / "d"), **longer))
  assert losses(tmp_path / "a") == losses(tmp_path / "c") and losses(tmp_path / "b") == losses(tmp_path / "d")


@pytest.mark.slow  # a minute
def test_a_run_waits_for_a_store_that_stalls_and_reports_it(caches, tmp_path, monkeypatch):
  with serving("bucket") as (address, store), reached_from_here(monkeypatch, address, tmp_path / "mirror"):
    storage.upload_tree(Path(caches), storage.as_path("gs://bucket/caches"))
    ends = []

    def stall():
      if any(".tokens" in request for request in store.requests[-20:]):
        ends.append(time.monotonic() + 60.0)
        time.sleep(max(0.0, ends[0] - time.monotonic()))

    store.wait_or_fail = stall
    result = t5like.train(experiment("gs://bucket/caches", tmp_path / "run", cache_local_gb=0.003))
  assert ends and result.step == 2
  rows = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
  waited = sum(row["input_wait"] / row["steps_per_second"] for row in rows if row["kind"] == "train")
  assert waited > 20, "the rest of the minute went into compiling"
  expected = t5like.train(experiment(caches, tmp_path / "disk", cache_local_gb=0.003))
  assert expected.step == 2 and losses(tmp_path / "run") == losses(tmp_path / "disk")
