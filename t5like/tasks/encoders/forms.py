"""Encoder forms of tasks: BERT's inputs instead of T5's text, built with seqio.

A task in an encoder form has a step that creates its text, then one that creates its tokens and is marked
by `tokenizes`: a token cache stops before it. Features are `inputs` with [CLS] and [SEP], `token_types`
and `labels`; tagging has per-token `targets` and `weights` instead of labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import seqio
import tensorflow as tf

from t5like.errors import UserError
from t5like.objectives import Ragged, SpecialTokens
from t5like.objectives.segments import PairForm
from t5like.tasks.seqio_vocabularies import as_seqio, from_seqio
from t5like.vocabularies import Vocabulary

VOCABULARY = "bert_uncased"
DEFAULT_LENGTH = 512  # BERT's number of positions
_BATCH = 256  # texts tokenized per call

Step = TypeVar("Step", bound=Callable)


def tokenizes(form: str) -> Callable[[Step], Step]:
  """Marks a preprocessor as the one that tokenizes, like seqio's `tokenize`.

  `form` is "segments", "texts", "tagging" or "spans": how a head's batches are built from a token cache.
  """

  def mark(step: Step) -> Step:
    step.makes_tokens, step.form = True, form
    return step

  return mark


class LabelVocabulary(seqio.PassThroughVocabulary):
  """Class numbers with names, which a head keeps."""

  def __init__(self, labels: Sequence[str]):
    super().__init__(len(labels))
    self.labels = tuple(labels)


def encoder_features(vocabulary: str = VOCABULARY, **more: seqio.Feature) -> dict[str, seqio.Feature]:
  """Returns the features `inputs` and `token_types` plus `more`."""
  return {
    "inputs": seqio.Feature(as_seqio(vocabulary), add_eos=False),
    "token_types": seqio.Feature(seqio.PassThroughVocabulary(2), add_eos=False),
    **more,
  }


def class_labels(classes: int | Sequence[str]) -> seqio.Feature:
  """Returns the feature of a class number; `classes` are their names, or how many there are."""
  names = [str(number) for number in range(classes)] if isinstance(classes, int) else classes
  return seqio.Feature(LabelVocabulary(names), add_eos=False, rank=0)


def multi_labels(names: Sequence[str]) -> seqio.Feature:
  """Returns the feature of any number of labels: a 0 or 1 for each name."""
  return seqio.Feature(LabelVocabulary(names), add_eos=False, rank=1)


def score_labels() -> seqio.Feature:
  return seqio.Feature(seqio.PassThroughVocabulary(1), add_eos=False, rank=0, dtype=tf.float32)


def encoder_vocabulary(output_features: Mapping[str, seqio.Feature]) -> Vocabulary:
  vocabulary = from_seqio(output_features["inputs"].vocabulary)
  if vocabulary.cls_id is None or vocabulary.sep_id is None:
    raise UserError(
      "the vocabulary has no [CLS] and [SEP], which an encoder needs", expected="bert_uncased or bert_cased"
    )
  return vocabulary


def row_length(sequence_length: Mapping[str, int] | None, default: int = DEFAULT_LENGTH) -> int:
  return (sequence_length or {}).get("inputs") or default


@tokenizes("segments")
def encode_segments(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int] | None,
  output_features: Mapping[str, seqio.Feature],
) -> tf.data.Dataset:
  """Encodes {"first", optional "second", "label"} as [CLS] first [SEP] second [SEP], truncating the longer text.

  A RoBERTa vocabulary has two separators between the texts. The texts and other fields are passed on.
  """
  vocabulary = encoder_vocabulary(output_features)
  form = PairForm.of(SpecialTokens.of(vocabulary))
  length = row_length(sequence_length)
  has_second = "second" in dataset.element_spec

  def join(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = form.join(
      encoded_texts(vocabulary, first), encoded_texts(vocabulary, second) if has_second else None, length
    )
    kept = np.arange(length)[None, :] < rows.lengths[:, None]
    return rows.tokens[kept], rows.token_types[kept], rows.lengths

  def encode(examples: dict) -> dict:
    texts = [examples["first"], examples["second" if has_second else "first"]]
    tokens, types, lengths = tf.numpy_function(join, texts, [tf.int32, tf.int32, tf.int64])
    examples |= ragged_features({"inputs": tokens, "token_types": types}, lengths)
    label = examples.pop("label", None)
    return examples if label is None else examples | {"labels": tf.cast(label, output_features["labels"].dtype)}

  dataset = dataset.ragged_batch(_BATCH).map(encode, num_parallel_calls=tf.data.AUTOTUNE)
  return dataset.unbatch()


def ragged_features(values: Mapping[str, tf.Tensor], lengths: tf.Tensor) -> dict[str, tf.RaggedTensor]:
  """Splits concatenated values, as returned by a numpy function, into rows."""
  lengths.set_shape([None])
  for tensor in values.values():
    tensor.set_shape([None])
  return {name: tf.RaggedTensor.from_row_lengths(tensor, lengths) for name, tensor in values.items()}


def encoded_texts(vocabulary: Vocabulary, texts: np.ndarray) -> Ragged:
  """Returns the ids of texts, given as bytes."""
  rows = vocabulary.encode_batch([text.decode("utf-8", errors="replace") for text in texts])
  lengths = np.array([len(row) for row in rows], np.int64)
  return Ragged.of(np.array([token for row in rows for token in row], np.int32), lengths)
