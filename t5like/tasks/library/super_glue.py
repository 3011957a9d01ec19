"""SuperGLUE (Wang et al. 2019) and definite pronoun resolution in T5's text-to-text form, from TFDS."""

from __future__ import annotations

import functools
from typing import Any

import seqio
import tensorflow as tf

from t5like.tasks import metrics, postprocessors, preprocessors
from t5like.tasks.registry import default_features, register_task

VERSION = "1.0.2"

_TRUTH = ("False", "True")
_ENTAILMENT = ("entailment", "not_entailment")
# Label words in the order of class numbers. ReCoRD and WSC are answered with words of the text.
LABELS = {
  "boolq": _TRUTH,
  "cb": ("entailment", "contradiction", "neutral"),
  "copa": ("choice1", "choice2"),
  "multirc": _TRUTH,
  "rte": _ENTAILMENT,
  "wic": _TRUTH,
  "axb": _ENTAILMENT,
  "axg": _ENTAILMENT,
}


def multirc(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Formats one answer option of a question, true or false, and removes the markup of the paragraph."""
  dataset = preprocessors.labeled_text(
    dataset, "multirc", keys=("question", "answer", "paragraph"), label_names=LABELS["multirc"], kept=("idx",)
  )

  def without_markup(example):
    text = tf.strings.regex_replace(example["inputs"], "<br>", " ")
    return {**example, "inputs": tf.strings.regex_replace(text, "</?b>", "")}

  return dataset.map(without_markup, num_parallel_calls=tf.data.AUTOTUNE)


def axb(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Formats the broad-coverage diagnostic set as RTE, renaming its sentences."""
  renamed = {"premise": "sentence1", "hypothesis": "sentence2", "label": "label", "idx": "idx"}
  dataset = seqio.preprocessors.rekey(dataset, renamed)
  return preprocessors.labeled_text(dataset, "rte", label_names=LABELS["axb"], kept=("idx",))


def record(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Creates one example per correct answer and keeps all answers; withheld answers become one `<unk>`.

  Its metric counts each question once, regardless of the number of its examples.
  """

  def to_text(example):
    # Highlights are separate sentences; a missing full stop is added.
    passage = tf.strings.regex_replace(example["passage"], "([.?!\"'])\n@highlight\n", r"\1 ")
    passage = tf.strings.regex_replace(passage, "\n@highlight\n", ". ")
    entities = tf.strings.reduce_join(example["entities"], separator=", ")
    inputs = ["record query:", example["query"], "entities:", entities, "passage:", passage]
    return {
      "inputs": tf.strings.join(inputs, separator=" "),
      "answers": example["answers"],
      "idx/passage": example["idx"]["passage"],
      "idx/query": example["idx"]["query"],
    }

  def one_example_per_answer(example):
    answers = example["answers"]
    targets = tf.cond(tf.size(answers) > 0, lambda: answers, lambda: tf.constant([preprocessors.UNLABELED]))
    return tf.data.Dataset.from_tensor_slices(targets).map(lambda target: {**example, "targets": target})

  return dataset.map(to_text, num_parallel_calls=tf.data.AUTOTUNE).flat_map(one_example_per_answer)


@seqio.map_over_dataset
def wsc(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
  """Formats `wsc: ` and the text with the pronoun in asterisks; the target is the noun it may refer to.

  `span2_index` is the number of words before the pronoun. In two texts it is off, or punctuation is attached
  to the pronoun: the nearest matching word is used and its punctuation is split off, which reproduces the
  t5 library's output for both.
  """
  text, pronoun = example["text"], example["span2_text"]
  words = tf.strings.split(text, sep=" ")
  is_pronoun = tf.equal(tf.strings.regex_replace(words, "[[:punct:]]+$", ""), pronoun) | tf.equal(words, pronoun)
  found = tf.debugging.Assert(tf.reduce_any(is_pronoun), ["no word of the text is the pronoun", text, pronoun])
  with tf.control_dependencies([found]):
    distance = tf.abs(tf.range(tf.size(words)) - example["span2_index"])
    place = tf.argmin(tf.where(is_pronoun, distance, tf.int32.max), output_type=tf.int32)
  punctuation = tf.strings.substr(words[place], tf.strings.length(pronoun), tf.strings.length(words[place]))
  trailing = tf.boolean_mask([punctuation], [punctuation != ""])
  before = tf.concat([words[:place], [tf.strings.join(["*", pronoun, "*"])], trailing], 0)
  # A pronoun at the end is followed by a space, as in the t5 library.
  marked = tf.strings.join([_joined(before), _joined(words[place + 1 :])], separator=" ")
  marked = tf.where(punctuation != "", tf.strings.strip(marked), marked)
  return {
    "inputs": tf.strings.join(["wsc:", marked], separator=" "),
    "targets": example["span1_text"],
    "label": example["label"],
    "idx": example["idx"],
  }


def _joined(words: tf.Tensor) -> tf.Tensor:
  return tf.strings.reduce_join(words, separator=" ")


class RightReferents(seqio.TfdsDataSource):
  """Trains on the rows whose label is 1, evaluates on all.

  A model can only learn to name the noun that a pronoun refers to; it rejects a wrong noun by naming
  another one.
  """

  def get_dataset(self, split: str | None = None, *args: Any, **kwargs: Any) -> tf.data.Dataset:
    dataset = super().get_dataset(split, *args, **kwargs)
    return dataset.filter(lambda example: tf.equal(example["label"], 1)) if split in (None, "train") else dataset

  def num_input_examples(self, split: str) -> int | None:
    if split != "train":
      return super().num_input_examples(split)
    return sum(1 for _ in self.get_dataset(split, shuffle=False))


@seqio.map_over_dataset
def definite_pronouns(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
  """Formats an example like WSC; the first occurrence of the pronoun is to be resolved (Rahman and Ng 2012)."""
  pattern = tf.strings.join([" (", example["pronoun"], r")( |\.|,)"])
  marked = tf.strings.regex_replace(example["sentence"], pattern, r" *\1*\2", replace_global=False)
  return {
    "inputs": tf.strings.join(["wsc:", marked], separator=" "),
    "targets": example["candidates"][example["label"]],
  }


def _labeled(name: str, config: str, keys: tuple[str, ...] | None = None):
  return functools.partial(preprocessors.labeled_text, name=name, keys=keys, label_names=LABELS[config], kept=("idx",))


def _class_id(config: str):
  return functools.partial(postprocessors.string_label_to_class_id, label_classes=LABELS[config])


def _register(config: str, to_text, postprocessor, metric_fns, splits=("train", "validation", "test")) -> None:
  register_task(
    f"super_glue_{config}",
    source=seqio.TfdsDataSource(f"super_glue/{config}:{VERSION}", splits=splits),
    preprocessors=preprocessors.text_to_text(to_text),
    output_features=default_features(),
    postprocess_fn=postprocessor,
    metric_fns=metric_fns,
  )


for _config in ("boolq", "copa", "rte"):
  _register(_config, _labeled(_config, _config), _class_id(_config), [metrics.accuracy])
_register("cb", _labeled("cb", "cb"), _class_id("cb"), [metrics.mean_multiclass_f1(num_classes=3), metrics.accuracy])
_register("wic", _labeled("wic", "wic", ("sentence1", "sentence2", "word")), _class_id("wic"), [metrics.accuracy])
_register(
  "multirc",
  multirc,
  postprocessors.multirc,
  [metrics.multirc_f1_over_all_answers, metrics.mean_group_metric(metrics.all_match)],
)
_register("record", record, postprocessors.record, [metrics.deduplicate_metric(metrics.squad)])
# The answers of the diagnostic sets are withheld.
_register("axb", axb, _class_id("axb"), [], splits=("test",))
_register("axg", _labeled("rte", "axg"), _class_id("axg"), [], splits=("test",))

register_task(
  "super_glue_wsc",
  # wsc.fixed is WSC with its spans corrected.
  source=RightReferents(f"super_glue/wsc.fixed:{VERSION}", splits=("train", "validation", "test")),
  preprocessors=preprocessors.text_to_text(wsc),
  output_features=default_features(),
  postprocess_fn=postprocessors.wsc_simple,
  metric_fns=[metrics.accuracy],
)
register_task(
  "dpr",
  source=seqio.TfdsDataSource("definite_pronoun_resolution:1.1.0", splits=("train", "test")),
  preprocessors=preprocessors.text_to_text(definite_pronouns),
  output_features=default_features(),
  metric_fns=[metrics.accuracy],
)
