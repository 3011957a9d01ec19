"""`token_cache` from Python: builds what is missing in a process of its own, and opens what is there."""

import importlib
import json
import os
import types

import pytest
import seqio

from t5like import data
from t5like.errors import UserError
from t5like.experiments import seqio_process
from t5like.experiments.seqio_process import modules_for
from t5like.experiments.token_caches import token_cache
from t5like.tasks import registry
from t5like.vocabularies import load_vocabulary


def test_a_custom_corpus_is_built_once_and_then_opened(tmp_path, monkeypatch):
  """By the real command in a process of its own, with a module of the folder in which it is started."""
  texts = ["It was a bright cold day in April.", "Call me Ishmael."]
  (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
  (tmp_path / "modules_of_two_texts.py").write_text(
    "from t5like.tasks.library.corpora import register_corpus\nregister_corpus('two_texts', {'train': 'texts.jsonl'})\n"
  )
  monkeypatch.chdir(tmp_path)

  def build():
    return token_cache("two_texts", "tiny", root="caches", task_modules=["modules_of_two_texts"])

  cache = build()
  assert cache.examples == 2 and cache.is_corpus
  vocabulary = load_vocabulary("tiny")
  assert [vocabulary.decode(cache.example(n)["targets"].tolist()) for n in range(2)] == texts
  monkeypatch.setattr("t5like.experiments.token_caches.subprocess", None)  # nothing is left to build
  assert build().manifest == cache.manifest


def test_a_task_that_is_not_known_and_a_mixture_are_refused(run_children_here, token_caches, tmp_path):
  with pytest.raises(UserError, match="cannot build the token cache of task 'novel'"):
    token_cache("novel", "tiny", root=str(tmp_path))
  vocabulary = load_vocabulary("tiny")
  folder = data.cache_folder(token_caches, "both_of_these", "train", "tiny", vocabulary.fingerprint)
  data.write_mixture(folder, {"snli": 1.0, "novels": 2.0})
  with pytest.raises(UserError, match="is a mixture") as error:
    token_cache("both_of_these", "tiny", root=str(token_caches))
  assert error.value.lines["tasks"] == "snli, novels"


def test_caches_of_the_users_rows_follow_all_files(run_children_here, tmp_path):
  """Classes are numbered by the training split, and a split without a file is not that of an earlier run."""

  def written(name, *labels):
    (tmp_path / name).write_text("".join(json.dumps({"text": f"t{label}", "label": label}) + "\n" for label in labels))
    return str(tmp_path / name)

  def labels(split, **files):
    seqio.TaskRegistry.remove("stars_classification")  # a command is a new process
    cache = token_cache("stars_classification", "bert_uncased", split, root=str(tmp_path / "caches"), files=files)
    return [fields["label"] for fields in cache.fields()]

  first, more = written("first.jsonl", 1, 2), written("more.jsonl", 0, 1, 2)
  validation = written("validation.jsonl", 2, 1)
  assert labels("train", train=first, validation=validation) == [0, 1]
  assert labels("validation", train=first, validation=validation) == [1, 0]
  assert labels("validation", train=more, validation=validation) == [2, 1]  # although only "train" is another file
  with pytest.raises(UserError, match="no split 'validation'"):
    labels("validation", train=more)


PLAIN = """
import numpy
import seqio

numbers = numpy.arange(3)

seqio.TaskRegistry.add(
  "of_a_notebook", seqio.TextLineDataSource({"train": "lines.txt"}),
  output_features={"targets": seqio.Feature(seqio.ByteVocabulary())},
)
"""
OURS = """
from t5like.tasks.library.corpora import register_corpus

register_corpus("corpus_of_a_notebook", {"train": "lines.txt"})
"""


def test_tasks_that_an_import_registered_are_found_by_other_processes(tmp_path, monkeypatch):
  """As in a notebook: with seqio alone, or by a function of ours; not if another process cannot import them."""
  for name, text in {"tasks_of_seqio": PLAIN, "tasks_of_ours": OURS}.items():
    (tmp_path / f"{name}.py").write_text(text)
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(seqio_process, "sys", types.SimpleNamespace(modules={}))
  assert modules_for(["of_a_notebook"]) == []  # seqio is not even loaded
  plain, ours = importlib.import_module("tasks_of_seqio"), importlib.import_module("tasks_of_ours")
  loaded = {"seqio": seqio, "t5like.tasks.registry": registry, "tasks_of_seqio": plain, "tasks_of_ours": ours, "os": os}
  monkeypatch.setattr(seqio_process, "sys", types.SimpleNamespace(modules=loaded))
  assert modules_for(["of_a_notebook"]) == ["tasks_of_seqio"]
  assert modules_for(["corpus_of_a_notebook_prefix_lm", "of_a_notebook"]) == ["tasks_of_ours", "tasks_of_seqio"]
  assert modules_for(["novels", "unknown"]) == [] and modules_for(["of_a_notebook"], ["mine"]) == ["mine"]
  loaded["__main__"] = loaded.pop("tasks_of_seqio")
  with pytest.raises(UserError, match="'of_a_notebook' is registered in this script or notebook"):
    modules_for(["of_a_notebook"])
