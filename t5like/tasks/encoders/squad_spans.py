"""SQuAD for encoders, `squad_spans` and `squad_v2_spans`: labels are the first and last token of the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import seqio
import tensorflow as tf

from t5like.objectives import spans
from t5like.tasks.encoders import scores as encoder_scores
from t5like.tasks.encoders.forms import encoder_features, encoder_vocabulary, ragged_features, row_length, tokenizes
from t5like.tasks.registry import register_task


@seqio.map_over_dataset
def questions(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
  """Selects the question and its passage, with all answers and their start characters."""
  return {
    "id": example["id"],
    "first": example["question"],
    "second": example["context"],
    "answers": example["answers"]["text"],
    "answer_starts": example["answers"]["answer_start"],
  }


@tokenizes("spans")
def encode_windows(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int] | None,
  output_features: Mapping[str, seqio.Feature],
  stride: int = spans.STRIDE,
  longest_question: int = spans.LONGEST_QUESTION,
) -> tf.data.Dataset:
  """Creates one example per window. Labels are those of the first answer; offsets map predictions back to text."""
  vocabulary = encoder_vocabulary(output_features)
  length = row_length(sequence_length, spans.LENGTH)

  def make(question: bytes, passage: bytes, answers: np.ndarray, starts: np.ndarray) -> list[np.ndarray]:
    question, passage = _text(question), _text(passage)
    answer = (int(starts[0]), int(starts[0]) + len(_text(answers[0]))) if len(answers) else None
    found = spans.make_windows(vocabulary, question, passage, answer, length, stride, longest_question=longest_question)
    kept = np.arange(length)[None, :] < found.lengths[:, None]
    per_token = [found.tokens, found.token_types, found.best_context, found.offsets[..., 0], found.offsets[..., 1]]
    return [*(values[kept] for values in per_token), found.labels, found.lengths.astype(np.int64)]

  def encode(example: dict) -> dict:
    given = [example[name] for name in ("first", "second", "answers", "answer_starts")]
    types = [tf.int32] * 6 + [tf.int64]
    tokens, token_types, best_context, begins, ends, labels, lengths = tf.numpy_function(make, given, types)
    labels.set_shape([None, 2])
    named = {"inputs": tokens, "token_types": token_types, "best_context": best_context}
    named |= {"offset_starts": begins, "offset_ends": ends}
    windows = ragged_features(named, lengths) | {"labels": labels}
    count = tf.shape(labels)[0]
    repeated = {name: tf.repeat(example[name][None], count, axis=0) for name in ("id", "first", "second", "answers")}
    return windows | repeated

  return dataset.map(encode, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def _text(value: str | bytes | np.ndarray) -> str:
  value = value.item() if isinstance(value, np.ndarray) else value
  return value.decode("utf-8") if isinstance(value, bytes) else value


def register_spans(name: str, source: seqio.DataSource, metric: Callable) -> seqio.Task:
  """Registers a task whose source has SQuAD's fields."""
  labels = seqio.Feature(seqio.PassThroughVocabulary(spans.LENGTH), add_eos=False, rank=1)
  return register_task(
    name,
    source=source,
    preprocessors=[questions, seqio.CacheDatasetPlaceholder(), encode_windows],
    output_features=encoder_features(labels=labels),
    postprocess_fn=encoder_scores.squad_window,
    metric_fns=[metric],
  )


for _name, _config, _metric in (
  ("squad_spans", "v1.1", encoder_scores.squad_windows),
  ("squad_v2_spans", "v2.0", encoder_scores.squad_v2_windows),
):
  register_spans(_name, seqio.TfdsDataSource(f"squad/{_config}:3.0.0", splits=("train", "validation")), _metric)
