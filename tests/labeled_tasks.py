"""Small tasks with labels of every form, whose rules a tiny model learns in seconds. A module of tasks, as a user's."""

import functools

import numpy as np
import seqio
import tensorflow as tf

from t5like.tasks import metrics
from t5like.tasks.encoders import scores
from t5like.tasks.encoders.forms import class_labels, encode_segments, encoder_features, multi_labels, score_labels
from t5like.tasks.encoders.squad_spans import encode_windows
from t5like.tasks.encoders.tagging import register_tagging
from t5like.tasks.registry import register_task

WORDS = ("the", "sea", "was", "calm", "and", "a", "ship", "came", "from", "far")
SPLITS = {"train": 64, "validation": 16}


def _words(number: int, count: int = 6) -> list[str]:
  return [WORDS[(number * 7 + place * place + place) % len(WORDS)] for place in range(count)]


def sentences(number: int) -> dict:
  """The class is the word at a place that varies."""
  words, label = _words(number), number % 2
  words[number // 2 % 5] = ("bad", "good")[label]
  return {"first": " ".join(words), "label": label, "idx": number}


def marked(number: int) -> dict:
  """Two labels, independent of each other: the words `good` and `bad` are in the text."""
  good, bad = number % 2, number // 2 % 2
  words = [*_words(number, 4), *["good"] * good, *["bad"] * bad]
  return {"first": " ".join(words), "label": np.array([good, bad])}


def values(number: int) -> dict:
  return {"first": " ".join([*_words(number), *["good"] * (number % 4)]), "second": "", "label": float(number % 4)}


def candidates(number: int) -> dict:
  """Three candidates in turn, of which the one with the word `good` is right."""
  question, own = divmod(number, 3)
  right = question % 3
  second = ("good" if own == right else "bad") + " " + " ".join(_words(number, 2))
  return {"first": " ".join(_words(question)), "second": second, "label": int(own == right), "group": question}


def tagged(number: int) -> dict:
  words = _words(number)
  words[number % 6] = "Berlin"
  return {"tokens": words, "tags": [1 if word == "Berlin" else 0 for word in words]}


def questions(number: int) -> dict:
  """Passages of more than one window."""
  words = _words(number, 30)
  words[number % 30] = "Berlin"
  passage = " ".join(words)
  return {
    "id": f"q{number}", "first": "which city ?", "second": passage, "answers": ["Berlin"],
    "answer_starts": [passage.index("Berlin")],
  }  # fmt: skip


def _spec(value):
  if isinstance(value, np.ndarray):
    return tf.TensorSpec(value.shape, tf.int64)
  if isinstance(value, list):
    return tf.TensorSpec([None], _spec(value[0]).dtype)
  return tf.TensorSpec([], {str: tf.string, int: tf.int64, float: tf.float32}[type(value)])


def _source(example, rows: int = 1) -> seqio.FunctionDataSource:
  def dataset(split, shuffle_files=False):
    del shuffle_files
    count = SPLITS[split] * rows
    signature = {name: _spec(value) for name, value in example(0).items()}
    return tf.data.Dataset.from_generator(lambda: map(example, range(count)), output_signature=signature)

  return seqio.FunctionDataSource(dataset, splits=list(SPLITS))


def _register(name, source, labels, postprocessor, metric_fns, encode=encode_segments) -> None:
  register_task(
    name, source=source, preprocessors=[encode], output_features=encoder_features(labels=labels),
    postprocess_fn=postprocessor, metric_fns=metric_fns,
  )  # fmt: skip


_register(
  "toy_classification", _source(sentences), class_labels(("negative", "positive")), scores.class_id, [metrics.accuracy]
)
_register(
  "toy_marks_classification",
  _source(marked),
  multi_labels(("good", "bad")),
  scores.label_marks,
  [scores.multi_label_f1],
)
_register("toy_scores_classification", _source(values), score_labels(), scores.regression, [metrics.pearson_corrcoef])
_register(
  "toy_choices_classification", _source(candidates, 3), class_labels(2), scores.candidate, [scores.choice_accuracy]
)
register_tagging("toy_tagging", _source(tagged), ("O", "B-location"), tags_key="tags")
_register(
  "toy_spans",
  _source(questions),
  seqio.Feature(seqio.PassThroughVocabulary(64), add_eos=False, rank=1),
  scores.squad_window,
  [scores.squad_windows],
  functools.partial(encode_windows, stride=8),
)
