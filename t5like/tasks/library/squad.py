"""SQuAD 1.1 (Rajpurkar et al. 2016) and 2.0 (2018) in T5's text-to-text form, from TFDS."""

from __future__ import annotations

import functools

import seqio
import tensorflow as tf

from t5like.tasks import metrics, postprocessors, preprocessors
from t5like.tasks.registry import default_features, register_task

# The target of `squad_v2` for unanswerable questions.
UNANSWERABLE = "unanswerable"


def pad_punctuation(text: tf.Tensor) -> tf.Tensor:
  """Adds spaces around ASCII punctuation and collapses whitespace."""
  return _single_spaces(tf.strings.regex_replace(text, "([[:punct:]])", r" \1 "))


def _single_spaces(text: tf.Tensor) -> tf.Tensor:
  return tf.strings.regex_replace(text, r"\s+", " ")


@seqio.map_over_dataset
def squad(
  example: dict[str, tf.Tensor], include_context: bool = True, no_answer: str = preprocessors.UNLABELED
) -> dict[str, tf.Tensor]:
  """Formats `question: Q context: C`, or only the question; the first answer is the target, all are kept.

  `no_answer` is the target of a question without answers.
  """
  answers = pad_punctuation(example["answers"]["text"])  # [answers]
  question, context = pad_punctuation(example["question"]), pad_punctuation(example["context"])
  if include_context:
    inputs = ["question:", question, "context:", context]
  else:
    inputs = ["squad trivia question:", question]
  return {
    "inputs": _single_spaces(tf.strings.join(inputs, separator=" ")),
    "targets": tf.concat([answers, [no_answer]], 0)[0],
    "id": example["id"],
    "context": context,
    "question": question,
    "answers": answers,
  }


def squad_span(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Like `squad`, but the target is the word span of the first answer in the context, `start: 3 end: 6`.

  Examples whose answer is not found are dropped.
  """

  def to_span(example):
    return {**example, "targets": _span(example["context"], example["targets"])}

  dataset = squad(dataset).map(to_span, num_parallel_calls=tf.data.AUTOTUNE)
  return dataset.filter(lambda example: tf.not_equal(example["targets"], ""))


def _span(context: tf.Tensor, answer: tf.Tensor) -> tf.Tensor:
  """Returns the first span of the answer's words in the context, or ''.

  As in the t5 library, the last possible position is not searched, and the text after each character that
  is not an ASCII letter, digit or underscore counts as a word, even if it is empty.
  """
  haystack, needle = _words(context), _words(answer)  # [words], [answer words]
  length = tf.size(needle)
  starts = tf.range(tf.maximum(tf.size(haystack) - length, 0))  # [places]
  windows = tf.gather(haystack, starts[:, None] + tf.range(length)[None, :])  # [places, answer words]
  found = tf.boolean_mask(starts, tf.reduce_all(tf.equal(windows, needle), axis=1))

  def describe():
    return tf.strings.join(["start: ", tf.strings.as_string(found[0]), " end: ", _last_word(found[0], length)])

  return tf.cond(tf.size(found) > 0, describe, lambda: "")


def _last_word(start: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
  return tf.strings.as_string(start + length - 1)


def _words(text: tf.Tensor) -> tf.Tensor:
  return tf.strings.split(tf.strings.regex_replace(text, r"\W", " "), sep=" ")


def _register(name: str, config: str, to_text, postprocessor, metric) -> None:
  register_task(
    name,
    source=seqio.TfdsDataSource(f"squad/{config}:3.0.0", splits=("train", "validation")),
    preprocessors=preprocessors.text_to_text(to_text),
    output_features=default_features(),
    postprocess_fn=postprocessor,
    metric_fns=[metric],
  )


_register("squad", "v1.1", squad, postprocessors.qa, metrics.squad)
_register(
  "squad_context_free", "v1.1", functools.partial(squad, include_context=False), postprocessors.qa, metrics.squad
)
_register("squad_span", "v1.1", squad_span, postprocessors.span_qa, metrics.span_squad)
_register(
  "squad_v2",
  "v2.0",
  functools.partial(squad, no_answer=UNANSWERABLE),
  functools.partial(postprocessors.qa_or_none, no_answer=UNANSWERABLE),
  metrics.squad2,
)
