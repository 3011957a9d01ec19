"""seqio's Evaluator with our postprocessors and metrics, and ours with those of users: both get the same values."""

import functools

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5like import data
from t5like.evaluation.scoring import score_answers, with_ids
from t5like.tasks import metrics, postprocessors, registry
from t5like.tasks.caching import finished_tokens
from t5like.vocabularies import load_vocabulary

PADDED = 16


def evaluate(name, columns, postprocessor, metric_fns, answers):
  """Returns seqio's scores of `answers` for the rows of `columns`."""

  def read(split, shuffle_files, seed=None):
    return tf.data.Dataset.from_tensor_slices(columns)

  features = registry.default_features()
  registry.register_task(
    name,
    source=seqio.FunctionDataSource(read, splits=["validation"]),
    preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim],
    output_features=features,
    postprocess_fn=postprocessor,
    metric_fns=metric_fns,
  )
  evaluator = seqio.Evaluator(
    name,
    feature_converter=seqio.EncDecFeatureConverter(pack=False),
    eval_split="validation",
    sequence_length={"inputs": 32, "targets": PADDED},
  )
  tokens = np.zeros((len(answers), PADDED), np.int32)
  for row, answer in zip(tokens, answers, strict=True):
    ids = features["targets"].vocabulary.encode(answer)
    row[: len(ids)] = ids
  scores, _ = evaluator.evaluate(compute_metrics=True, step=0, predict_fn=lambda dataset: list(enumerate(tokens)))
  return scores.result()[name]


def test_multirc():
  columns = {
    "inputs": ["a", "b", "c", "d"],
    "targets": ["True", "False", "True", "False"],
    "idx/question": [0, 0, 1, 1],
  }
  scores = evaluate(
    "evaluated_multirc",
    columns,
    postprocessors.multirc,
    [metrics.multirc_f1_over_all_answers, metrics.mean_group_metric(metrics.all_match)],
    ["True", "False", "True", "True"],
  )
  # Two of three options predicted True are; one of two questions is correct in all its options.
  assert scores == pytest.approx({"f1": 80.0, "exact_match": 50.0})


def test_record():
  columns = {
    "inputs": ["q", "q", "r"],
    "targets": ["Zürich", "the city", "a bear"],
    "answers": [["Zürich", "the city"], ["Zürich", "the city"], ["a bear", "bear"]],
    "idx/passage": [5, 5, 5],
    "idx/query": [0, 0, 1],
  }
  metric = metrics.deduplicate_metric(metrics.squad)
  scores = evaluate("evaluated_record", columns, postprocessors.record, [metric], ["Zürich", "x", "two bear"])
  assert scores == pytest.approx({"em": 50.0, "f1": (100 + 200 / 3) / 2})


def test_labels_and_class_f1():
  labels = ["entailment", "contradiction", "neutral"]
  columns = {"inputs": ["a", "b", "c", "d"], "targets": [labels[0], labels[1], labels[1], labels[2]]}
  scores = evaluate(
    "evaluated_cb",
    columns,
    functools.partial(postprocessors.string_label_to_class_id, label_classes=labels),
    [metrics.mean_multiclass_f1(num_classes=3), metrics.accuracy],
    [labels[0], labels[0], labels[2], labels[2]],
  )
  assert scores == pytest.approx({"mean_3class_f1": 400 / 9, "accuracy": 50.0})


def test_wsc_reads_the_referent_and_the_label():
  columns = {"inputs": ["a", "b"], "targets": ["the table", "Bob"], "label": [1, 0]}
  scores = evaluate("evaluated_wsc", columns, postprocessors.wsc_simple, [metrics.accuracy], ["table", "Jim"])
  assert scores == {"accuracy": 100.0}


COLUMNS = {
  "inputs": ["a b", "c"],
  "targets": ["Zürich", "b"],
  "answers": [["Zürich", "the city"], ["b", ""]],
  "none": [[], []],
  "number": [3, 4],
  "score": [0.25, 1.5],
  "weights": [[0.5, 2.0], [1.5, 1.0]],
  "table": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]],
  "precise": np.array([0.1, 0.2]),
  "right": [True, False],
}


def test_a_postprocessor_of_a_user_gets_the_examples_of_seqio(t5like, tmp_path):
  seen = []

  def see(text, example=None, is_target=False):
    if is_target:
      seen.append((text, example))
    return text

  answers = ["Zürich", "x"]
  scores = evaluate("seen_by_users", COLUMNS, see, [metrics.accuracy], answers)
  expected, tiny = list(seen), load_vocabulary("tiny")
  t5like("cache", "seen_by_users", "--split=validation", "--vocabulary=tiny", f"--out={tmp_path}")
  cache = data.open_cache(
    data.cache_folder(tmp_path, "seen_by_users", "validation", "tiny", tiny.fingerprint), rebuild_command=""
  )
  seen.clear()
  found = score_answers(dict(enumerate(answers)), with_ids(list(cache.fields()), cache, tiny.eos_id), cache.scoring)
  assert found.scores == scores == {"accuracy": 50.0} and len(seen) == 2
  for (text, example), (their_text, theirs) in zip(seen, expected, strict=True):
    assert text == their_text and example.keys() == theirs.keys()
    for name, value in theirs.items():
      if name in ("inputs", "targets"):  # ids of another vocabulary
        text = COLUMNS[name][len(text) < 2]
        assert isinstance(example[name], np.ndarray) and example[name].tolist() == tiny.encode(text) + [tiny.eos_id]
        continue
      np.testing.assert_array_equal(example[name], value, err_msg=name)
      assert type(example[name]) is type(value) or np.issubdtype(value.dtype, np.integer), name
      if isinstance(value, np.ndarray) and value.size:
        assert example[name].dtype.kind == value.dtype.kind and example[name].shape == value.shape, name


def test_the_t5_librarys_rank_classification_reads_the_ids():
  """As t5.data.postprocessors.rank_classification: the number of targets is that of their ids."""
  example = {"idx": [7, 0], "is_correct": True, "targets": np.array([4, 5, 1]), "targets_pretokenized": "b"}
  target = postprocessors.rank_classification(0.5, example, is_target=True)
  assert target == ((7, 0), True, 1.0, 3)


def _encode(vocabulary, text):
  return {"inputs": vocabulary.encode_tf(text), "targets": vocabulary.encode_tf(text)}


def _own_tokens(name, *steps):
  """Registers a task that tokenizes itself; returns the decoded references and the targets, cut to 4 tokens."""
  texts = ["yes and a long tail of words", "no", "a third text that is long"]
  features = registry.default_features()
  own = features["targets"].vocabulary
  registry.register_task(
    name,
    source=seqio.FunctionDataSource(
      lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices(texts), splits=["train", "validation"]
    ),
    preprocessors=[seqio.map_over_dataset(functools.partial(_encode, own)), *steps],
    output_features=features,
    metric_fns=[metrics.accuracy],
  )
  found = {}
  for split in ("validation", "train"):
    rows = list(finished_tokens.token_examples(registry.find_task(name), split, {"inputs": 8, "targets": 4}, 10**6))
    assert all(len(row["targets"]) <= 4 for row in rows)
    found[split] = [row["targets_pretokenized"] for row in rows]
  return texts, found


def test_references_of_a_task_that_tokenizes_itself_are_whole():
  texts, found = _own_tokens("own_tokens_whole", seqio.preprocessors.append_eos_after_trim)
  assert found["validation"] == texts
  assert texts[0].startswith(found["train"][0]) and found["train"][0] != texts[0]  # trained on, not scored


def _dropped(dataset, sequence_length):
  """Drops examples whose inputs are longer than the row."""
  return dataset.filter(lambda example: tf.size(example["inputs"]) <= sequence_length["inputs"])


def test_references_of_a_task_that_depends_on_lengths_are_its_targets():
  texts, found = _own_tokens("own_tokens_dropped", _dropped)
  assert found["validation"] == found["train"]


def _all_but_the_first(dataset, sequence_length):
  return dataset.skip(1) if sequence_length is not None else dataset


def test_references_are_not_those_of_other_examples():
  """Without lengths this task has an example more, so that rows do not belong together."""
  texts, found = _own_tokens("own_tokens_shifted", _all_but_the_first)
  assert found["validation"] == found["train"] and len(found["train"]) == 2
