"""A run reads a corpus in place if it is larger than CACHE_LOCAL_GB, and keeps to that when it is resumed."""

import dataclasses
import json

import numpy as np
import pytest

import t5like
from t5like import data
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


@pytest.mark.slow
def test_a_resumed_run_keeps_the_order_of_its_rows(caches, tmp_path):
  t5like.train(experiment(caches, tmp_path / "a", cache_local_gb=0.003))
  assert "read in place from" in (tmp_path / "a" / "run_card.txt").read_text()
  assert list(json.loads((tmp_path / "a" / "run_card.json").read_text())["pools"].values()) == [1]
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
