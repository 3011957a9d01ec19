"""Encoder forms of tasks in seqio: texts, labels and batches of handwritten rows."""

import json
from pathlib import Path

import numpy as np
import pytest
import seqio
from seqio_rows import task_over

from t5like.errors import UserError
from t5like.tasks.encoders import classification, squad_spans, tagging
from t5like.tasks.encoders import scores as encoder_scores
from t5like.tasks.encoders.batches import EncoderFeatureConverter
from t5like.tasks.encoders.forms import encoder_features, encoder_vocabulary
from t5like.tasks.library import glue, super_glue
from t5like.tasks.seqio_vocabularies import as_seqio
from t5like.vocabularies import load_vocabulary

BERT = load_vocabulary("bert_uncased")
SAMPLE = json.loads((Path(__file__).parents[2] / "data/encoder_forms/squad_sample.json").read_text())


def examples(name, rows, length=64):
  dataset = task_over(name, rows).get_dataset({"inputs": length}, split="validation", shuffle=False)
  return list(dataset.as_numpy_iterator())


def batch(name, rows, length=64):
  dataset = seqio.get_dataset(
    task_over(name, rows), {"inputs": length}, dataset_split="validation", feature_converter=EncoderFeatureConverter(),
    batch_size=1,
  )  # fmt: skip
  return list(dataset.as_numpy_iterator())


def pieces(ids):
  return " ".join(BERT.piece(token) for token in ids)


# Rows as in TFDS, and the encoder's inputs and label.
CLASSIFIED = {
  "glue_cola": ({"sentence": "They drank.", "label": 1}, "[CLS] they drank . [SEP]", 1),
  "glue_sst2": ({"sentence": "dull", "label": 0}, "[CLS] dull [SEP]", 0),
  "glue_mrpc": ({"sentence1": "One.", "sentence2": "Two.", "label": 1}, "[CLS] one . [SEP] two . [SEP]", 1),
  "glue_qqp": ({"question1": "Why?", "question2": "How?", "label": 0}, "[CLS] why ? [SEP] how ? [SEP]", 0),
  "glue_stsb": ({"sentence1": "One.", "sentence2": "Two.", "label": 2.4}, "[CLS] one . [SEP] two . [SEP]", 2.4),
  "glue_mnli": ({"hypothesis": "No.", "premise": "Yes.", "label": 2}, "[CLS] yes . [SEP] no . [SEP]", 2),
  "glue_mnli_matched": ({"hypothesis": "No.", "premise": "Yes.", "label": 1}, "[CLS] yes . [SEP] no . [SEP]", 1),
  "glue_mnli_mismatched": ({"hypothesis": "No.", "premise": "Yes.", "label": 0}, "[CLS] yes . [SEP] no . [SEP]", 0),
  "glue_qnli": ({"question": "Who?", "sentence": "He.", "label": 0}, "[CLS] who ? [SEP] he . [SEP]", 0),
  "glue_rte": ({"sentence1": "One.", "sentence2": "Two.", "label": 0}, "[CLS] one . [SEP] two . [SEP]", 0),
  "glue_wnli": ({"sentence1": "One.", "sentence2": "Two.", "label": 1}, "[CLS] one . [SEP] two . [SEP]", 1),
  "glue_ax": ({"hypothesis": "No.", "premise": "Yes.", "label": -1}, "[CLS] yes . [SEP] no . [SEP]", -1),
  "super_glue_boolq": ({"passage": "Tea.", "question": "is it", "label": 1}, "[CLS] tea . [SEP] is it [SEP]", 1),
  "super_glue_cb": ({"premise": "Tea.", "hypothesis": "hot", "label": 2}, "[CLS] tea . [SEP] hot [SEP]", 2),
  "super_glue_rte": ({"premise": "Tea.", "hypothesis": "hot", "label": 1}, "[CLS] tea . [SEP] hot [SEP]", 1),
  "super_glue_axb": ({"sentence1": "One.", "sentence2": "Two.", "label": 1}, "[CLS] one . [SEP] two . [SEP]", 1),
  "super_glue_axg": ({"premise": "Tea.", "hypothesis": "hot", "label": 0}, "[CLS] tea . [SEP] hot [SEP]", 0),
  "super_glue_wic": (
    {"word": "bank", "sentence1": "A bank.", "sentence2": "The bank!", "start1": 2, "end1": 6, "start2": 4, "end2": 8,
     "label": 0},
    "[CLS] a bank . [SEP] the bank ! bank [SEP]", 0,
  ),
  "super_glue_wsc": (
    {"text": "Tom told Bob that he won.", "span1_text": "Tom", "span2_text": "he", "span1_index": 0, "span2_index": 4,
     "label": 1},
    "[CLS] tom told bob that * he * won . [SEP] tom [SEP]", 1,
  ),
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CLASSIFIED)
def test_texts_and_labels(name):
  row, expected, label = CLASSIFIED[name]
  (example,) = examples(f"{name}_classification", [{**row, "idx": 7}])
  assert pieces(example["inputs"]) == expected
  assert example["labels"] == pytest.approx(label) and example["labels"].dtype == (
    np.float32 if name == "glue_stsb" else np.int32
  )
  second = expected.index("[SEP]") + 6 if expected.count("[SEP]") == 2 else len(expected) + 1
  assert example["token_types"].sum() == len(expected[second:].split())
  assert example["idx"] == 7


def test_every_classification_task_of_both_benchmarks_has_an_encoder_form():
  configs = {f"glue_{name}" for name in (*glue.LABELS, "stsb")}
  configs |= {f"super_glue_{name}" for name in (*super_glue.LABELS, "wsc", "record")}
  assert {f"{name}_classification" for name in configs} <= set(seqio.TaskRegistry.names())


def test_class_numbers_match_the_text_to_text_labels():
  """Numbered as in TFDS; CB's order differs from MNLI's."""
  size = {name: seqio.TaskRegistry.get(f"{name}_classification").output_features["labels"].vocabulary.size
          for name in ("glue_mnli", "super_glue_cb", "glue_cola")}  # fmt: skip
  assert size == {"glue_mnli": 3, "super_glue_cb": 3, "glue_cola": 2}


def test_copa_choices_are_candidates():
  row = {"premise": "It rained.", "question": "effect", "choice1": "Sun.", "choice2": "Mud.", "label": 1, "idx": 3}
  found = examples("super_glue_copa_classification", [row, {**row, "question": "cause", "label": -1, "idx": 4}])
  assert [pieces(e["inputs"]) for e in found] == [
    "[CLS] it rained . what happened as a result ? [SEP] sun . [SEP]",
    "[CLS] it rained . what happened as a result ? [SEP] mud . [SEP]",
    "[CLS] it rained . what was the cause of this ? [SEP] sun . [SEP]",
    "[CLS] it rained . what was the cause of this ? [SEP] mud . [SEP]",
  ]
  assert [int(e["labels"]) for e in found] == [0, 1, -1, -1]
  assert [int(e["group"]) for e in found] == [3, 3, 4, 4]
  assert choice(found[:2], [[0.0, 1.0], [0.0, 2.0]]) == {"accuracy": 100}
  assert choice(found[:2], [[0.0, 2.0], [0.0, 1.0]]) == {"accuracy": 0}


def choice(found, scores, metric=encoder_scores.choice_accuracy):
  targets = [encoder_scores.candidate(None, e, is_target=True) for e in found]
  return metric(targets, [encoder_scores.candidate(s, e) for s, e in zip(scores, found, strict=True)])


def test_multirc_answers_are_grouped_by_question():
  row = {"paragraph": "<b>Sent 1: </b>Tea.<br>Hot.", "question": "Which?", "answer": "Green", "label": 1,
         "idx": {"paragraph": 5, "question": 8, "answer": 13}}  # fmt: skip
  (example,) = examples("super_glue_multirc_classification", [row])
  assert pieces(example["inputs"]) == "[CLS] sent 1 : tea . hot . [SEP] which ? green [SEP]"
  assert encoder_scores.grouped_class_id(None, example, is_target=True) == {"value": 1, "group": (5, 8)}
  assert encoder_scores.grouped_class_id([2.0, 1.0], example) == {"value": 0}


def test_record_entities_fill_the_gap():
  row = {
    "passage": "Ann met Bob\n@highlight\nBob left",
    "query": "@placeholder left \\1 us",
    "entities": ["Ann", "B\\1b"],
    "answers": ["B\\1b"],
    "idx": {"passage": 1, "query": 2},
  }
  found = examples("super_glue_record_classification", [row, {**row, "answers": [], "entities": ["Ann"]}])
  assert [e["second"].decode() for e in found] == ["Ann left \\1 us", "B\\1b left \\1 us", "Ann left \\1 us"]
  assert pieces(found[0]["inputs"]).startswith("[CLS] ann met bob . bob left [SEP] ann left")
  assert [int(e["labels"]) for e in found] == [0, 1, -1]
  scores = [[0.0, 1.0], [0.0, 2.0]]
  assert choice(found[:2], scores, encoder_scores.choice_squad) == {"em": 100, "f1": 100}
  assert choice(found[:2], scores[::-1], encoder_scores.choice_squad)["em"] == 0


def test_several_labels_by_hand():
  assert encoder_scores.label_marks([0.1, -0.1, 0.0]) == [1, 0, 0]  # above a probability of one half
  scores = encoder_scores.multi_label_f1([[1, 0, 0], [1, 1, 0]], [[1, 1, 0], [0, 1, 0]])
  # Each of the first two labels is right once in three marks; the third never occurs.
  assert scores == pytest.approx({"f1_micro": 100 * 4 / 6, "f1_macro": 100 * (2 / 3 + 2 / 3) / 3, "exact_match": 0})


@pytest.mark.slow
def test_the_batch_contract_and_truncation():
  row = {"sentence1": "one two three four five six", "sentence2": "seven eight", "label": 1, "idx": 0}
  (found,) = batch("glue_rte_classification", [row], length=9)
  assert pieces(found["encoder_input_tokens"][0]) == "[CLS] one two three four [SEP] seven eight [SEP]"
  (found,) = batch("glue_rte_classification", [row], length=14)
  assert found["encoder_input_tokens"].dtype == np.int32 and found["labels"].tolist() == [1]
  assert found["encoder_segment_ids"].tolist() == [[1] * 11 + [0] * 3]
  assert found["encoder_positions"].tolist() == [[*range(11), 0, 0, 0]]
  assert found["encoder_token_types"].tolist() == [[0] * 8 + [1] * 3 + [0] * 3]
  assert found["encoder_input_tokens"][0, 11:].tolist() == [0] * 3
  assert set(found) == {
    "encoder_input_tokens", "encoder_segment_ids", "encoder_positions", "encoder_token_types", "labels"
  }  # fmt: skip


def test_regression_batches():
  (found,) = batch("glue_stsb_classification", [{"sentence1": "a", "sentence2": "b", "label": 3.8, "idx": 0}])
  assert found["labels"].dtype == np.float32 and found["labels"].tolist() == pytest.approx([3.8])


def squad_rows(rows):
  for row in rows:
    answers = row["answers"]
    yield {
      "id": row["id"], "question": row["question"], "context": row["context"], "title": "",
      "answers": {"text": [a["text"] for a in answers], "answer_start": [a["answer_start"] for a in answers]},
    }  # fmt: skip


def test_squad_windows_through_seqio_and_back_to_scores():
  rows = list(squad_rows(SAMPLE))
  found = examples("squad_spans", rows, length=128)
  assert len(found) > len(rows) and {e["id"].decode() for e in found} == {row["id"] for row in rows}
  targets = [encoder_scores.squad_window(None, e, is_target=True) for e in found]
  assert targets[0]["answers"] == rows[0]["answers"]["text"]

  def predictions(example):
    logits = np.zeros((128, 2))  # a batch is padded; the window is shorter
    for column, place in enumerate(example["labels"]):
      logits[place, column] = 5 if place else 1
    return encoder_scores.squad_window(logits, example)

  assert encoder_scores.squad_windows(targets, [predictions(e) for e in found]) == {"em": 100, "f1": 100}
  wrong = [encoder_scores.squad_window(np.zeros((128, 2)), e) for e in found]
  assert encoder_scores.squad_windows(targets, wrong)["em"] < 20


@pytest.mark.slow
def test_squad_2_supports_questions_without_an_answer():
  rows = [
    *squad_rows(SAMPLE[2:4]),
    {**next(iter(squad_rows(SAMPLE[4:5]))), "answers": {"text": [], "answer_start": []}},
  ]
  found = examples("squad_v2_spans", rows, length=384)
  assert found[-1]["labels"].tolist() == [0, 0] and all(e["labels"].any() for e in found[:-1])
  targets = [encoder_scores.squad_window(None, e, is_target=True) for e in found]
  logits = [np.eye(384)[e["labels"]].T * 5 for e in found]
  scores = encoder_scores.squad_v2_windows(
    targets, [encoder_scores.squad_window(x, e) for x, e in zip(logits, found, strict=True)]
  )
  assert scores["exact"] == 100 and scores["NoAns_total"] == 1
  # The margins of "no answer" are -10, -10 and 10: all above the second are best left unanswered.
  assert (scores["best_f1"], scores["best_f1_thresh"]) == (100, -10)
  (found, *_) = batch("squad_v2_spans", rows, length=384)
  assert found["labels"].shape == (1, 2)


@pytest.mark.slow
def test_tags_are_at_the_first_token_of_a_word():
  row = {"tokens": ["Zyxwvia", "\u200b", "sings", "."], "ner": [1, 2, 0, 0]}
  (example,) = examples("wnut_17_tagging", [row], length=64)
  words = [BERT.encode(word) for word in row["tokens"]]
  assert len(words[0]) > 1 and words[1] == []  # several tokens, no tokens
  assert example["inputs"].tolist() == [BERT.cls_id, *sum(words, []), BERT.sep_id]
  rest = len(words[0]) - 1
  assert example["targets"].tolist() == [0, 1, *[0] * rest, 0, 0, 0]
  assert example["weights"].tolist() == [0, 1, *[0] * rest, 1, 1, 0]
  assert example["word_numbers"].tolist() == [-1, 0, *[-1] * rest, 2, 3, -1]
  names = ["O", *"ABCDEFGHIJKL"]
  assert encoder_scores.tags(None, example, is_target=True, tag_names=names) == ["A", "B", "O", "O"]
  predicted = np.eye(13)[[5, 1, *[7] * rest, 3, 4, 5]]
  assert encoder_scores.tags(predicted, example, tag_names=names) == ["A", "O", "C", "D"]
  (found,) = batch("wnut_17_tagging", [row], length=16)
  assert found["encoder_loss_weights"].dtype == np.float32 and found["encoder_loss_weights"].sum() == 3
  assert found["encoder_target_tokens"][0].tolist() == example["targets"].tolist() + [0] * (
    16 - len(example["targets"])
  )


def test_long_sentences_are_truncated_and_their_last_words_are_tagged_o():
  row = {"tokens": ["word"] * 20, "ner": [1] * 20}
  (example,) = examples("wnut_17_tagging", [row], length=8)
  assert len(example["inputs"]) == 8 and example["inputs"][-1] == BERT.sep_id
  assert encoder_scores.tags(example["targets"], example, tag_names=["O", "A"]) == ["A"] * 6 + ["O"] * 14


@pytest.mark.slow
def test_custom_conll_files(tmp_path):
  (tmp_path / "train.txt").write_text("Ann B-PER\nin O\nRome B-LOC\n\nOK O\n")
  task = tagging.register_ner_tagging("own_tagging", {"train": tmp_path / "train.txt"})
  found = list(task.get_dataset({"inputs": 16}, split="train", shuffle=False).as_numpy_iterator())
  assert [pieces(e["inputs"]) for e in found] == ["[CLS] ann in rome [SEP]", "[CLS] ok [SEP]"]
  assert found[0]["targets"].tolist() == [0, 2, 0, 1, 0]  # O, B-LOC, B-PER
  assert task.postprocess_fn(found[0]["targets"], example=found[0]) == ["B-PER", "O", "B-LOC"]
  with pytest.raises(UserError, match="tags of 'other'"):
    tagging.register_ner_tagging("other", {"train": tmp_path / "none.txt"})


def test_the_steps_that_tokenize_are_marked():
  for name in ("glue_cola_classification", "squad_spans", "wnut_17_tagging"):
    steps = seqio.TaskRegistry.get(name).preprocessors
    assert [getattr(step, "makes_tokens", False) for step in steps] == [False, False, True]
  assert classification.encode_segments.makes_tokens and squad_spans.encode_windows.makes_tokens


def test_a_vocabulary_without_cls_and_sep_is_refused():
  features = encoder_features()
  features["inputs"] = seqio.Feature(as_seqio("t5"), add_eos=False)
  with pytest.raises(UserError, match="no \\[CLS\\] and \\[SEP\\]"):
    encoder_vocabulary(features)
