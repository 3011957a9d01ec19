"""Tasks for sentence embeddings: NLI's pairs, triplets and sentences, retrieval, and JSON lines of one's own."""

import itertools
import json
import re

import numpy as np
import pytest

from t5like.configuration.search_path import shipped_folder
from t5like.errors import UserError
from t5like.tasks import registry
from t5like.tasks.caching import text_pipeline
from t5like.tasks.caching.label_forms import label_form
from t5like.tasks.encoders.embeddings import register_texts
from t5like.tasks.encoders.scores import nearest_text
from t5like.tasks.missing_data import explain_data_errors, tfds_name
from t5like.tasks.preparation.official_sizes import OFFICIAL_SIZES


def examples(name, count=2, split="train"):
  return list(itertools.islice(text_pipeline.text_examples(registry.find_task(name), split), count))


@pytest.mark.slow
def test_nli_as_pairs_triplets_and_sentences():
  horse = "A person on a horse jumps over a broken down airplane."
  outdoors, diner = "A person is outdoors, on a horse.", "A person is at a diner, ordering an omelette."
  assert examples("snli_pairs_embedding", 1) == [{"first": horse, "second": outdoors}]
  # Each of an entailed pair is an anchor once.
  assert examples("snli_triplets_embedding") == [
    {"first": horse, "second": outdoors, "third": diner},
    {"first": outdoors, "second": horse, "third": diner},
  ]
  assert examples("snli_retrieval_embedding", 1) == [{"first": outdoors, "second": horse}]
  sentences = [row["first"] for row in examples("snli_sentences_embedding", 500)]
  assert sentences[0] == horse and len(set(sentences)) == 500


@pytest.mark.parametrize(
  ("name", "form", "features", "metric"),
  [
    ("all_nli_triplets_embedding", {"name": "embedding", "texts": 3}, None, "accuracy"),
    ("all_nli_pairs_embedding", {"name": "embedding", "texts": 2}, None, "retrieval"),
    ("snli_triplets_embedding", {"name": "embedding", "texts": 3}, ["first", "second", "third"], "accuracy"),
    ("snli_sentences_embedding", {"name": "embedding", "texts": 1}, ["first"], None),
    ("squad_retrieval_embedding", {"name": "embedding", "texts": 2}, None, "retrieval"),
  ],
)
def test_forms(name, form, features, metric):
  task = registry.find_task(name)
  assert label_form(task) == form
  assert [function.__name__ for function in task.metric_fns] == ([metric] if metric else [])
  if features:  # the data is in the package
    assert text_pipeline.text_features(task, "train") == features


def test_seqio_reads_the_texts_one_after_the_other():
  """The texts of a row with their numbers as token types; training reads a token cache, which has them separately."""
  dataset = registry.find_task("snli_triplets_embedding").get_dataset({"inputs": 64}, "validation", shuffle=False)
  row = next(dataset.as_numpy_iterator())
  starts = np.flatnonzero(row["inputs"] == 101)
  assert len(starts) == 3 and row["token_types"][starts].tolist() == [0, 1, 2]
  assert np.sum(row["inputs"] == 102) == 3


def write(path, *rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return {"train": str(path)}


@pytest.mark.parametrize(
  ("row", "form", "example"),
  [
    ({"anchor": "a", "positive": "b"}, {"texts": 2}, {"first": "a", "second": "b"}),
    (
      {"query": "a", "positive": "b", "negative_1": "c", "negative_2": "d", "other": 3},
      {"texts": 4},
      {"first": "a", "second": "b", "third": "c", "fourth": "d"},
    ),
    ({"text": "a"}, {"texts": 1}, {"first": "a"}),
    (
      {"sentence1": "a", "sentence2": "b", "score": 2.5},
      {"texts": 2, "target": "regression"},
      {"first": "a", "second": "b", "label": 2.5},
    ),
  ],
)
def test_json_lines_of_ones_own(row, form, example, tmp_path):
  task = register_texts(f"own_{len(row)}_{form['texts']}_embedding", write(tmp_path / "rows.jsonl", row, row))
  assert label_form(task) == {"name": "embedding"} | form
  assert list(text_pipeline.text_examples(task, "train")) == [example] * 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  ("rows", "message"),
  [
    ([{"title": "a"}], "no text to embed"),
    ([], "is empty"),
    ([{"anchor": "a", "positive": "b"}, {"anchor": "a"}], "does not match its format"),
    ([{"anchor": "a", "positive": "b"}, {"anchor": "a", "positive": " "}], "does not match its format"),
    ([{"sentence1": "a", "sentence2": "b", "score": "high"}], "does not match its format"),
  ],
)
def test_invalid_json_lines(rows, message, tmp_path):
  with pytest.raises(UserError, match=message):
    task = register_texts(f"bad_{abs(hash(str(rows)))}_embedding", write(tmp_path / "rows.jsonl", *rows))
    with explain_data_errors(task):
      list(text_pipeline.text_examples(task, "train"))


def test_the_nearest_text_is_right_if_it_is_the_positive():
  assert nearest_text(None, {}, is_target=True) == 0 == nearest_text([0.9, 0.2, 0.8]) and nearest_text([0.1, 0.2]) == 1


@pytest.mark.slow
def test_tasks_and_sizes_of_the_recipes():
  """gin/finetune/embeddings: their tasks exist, and epochs are those of the published data."""
  files = {path.stem: path.read_text() for path in (shipped_folder() / "finetune" / "embeddings").glob("*.gin")}
  assert {"nli_ranking", "nli_softmax", "stsb", "simcse", "simcse_nli", "own"} == files.keys()
  for name, examples in (("nli_ranking", 557_850), ("nli_softmax", 942_069), ("stsb", 5_749)):
    (task,) = re.findall(r"^HEAD_TASK = '(\w+)'", files[name], re.MULTILINE)
    assert OFFICIAL_SIZES[tfds_name(registry.find_task(task))]["train"] == examples
    assert f"\nEXAMPLES = {examples}\n" in files[name]
  counts = {"snli_triplets_embedding": "nli_ranking", "snli_sentences_embedding": "simcse"}
  for task, name in counts.items():
    count = sum(1 for _ in text_pipeline.text_examples(registry.find_task(task), "train"))
    assert f"'{task}'" in files[name] and f"EXAMPLES = {count}" in files[name]
