"""Rows for heads: the same bytes as the seqio form of the same task, from a token cache without TensorFlow."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import seqio
from seqio_rows import task_over

from t5like.data import Batches, HostShare, LabelForm, PhaseRows, labeled_rows, open_cache
from t5like.data.labeled_rows import blank_labels, choices_of
from t5like.errors import UserError
from t5like.experiments.cache_building import CacheSettings, build_token_cache
from t5like.experiments.phases import length_buckets
from t5like.objectives import SpecialTokens
from t5like.objectives.spans import make_windows
from t5like.tasks.encoders import classification, squad_spans, tagging  # noqa: F401
from t5like.tasks.encoders.batches import EncoderFeatureConverter
from t5like.tasks.seqio_vocabularies import as_seqio, with_vocabulary
from t5like.vocabularies import load_vocabulary

SAMPLE = json.loads((Path(__file__).parent / "encoder_forms/squad_sample.json").read_text())
SENTENCES = ["a dull film", "bright , funny and kind " * 4, "", "moving", "no"]


def sentence_pairs(label):
  rows = [
    {"sentence1": a, "sentence2": b, "idx": n} for n, (a, b) in enumerate(zip(SENTENCES, SENTENCES[::-1], strict=True))
  ]
  return [row | {"label": label(n)} for n, row in enumerate(rows)]


def questions():
  """Real passages; one question has no answer."""
  rows = []
  for row in SAMPLE:
    answers = {key: [answer[key] for answer in row["answers"]] for key in ("text", "answer_start")}
    rows.append({"id": row["id"], "question": row["question"], "context": row["context"], "answers": answers})
  return [*rows[:6], rows[6] | {"answers": {"text": [], "answer_start": []}}, rows[7]]


ROWS = {
  "glue_sst2_classification": [{"sentence": s, "label": n % 2, "idx": n} for n, s in enumerate(SENTENCES)],
  "glue_rte_classification": sentence_pairs(lambda n: n % 2),
  "glue_stsb_classification": sentence_pairs(lambda n: n / 3),
  "wnut_17_tagging": [
    {"tokens": ["Angela", "Merkel", "lives", "in", "Hohenschönhausen", "\x7f", "."], "ner": [9, 10, 0, 0, 7, 0, 0]},
    {"tokens": ["unbelievably", "long"] * 12, "ner": [0, 3] * 12},
    {"tokens": ["x"], "ner": [12]},
  ],
  "squad_v2_spans": questions(),
}


@pytest.fixture
def cached(tmp_path, monkeypatch):
  """Builds the token cache of a registered task over given rows."""

  def build(name, vocabulary, rows=None):
    task = task_over(name, rows or ROWS[name], "train")
    monkeypatch.setitem(seqio.TaskRegistry._REGISTRY, name, task)
    folder = build_token_cache(CacheSettings(name, vocabulary, root=str(tmp_path), workers=0), lambda line: None)
    return task, open_cache(folder, "")

  return build


def rows_of(cache, vocabulary, length, **changes):
  form = dataclasses.replace(LabelForm.of(cache), **changes)
  return labeled_rows(cache, form, length, SpecialTokens.of(load_vocabulary(vocabulary)), seed=1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("vocabulary", ["bert_uncased", "roberta"])
@pytest.mark.parametrize(("name", "length"), [(name, n) for name in ROWS for n in (20, 96)])
def test_batches_equal_those_of_seqio(name, length, vocabulary, cached):
  if name == "squad_v2_spans" and length == 20:
    length = 150
  task, cache = cached(name, vocabulary)
  task = task.replace(output_features=with_vocabulary(task.output_features, as_seqio(vocabulary)))
  source = rows_of(cache, vocabulary, length)
  expected = seqio.get_dataset(
    task, {"inputs": length}, dataset_split="train", feature_converter=EncoderFeatureConverter(), shuffle=False,
  )  # fmt: skip
  expected = list(expected.as_numpy_iterator())
  assert source.rows_per_epoch == len(expected) >= len(ROWS[name])
  found = source.read(np.arange(len(expected)))
  assert set(found) == set(expected[0])
  blank = blank_labels(source.form, length, 3)
  for feature, values in found.items():
    wanted = np.stack([row[feature] for row in expected])
    assert values.dtype == wanted.dtype == blank[feature].dtype and values.shape[1:] == blank[feature].shape[1:]
    np.testing.assert_array_equal(values, wanted, err_msg=feature)
  if name == "squad_v2_spans":
    assert np.any(found["labels"]) and len(expected) > len(ROWS[name]) and source.sizes is None
  else:
    np.testing.assert_array_equal(source.sizes, found["encoder_segment_ids"].sum(axis=1))
  # Any row of any epoch is a function of the seed.
  numbers = np.arange(len(expected)) + 3 * len(expected)
  epoch = source.rows(numbers)["encoder_input_tokens"]
  np.testing.assert_array_equal(epoch[::-1], source.rows(numbers[::-1])["encoder_input_tokens"])
  assert sorted(map(bytes, epoch)) == sorted(map(bytes, found["encoder_input_tokens"]))


def test_robertas_pairs_have_two_separators_and_no_types(cached):
  _, cache = cached("glue_rte_classification", "roberta")
  vocabulary = load_vocabulary("roberta")
  row = rows_of(cache, "roberta", 24).read(np.array([0]))
  cls, sep = vocabulary.cls_id, vocabulary.sep_id
  pieces = [cls, *vocabulary.encode("a dull film"), sep, sep, *vocabulary.encode("no"), sep]
  np.testing.assert_array_equal(row["encoder_input_tokens"][0, : len(pieces)], pieces)
  assert not row["encoder_token_types"].any() and row["encoder_segment_ids"].sum() == len(pieces)


def test_texts_of_t5_and_gpt_end_with_their_own_end(cached):
  for name in ("t5", "gpt2"):
    vocabulary = load_vocabulary(name)
    _, cache = cached("glue_rte_classification", name)
    row = rows_of(cache, name, 24).read(np.array([0]))
    pieces = [*vocabulary.encode("a dull film"), vocabulary.eos_id, *vocabulary.encode("no"), vocabulary.eos_id]
    np.testing.assert_array_equal(row["encoder_input_tokens"][0, : len(pieces)], pieces)
    assert row["encoder_segment_ids"].sum() == len(pieces)


def test_choices_are_the_candidates_of_a_question(cached):
  question = {"premise": "It rained.", "question": "effect", "choice1": "Sun.", "choice2": "Mud.", "label": 1}
  rows = [question | {"idx": 3}, question | {"label": 0, "idx": 4, "premise": "It was dry."}]
  _, cache = cached("super_glue_copa_classification", "bert_uncased", rows)
  form = LabelForm.of(cache)
  assert form.grouped and choices_of(cache) == 2
  batch = rows_of(cache, "bert_uncased", 32, name="choices", choices=2).read(np.array([1, 0]))
  vocabulary = load_vocabulary("bert_uncased")
  assert batch["encoder_input_tokens"].shape == (2, 2, 32) and batch["labels"].tolist() == [0, 1]
  sizes = rows_of(cache, "bert_uncased", 32, name="choices", choices=2).sizes
  np.testing.assert_array_equal(sizes[[1, 0]], batch["encoder_segment_ids"].sum(axis=2).max(axis=1))
  assert vocabulary.decode(batch["encoder_input_tokens"][0, 1, 1:]).startswith("it was dry.")
  assert vocabulary.encode("mud.")[0] in batch["encoder_input_tokens"][1, 1]
  rows_of(cache, "bert_uncased", 32, name="choices", choices=2).check()
  with pytest.raises(UserError, match="does not have 4 choices"):
    rows_of(cache, "bert_uncased", 32, name="choices", choices=4).check()


def test_buckets_hold_the_longest_row_of_all_hosts(cached):
  _, cache = cached("glue_sst2_classification", "bert_uncased")
  source = rows_of(cache, "bert_uncased", 96)  # rows of 2, 3, 3, 5 and 22 tokens
  assert length_buckets([3, 64, 4, 128], source) == (3, 4, 64) and length_buckets([], source) == ()
  phase = PhaseRows(source, 2, buckets=length_buckets([3, 8], source))
  assert phase.buckets == (3, 8, 96)
  full, both, second = Batches([PhaseRows(source, 2)]), Batches([phase]), Batches([phase], HostShare((1,), 2))
  seen = set()
  for step in range(10):
    batch, tokens = both[step], full[step]["encoder_input_tokens"]
    length = batch["encoder_positions"].shape[1]
    seen.add(length)
    assert length == min(n for n in phase.buckets if not tokens[:, n:].any())
    np.testing.assert_array_equal(batch["encoder_input_tokens"], tokens[:, :length])
    np.testing.assert_array_equal(second[step]["encoder_input_tokens"], tokens[1:, :length])
  assert seen == {3, 8, 96}


def test_label_names_come_from_the_task(cached):
  assert LabelForm.of(cached("glue_rte_classification", "bert_uncased")[1]).labels == ("entailment", "not_entailment")
  assert LabelForm.of(cached("wnut_17_tagging", "bert_uncased")[1]).labels[0] == "O"
  assert LabelForm.of(cached("glue_stsb_classification", "bert_uncased")[1]).name == "regression"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  ("name", "row", "message"),
  [
    (
      "glue_sst2_classification",
      {"sentence": "x", "label": -1, "idx": 9},
      r"outside the head's classes: -1 \(withheld\)",
    ),
    ("glue_sst2_classification", {"sentence": "x", "label": 2, "idx": 9}, "outside the head's classes: 2"),
    ("wnut_17_tagging", {"tokens": ["x"], "ner": [99]}, "outside the head's classes: 99"),
  ],
)
def test_labels_outside_the_classes_are_refused(name, row, message, cached):
  _, cache = cached(name, "bert_uncased", [*ROWS[name], row])
  with pytest.raises(UserError, match=message):
    rows_of(cache, "bert_uncased", 32).check()


def test_a_window_that_is_too_short_is_refused(cached):
  _, cache = cached("squad_v2_spans", "bert_uncased")
  with pytest.raises(UserError, match="a window of 12 tokens is too short"):
    rows_of(cache, "bert_uncased", 12).rows_per_epoch  # noqa: B018


def test_every_window_of_every_question_is_a_row(cached):
  _, cache = cached("squad_v2_spans", "bert_uncased")
  vocabulary = load_vocabulary("bert_uncased")
  first = cache.example(0)
  for length in (96, 3 + len(first["first"]) + len(first["second"])):  # the second is just enough for one window
    source = rows_of(cache, "bert_uncased", length)
    rows = ROWS["squad_v2_spans"]
    windows = [make_windows(vocabulary, row["question"], row["context"], length=length) for row in rows]
    expected = np.concatenate([each.tokens for each in windows])
    assert source.rows_per_epoch == len(expected) > len(windows)
    np.testing.assert_array_equal(source.read(np.arange(len(expected)))["encoder_input_tokens"], expected)


def test_texts_to_embed_are_rows_of_their_own(cached):
  """[CLS] text [SEP] for each text, in the order of the row, with the label of the pair."""
  _, cache = cached("glue_stsb_classification", "bert_uncased")
  special = SpecialTokens.of(load_vocabulary("bert_uncased"))
  form = LabelForm("embedding", texts=2, target="regression")
  rows = labeled_rows(cache, form, 8, special, seed=0)
  rows.check()
  batch = rows.read(np.array([1, 0]))
  assert batch["encoder_input_tokens"].shape == (2, 2, 8) and batch["labels"].tolist() == pytest.approx([1 / 3, 0])
  example = cache.example(1)
  for number, name in enumerate(("first", "second")):
    expected = [special.cls, *example[name][:6], special.sep]
    assert batch["encoder_input_tokens"][0, number, : len(expected)].tolist() == expected
    assert batch["encoder_segment_ids"][0, number].sum() == len(expected)
  blank = blank_labels(form, 8, 2)
  assert {name: (x.shape, x.dtype) for name, x in blank.items()} == {n: (x.shape, x.dtype) for n, x in batch.items()}
  # Special tokens of a folder: none after a text, so that its last state is that of a word.
  bare = labeled_rows(cache, dataclasses.replace(form, around=(None, None)), 4, special, seed=0).read(np.array([1, 0]))
  for row, number in enumerate((1, 0)):  # longer than a row, and shorter
    pieces = cache.example(number)["first"][:4].tolist()
    padding = [0] * (4 - len(pieces))
    assert bare["encoder_input_tokens"][row, 0].tolist() == pieces + padding
    assert bare["encoder_segment_ids"][row, 0].tolist() == [1] * len(pieces) + padding


def test_one_text_twice_for_two_dropout_masks(cached):
  _, cache = cached("glue_sst2_classification", "bert_uncased")
  special = SpecialTokens.of(load_vocabulary("bert_uncased"))
  twice = labeled_rows(cache, LabelForm("embedding", texts=2, twice=True), 8, special, seed=0)
  twice.check()
  tokens = twice.read(np.arange(3))["encoder_input_tokens"]
  np.testing.assert_array_equal(tokens[:, 0], tokens[:, 1])
  with pytest.raises(UserError, match="has 1 texts per row, and the head embeds 2"):
    labeled_rows(cache, LabelForm("embedding", texts=2), 8, special, seed=0).check()
