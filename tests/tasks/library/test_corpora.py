"""Corpora in seqio: local files, C4, and a task for every objective."""

import bz2
import gzip
import json

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5like.errors import UserError
from t5like.objectives import CATALOGUE
from t5like.objectives.cutting import document_rows, sentence_rows, separate, stream_rows
from t5like.tasks import registry
from t5like.tasks.caching import text_pipeline
from t5like.tasks.library.corpora import register_corpus
from t5like.tasks.objective_adapter import features
from t5like.tasks.sources import read_documents

TEXTS = [f"Document {n} has a first sentence. It has {n} more words." + " word" * n for n in range(40)]


@pytest.fixture(scope="module", autouse=True)
def shipped():
  registry.import_modules()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  folder = tmp_path_factory.mktemp("corpus")
  for number in range(2):
    lines = [json.dumps({"text": text, "url": "u"}) for text in TEXTS[number::2]]
    (folder / f"part{number}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
  register_corpus("forty", {"train": folder / "*.jsonl.gz"})
  return folder


def rows(task, length=64, targets=None, seed=0):
  objective = CATALOGUE[task.removeprefix("forty_")]
  lengths = {"inputs": length, "targets": targets or objective.lengths(length).targets}
  dataset = seqio.TaskRegistry.get(task).get_dataset(lengths, "train", shuffle=False, seed=seed)
  return list(dataset.as_numpy_iterator())


def test_text_is_read_from_all_files(corpus):
  documents = [e["targets"] for e in text_pipeline.text_examples(registry.find_task("forty"), "train")]
  assert sorted(documents) == sorted(TEXTS)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CATALOGUE)
def test_seqio_reads_every_objective(corpus, name):
  found = rows(f"forty_{name}")
  features = seqio.TaskRegistry.get(f"forty_{name}").output_features
  for row in found[:20]:
    assert set(features) <= set(row)
    if CATALOGUE[name].makes == "masked":
      assert row["inputs"].shape == row["targets"].shape == row["weights"].shape == row["token_types"].shape
      ends = name == "xlnet"  # its rows end with [CLS]
      assert row["weights"].sum() >= 1 and row["inputs"][-1 if ends else 0] == 101
    elif CATALOGUE[name].closed:
      assert row["targets"][-1] == 1  # end-of-sequence


def test_nothing_is_lost_between_documents_and_rows(corpus):
  vocabulary = seqio.TaskRegistry.get("forty").output_features["targets"].vocabulary
  tokens = [
    t
    for d in text_pipeline.text_examples(registry.find_task("forty"), "train")
    for t in vocabulary.encode(d["targets"])
  ]
  rebuilt = []
  for row in rows("forty_span_corruption"):
    spans, span = {}, []
    for token in row["targets"][:-1].tolist():
      if token >= 32_000:
        span = spans[token] = []
      else:
        span.append(token)
    for token in row["inputs"][:-1].tolist():
      rebuilt += spans[token] if token >= 32_000 else [token]
  assert rebuilt == tokens


@pytest.mark.slow
def test_noise_depends_only_on_the_seed(corpus):
  def inputs(seed):
    return [row["inputs"].tolist() for row in rows("forty_span_corruption", seed=seed)]

  assert inputs(0) == inputs(0) != inputs(1)


def test_seqio_packs_and_batches_a_corpus(corpus):
  lengths = {"inputs": 128, "targets": 64}
  converter = seqio.EncDecFeatureConverter(pack=True)
  dataset = seqio.get_dataset(
    "forty_iid_replace_spans", lengths, dataset_split="train", shuffle=False, feature_converter=converter
  )
  batch = next(dataset.batch(2).as_numpy_iterator())
  assert batch["encoder_input_tokens"].shape == (2, 128) and batch["decoder_segment_ids"].max() >= 1


@pytest.mark.slow
def test_full_lm_ends_documents_and_causal_lm_fills_its_rows(corpus):
  found = rows("forty_full_lm", targets=64)
  assert all(len(row["targets"]) == 64 for row in found[:-1])
  assert sum((row["targets"] == 1).sum() for row in found) == len(TEXTS)
  assert [r["targets"].tolist() for r in rows("forty_causal_lm", targets=64)] == [r["targets"].tolist() for r in found]


def test_targets_that_do_not_fit_are_refused(corpus):
  with pytest.raises(UserError, match="has 15 target tokens") as error:
    rows("forty_span_corruption", targets=14)
  assert "'targets': 15" in str(error.value) and "variant 't5'" in str(error.value)


@pytest.mark.parametrize(("documents", "expected"), [("line", 3), ("paragraph", 2), ("file", 1)])
def test_text_files_are_split_into_the_requested_documents(tmp_path, documents, expected):
  (tmp_path / "a.txt.bz2").write_bytes(bz2.compress(b"One line\nand another.\n\nA second paragraph.\n"))
  task = register_corpus(f"split_by_{documents}", {"train": tmp_path / "a.txt.bz2"}, documents=documents)
  assert len(list(text_pipeline.text_examples(task, "train"))) == expected


def texts_of(name, pattern):
  task = register_corpus(name.replace("-", "_"), {"train": pattern})
  return [example["targets"] for example in text_pipeline.text_examples(task, "train")]


@pytest.mark.parametrize("name", ["a.JSONL", "part-00000", "a.ndjson", "part-00000.gz", "data.out"])
def test_json_lines_are_recognized_by_ending_or_content(tmp_path, name):
  content = "\n" + json.dumps({"text": "one"}) + "\n" + json.dumps({"text": "two"})
  (tmp_path / name).write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
  assert texts_of(f"recognized_{name}", tmp_path / name) == ["one", "two"]


def test_text_stays_text(tmp_path):
  (tmp_path / "a.txt").write_text('{"text": "one"}\n')
  (tmp_path / "part-00000").write_text("plain\n{}\n")
  assert texts_of("stays_text", tmp_path / "*") == ['{"text": "one"}', "plain", "{}"]


def test_files_in_folders_of_any_depth_are_found(tmp_path):
  for folder in ("", "a/", "a/b.jsonl/"):
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / f"{folder}x.jsonl").write_text(json.dumps({"text": f"in {folder}"}))
  assert sorted(texts_of("any_depth", f"{tmp_path}/**/*.jsonl")) == ["in ", "in a/", "in a/b.jsonl/"]


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.zst"])
def test_files_of_other_formats_are_refused(tmp_path, name):
  (tmp_path / name).write_bytes(b"PAR1\xfa")
  with pytest.raises(UserError) as error:
    list(read_documents(tmp_path / name, "text", "line"))
  assert f"cannot read .{name.rpartition('.')[2]} files" in error.value.render()


def test_a_folder_is_refused_with_the_pattern_of_its_files(tmp_path):
  with pytest.raises(UserError, match="is a folder") as error:
    texts_of("a_folder", str(tmp_path))
  assert f"{tmp_path}/*" in error.value.render()


def test_half_of_a_surrogate_pair_is_named_with_its_line(tmp_path):
  (tmp_path / "a.jsonl").write_text(json.dumps({"text": "\U0001f600 fine"}) + '\n{"text": "broken \\ud83d here"}\n')
  with pytest.raises(UserError) as error:
    list(read_documents(tmp_path / "a.jsonl", "text", "line"))
  assert "a.jsonl:2" in error.value.render() and "broken \\ud83d here" in error.value.render()


def test_missing_files_are_named(tmp_path):
  task = register_corpus("missing", {"train": tmp_path / "nothing*.jsonl"})
  with pytest.raises(UserError, match="no files found for split 'train'") as error:
    list(text_pipeline.text_examples(task, "train"))
  assert "nothing*.jsonl" in str(error.value)
  with pytest.raises(UserError, match="either files or a source"):
    register_corpus("neither")


def test_any_seqio_source_can_be_a_corpus():
  def dataset(split, shuffle_files, seed=None):
    return tf.data.Dataset.from_tensor_slices({"body": TEXTS})

  task = register_corpus("from_source", source=seqio.FunctionDataSource(dataset, ["train"]), text_key="body")
  assert [e["targets"] for e in text_pipeline.text_examples(task, "train")] == TEXTS


def test_c4_and_wikipedia_are_registered_without_reading_their_data():
  for name in ("c4", "c4_span_corruption", "wikipedia_bert_mlm_nsp"):
    assert name in registry.task_names()


def test_only_pairs_of_sentences_have_labels():
  named = {name: features(objective, seqio.PassThroughVocabulary(100)) for name, objective in CATALOGUE.items()}
  assert {name for name, found in named.items() if "labels" in found} == {"bert_mlm_nsp", "albert"}


def test_rows_are_cut_as_documented():
  # Computed by hand.
  assert [a.tolist() for a in stream_rows(10, 4)] == [[0, 4, 8], [4, 4, 2]]
  assert [a.tolist() for a in document_rows(np.array([5, 2, 4]), 4)] == [[0, 4, 5, 7], [4, 1, 2, 4]]
  # Sentences end after 3, 5, 12, 14; rows of at most 6: 0-5, 5-11 and 11-12 cut from the long one, 11-14.
  assert [a.tolist() for a in sentence_rows(np.array([3, 5, 12, 14]), 14, 6)] == [[0, 5, 11], [5, 6, 3]]
  joined, lengths = separate(np.array([10, 11, 12]), np.array([2, 1]), 1)
  assert joined.tolist() == [10, 11, 1, 12, 1] and lengths.tolist() == [3, 2]
