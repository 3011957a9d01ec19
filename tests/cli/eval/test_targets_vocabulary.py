"""Tasks whose targets have a different vocabulary than the model: answers are decoded with it, as in seqio."""

import json
import os
import sys

import pytest
import seqio

from t5like import data
from t5like.training.records.metrics import read_metrics
from t5like.vocabularies import ByteVocabulary, SentencePieceVocabulary, load_vocabulary, name_of

TINY = load_vocabulary("tiny")
MODULE = """
import seqio


class Unknown(seqio.Vocabulary):
  def __init__(self):
    super().__init__()
    self._bytes = seqio.ByteVocabulary()
  bos_id, eos_id, unk_id = None, 1, 2
  _base_vocab_size = 259
  def _encode(self, s): return self._bytes._encode(s)
  def _decode(self, ids): return self._bytes._decode(ids)
  def _encode_tf(self, s): return self._bytes._encode_tf(s)
  def _decode_tf(self, ids): return self._bytes._decode_tf(ids)
  def __eq__(self, other): return isinstance(other, Unknown)


PIECES = seqio.SentencePieceVocabulary(VOCABULARY_FILE, extra_ids=100)


@seqio.map_over_dataset
def to_text(line):
  return {"inputs": line, "targets": "ok"}


def exact(targets, predictions):
  return {"exact": 100.0 * sum(t == p for t, p in zip(targets, predictions)) / len(targets)}


for name, vocabulary in (("spelled", seqio.ByteVocabulary()), ("unknown", Unknown())):
  seqio.TaskRegistry.add(
    name,
    source=seqio.TextLineDataSource({"train": "rows.txt", "validation": "rows.txt"}),
    preprocessors=[to_text, seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim],
    output_features={"inputs": seqio.Feature(PIECES), "targets": seqio.Feature(vocabulary)},
    metric_fns=[exact],
  )
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
  (tmp_path / "two_vocabularies.py").write_text(MODULE.replace("VOCABULARY_FILE", repr(str(TINY.path))))
  (tmp_path / "rows.txt").write_text("".join(f"row {i}\n" for i in range(16)))
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  yield tmp_path
  forget()


def forget():
  sys.modules.pop("two_vocabularies", None)
  for task in ("spelled", "unknown"):
    seqio.TaskRegistry.remove(task)


@pytest.fixture
def train(t5like, small_model):
  def run(task, *more, **settings):
    forget()
    return t5like(
      "train", *small_model, "--gin_file=runs/finetune.gin", f"--gin.TASK={task}", "--gin.INIT_FROM=None",
      "--gin.TASK_MODULES=['two_vocabularies']", "--gin.CACHE_DIR=tokens", "--gin.FINETUNE_LEARNING_RATE=0.1",
      "--gin.LENGTHS={'inputs': 8, 'targets': 4}", "--gin.PACK=False", "--gin.DROPOUT_RATE=0.0",
      "--gin.MODEL_DIR=run", *more, **settings,
    )  # fmt: skip

  return run


def manifest():
  base = data.cache_folder("tokens", "spelled", "validation", "tiny", TINY.fingerprint)
  return data.finished_folder(base, {"inputs": 8, "targets": 4}) / "cache.json"


def test_answers_are_decoded_with_the_vocabulary_of_the_targets(train, t5like, folder):
  """A model that always writes the ids of the bytes "ok" is always correct."""
  train("spelled", "--gin.TRAIN_STEPS=60", "--gin.LOG_PERIOD=20")
  (row,) = [row for row in read_metrics("run") if row["kind"] == "eval/spelled"]
  answer = json.loads(open("run/predictions/spelled-validation-60.jsonl").readline())
  assert (row["exact"], answer["prediction"], answer["target"]) == (100.0, "ok", "ok")
  forget()
  command = ["eval", "--model_dir=run", "--task=spelled", "--task_modules=two_vocabularies", "--cache_dir=tokens"]
  assert "exact 100.00" in t5like(*command, "--again").stdout
  refused = t5like(*command, "--rank", status=2).stderr
  assert "targets of task 'spelled' have their own vocabulary" in refused and "--rank" in refused
  refused = t5like("infer", "--model=run", *command[2:], "--output=out.jsonl", status=2).stderr
  assert "t5like eval --task=spelled" in refused
  with open("in.txt", "w") as file:
    file.write("a b\n")
  for more in ([], ["--candidates=in.txt"]):
    refused = t5like("infer", "--model=run", "--input=in.txt", "--output=out.jsonl", *more, status=2).stderr
    assert "have their own vocabulary, not the model's" in refused and "t5like eval --task=spelled" in refused


def test_the_preview_shows_each_feature_with_its_own_vocabulary(t5like, folder):
  forget()
  shown = t5like("tasks", "show", "spelled", "--task_modules=two_vocabularies", "--vocabulary=tiny").stdout
  assert "targets  3 of ByteVocabulary: o k" in shown and "of tiny: " in shown
  out = t5like("tasks", "show", "unknown", "--task_modules=two_vocabularies", "--vocabulary=tiny").stdout
  assert "targets  3 of Unknown: 114 110 1" in out


@pytest.mark.slow
def test_caches_without_the_vocabulary_of_their_targets_are_rebuilt(train, folder):
  train("spelled", "--gin.TRAIN_STEPS=1")
  content = json.loads(manifest().read_text())
  assert content["targets_vocabulary"] == {"name": "byte:extra_ids=0", "fingerprint": ByteVocabulary(0).fingerprint}
  del content["targets_vocabulary"], content["description"]["targets_vocabulary"]  # as in earlier versions
  manifest().write_text(json.dumps(content))
  out = train("spelled", "--gin.TRAIN_STEPS=1", "--gin.MODEL_DIR=second").stdout
  assert "is stale: it does not record the vocabulary of its targets" in out
  assert json.loads(manifest().read_text())["targets_vocabulary"]["name"] == "byte:extra_ids=0"


REFUSED = [
  ({"name": "byte:extra_ids=0", "fingerprint": "another"}, "has changed since"),
  ({"name": "/nowhere/spiece.model", "fingerprint": "x"}, "cannot be loaded: vocabulary not found"),
  ({"name": "http://127.0.0.1:1/spiece.model", "fingerprint": "x"}, "cannot be loaded: http://"),
  ("byte", "cannot be loaded: byte"),
]


@pytest.mark.slow
def test_a_missing_vocabulary_is_reported_before_the_first_step(train, folder):
  train("spelled", "--gin.TRAIN_STEPS=1", "--gin.MODEL_DIR=first", "--gin.EVAL_EXAMPLES=1")
  content = json.loads(manifest().read_text())
  for stored, reason in REFUSED:
    manifest().write_text(json.dumps(content | {"targets_vocabulary": stored}))
    refused = train("spelled", "--gin.TRAIN_STEPS=1", status=2).stderr
    assert "the targets of task 'spelled' have their own vocabulary" in refused and reason in refused
    assert not os.path.exists("run/checkpoints")


@pytest.mark.slow
def test_a_vocabulary_without_a_name_is_refused_in_evaluation_but_not_in_training(train, folder):
  refused = train("unknown", "--gin.TRAIN_STEPS=1", status=2).stderr
  assert "which cannot be loaded: a Unknown" in refused and not os.path.exists("run/checkpoints")
  train("unknown", "--gin.TRAIN_STEPS=1", "--gin.EVAL_SPLIT=''")


def test_names_of_vocabularies(tmp_path):
  (tmp_path / "own.model").write_bytes(TINY.path.read_bytes())
  own = SentencePieceVocabulary(tmp_path / "own.model", 7)
  names = {"tiny:extra_ids=100": TINY, "byte:extra_ids=125": ByteVocabulary(), f"{own.path}:extra_ids=7": own}
  names["bert_cased"] = load_vocabulary("bert_cased")
  for name, vocabulary in names.items():
    assert name_of(vocabulary) == name and load_vocabulary(name).fingerprint == vocabulary.fingerprint
