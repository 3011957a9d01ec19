"""GLUE, SuperGLUE and other sentence tasks for encoders: `<task>_classification`, with class numbers instead of words.

Sources are those of the text-to-text tasks. If a question has several candidate answers, each is a
separate example, right (1) or wrong (0), and `group` identifies the question.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import seqio
import tensorflow as tf

from t5like.tasks import metrics
from t5like.tasks.encoders import scores as encoder_scores
from t5like.tasks.encoders.forms import class_labels, encode_segments, encoder_features, score_labels
from t5like.tasks.library import embedded_tasks, glue, sentences, super_glue
from t5like.tasks.preparation.swag import ENDINGS
from t5like.tasks.registry import register_task

# The fields used as first and second text.
GLUE_TEXTS = {
  "cola": ("sentence",),
  "sst2": ("sentence",),
  "mrpc": ("sentence1", "sentence2"),
  "qqp": ("question1", "question2"),
  "stsb": ("sentence1", "sentence2"),
  "mnli": ("premise", "hypothesis"),
  "mnli_matched": ("premise", "hypothesis"),
  "mnli_mismatched": ("premise", "hypothesis"),
  "qnli": ("question", "sentence"),
  "rte": ("sentence1", "sentence2"),
  "wnli": ("sentence1", "sentence2"),
  "ax": ("premise", "hypothesis"),
}
SUPER_GLUE_TEXTS = {
  "boolq": ("passage", "question"),
  "cb": ("premise", "hypothesis"),
  "rte": ("premise", "hypothesis"),
  "axb": ("sentence1", "sentence2"),
  "axg": ("premise", "hypothesis"),
}
_GAP = "@placeholder"


@seqio.map_over_dataset
def segments(
  example: dict[str, tf.Tensor], texts: Sequence[str], label_key: str = "label", label_names: Sequence[str] = ()
) -> dict[str, tf.Tensor]:
  """Selects the fields of one or two texts and the label, which is -1 if withheld.

  `label_names` are the classes in order if the label is a word; any other word is -1. `idx` is optional.
  """
  named = dict(zip(("first", "second"), (example[name] for name in texts), strict=False))
  label = example[label_key]
  if label_names:
    label = tf.argmax(tf.cast(tf.equal(["", *label_names], label), tf.int32)) - 1
  return named | {"label": label} | ({"idx": example["idx"]} if "idx" in example else {})


@seqio.map_over_dataset
def wic(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
  """Asks whether a word means the same in both sentences; the word follows the second one."""
  second = tf.strings.join([example["sentence2"], example["word"]], separator=" ")
  return {"first": example["sentence1"], "second": second, "label": example["label"], "idx": example["idx"]}


def wsc(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Asks whether the pronoun, marked with asterisks as in the text-to-text form, refers to the noun."""

  def to_segments(example):
    text = tf.strings.regex_replace(example["inputs"], "^wsc: ", "")
    return {"first": text, "second": example["targets"], "label": example["label"], "idx": example["idx"]}

  return super_glue.wsc(dataset).map(to_segments, num_parallel_calls=tf.data.AUTOTUNE)


def copa(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Pairs the premise and its question with each of two choices."""

  def to_segments(example):
    is_cause = tf.equal(example["question"], "cause")
    question = tf.where(is_cause, "What was the cause of this?", "What happened as a result?")
    first = tf.strings.join([example["premise"], question], separator=" ")
    return _candidates(example, first, [example["choice1"], example["choice2"]])

  return dataset.map(to_segments, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def swag(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Pairs the first sentence with the start of the second, completed by each of four endings."""

  def to_segments(example):
    completed = [tf.strings.join([example["sent2"], example[name]], separator=" ") for name in ENDINGS]
    return _candidates(example, example["sent1"], completed)

  return dataset.map(to_segments, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def _candidates(example: dict[str, tf.Tensor], first: tf.Tensor, seconds: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
  """Returns the rows of a question, one per candidate; the label is the number of the right one."""
  right = tf.cast(tf.equal(tf.range(len(seconds), dtype=tf.int64), example["label"]), tf.int64)
  return {
    "first": tf.stack([first] * len(seconds)),
    "second": tf.stack(seconds),
    "label": tf.where(example["label"] < 0, tf.constant(-1, tf.int64), right),
    "group": tf.stack([example["idx"]] * len(seconds)),
  }


@seqio.map_over_dataset
def multirc(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
  """Pairs the paragraph, without markup, with a question and one of its answers."""
  paragraph = tf.strings.regex_replace(tf.strings.regex_replace(example["paragraph"], "<br>", " "), "</?b>", "")
  idx = example["idx"]
  return {
    "first": paragraph,
    "second": tf.strings.join([example["question"], example["answer"]], separator=" "),
    "label": example["label"],
    "group": tf.stack([idx["paragraph"], idx["question"]]),
    "idx/answer": idx["answer"],
  }


def record(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Pairs the passage with the query, each entity of the passage in turn filling its gap."""

  def to_segments(example):
    # Highlights are separate sentences; a missing full stop is added.
    passage = tf.strings.regex_replace(example["passage"], "([.?!\"'])\n@highlight\n", r"\1 ")
    passage = tf.strings.regex_replace(passage, "\n@highlight\n", ". ")
    entities, answers = example["entities"], example["answers"]
    parts = tf.strings.split(example["query"], _GAP)
    filled = tf.strings.join([parts[0], entities, tf.strings.reduce_join(parts[1:], separator=_GAP)])
    right = tf.reduce_any(tf.equal(entities[:, None], answers[None, :]), axis=1)
    label = tf.where(tf.size(answers) > 0, tf.cast(right, tf.int64), tf.constant(-1, tf.int64))
    shared = {
      "first": passage,
      "answers": answers,
      "group": tf.stack([example["idx"]["passage"], example["idx"]["query"]]),
    }
    candidates = tf.data.Dataset.from_tensor_slices({"second": filled, "label": label, "candidate": entities})
    return candidates.map(lambda candidate: shared | candidate)

  return dataset.flat_map(to_segments)


def register_labels(
  name: str,
  source: seqio.DataSource,
  to_segments: Callable,
  labels: seqio.Feature,
  postprocessor: Callable,
  metric_fns: Sequence[Callable],
) -> seqio.Task:
  """Registers NAME_classification, of texts and labels."""
  return register_task(
    f"{name}_classification",
    source=source,
    # seqio's offline cache stores texts: truncation depends on the requested length.
    preprocessors=[to_segments, seqio.CacheDatasetPlaceholder(), encode_segments],
    output_features=encoder_features(labels=labels),
    postprocess_fn=postprocessor,
    metric_fns=metric_fns,
  )


def _tfds(name: str, version: str, splits: Sequence[str] = ("train", "validation", "test")) -> seqio.TfdsDataSource:
  return seqio.TfdsDataSource(f"{name}:{version}", splits=splits)


for _config, _texts in GLUE_TEXTS.items():
  _is_score = _config == "stsb"
  register_labels(
    f"glue_{_config}",
    _tfds(f"glue/{_config}", glue.VERSION, glue.SPLITS.get(_config, ("train", "validation", "test"))),
    functools.partial(segments, texts=_texts),
    score_labels() if _is_score else class_labels(glue.LABELS[_config]),
    encoder_scores.regression if _is_score else encoder_scores.class_id,
    glue.METRICS.get(_config, [metrics.accuracy]),
  )

_SUPER_GLUE_STEPS = {
  **{config: functools.partial(segments, texts=texts) for config, texts in SUPER_GLUE_TEXTS.items()},
  "wic": wic,
}
_SUPER_GLUE_METRICS = {
  "cb": [metrics.mean_multiclass_f1(num_classes=3), metrics.accuracy],
  "axb": [],  # the answers of the diagnostic sets are withheld
  "axg": [],
}
for _config, _to_segments in _SUPER_GLUE_STEPS.items():
  register_labels(
    f"super_glue_{_config}",
    _tfds(
      f"super_glue/{_config}",
      super_glue.VERSION,
      ("test",) if _config in ("axb", "axg") else ("train", "validation", "test"),
    ),
    _to_segments,
    class_labels(super_glue.LABELS[_config]),
    encoder_scores.class_id,
    _SUPER_GLUE_METRICS.get(_config, [metrics.accuracy]),
  )
# Rows with a wrong noun are as useful to an encoder as the others: it is trained on all.
register_labels(
  "super_glue_wsc",
  _tfds("super_glue/wsc.fixed", super_glue.VERSION),
  wsc,
  class_labels(2),
  encoder_scores.class_id,
  [metrics.accuracy],
)
register_labels(
  "swag",
  seqio.TfdsDataSource(sentences.SWAG, splits=("train", "validation", "test")),
  swag,
  class_labels(2),
  encoder_scores.candidate,
  [encoder_scores.choice_accuracy],
)
register_labels(
  "super_glue_copa",
  _tfds("super_glue/copa", super_glue.VERSION),
  copa,
  class_labels(2),
  encoder_scores.candidate,
  [encoder_scores.choice_accuracy],
)
register_labels(
  "super_glue_multirc",
  _tfds("super_glue/multirc", super_glue.VERSION),
  multirc,
  class_labels(2),
  encoder_scores.grouped_class_id,
  [metrics.multirc_f1_over_all_answers, metrics.mean_group_metric(metrics.all_match)],
)
register_labels(
  "super_glue_record",
  _tfds("super_glue/record", super_glue.VERSION),
  record,
  class_labels(2),
  encoder_scores.candidate,
  [encoder_scores.choice_squad],
)

for _name, _task in sentences.TASKS.items():
  register_labels(
    _name,
    _task.source,
    functools.partial(segments, texts=_task.texts, label_key=_task.label_key),
    class_labels(_task.labels) if _task.labels else score_labels(),
    encoder_scores.class_id if _task.labels else encoder_scores.regression,
    _task.metric_fns,
  )
register_labels(
  "snli",
  embedded_tasks.SNLI,
  functools.partial(segments, texts=("premise", "hypothesis"), label_names=glue.LABELS["mnli"]),
  class_labels(glue.LABELS["mnli"]),
  encoder_scores.class_id,
  [metrics.accuracy],
)
