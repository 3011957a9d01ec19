"""Our vocabularies as seqio's: its own classes where their ids are equal, a thin one over ours elsewhere."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np
import seqio
import tensorflow as tf

from t5like.errors import UserError
from t5like.vocabularies import ByteVocabulary, SentencePieceVocabulary, Vocabulary, load_vocabulary


def as_seqio(vocabulary: Vocabulary | str) -> seqio.Vocabulary:
  """seqio's SentencePiece and byte vocabularies run as TensorFlow operations; the others call back into Python."""
  if isinstance(vocabulary, str):
    return _by_name(vocabulary)
  if isinstance(vocabulary, SentencePieceVocabulary):
    return seqio.SentencePieceVocabulary(str(vocabulary.path), extra_ids=vocabulary.extra_ids)
  if isinstance(vocabulary, ByteVocabulary):
    return seqio.ByteVocabulary(vocabulary.extra_ids)
  return WrappedVocabulary(vocabulary)


@functools.cache
def _by_name(name: str) -> seqio.Vocabulary:
  return as_seqio(load_vocabulary(name))


class WrappedVocabulary(seqio.Vocabulary):
  """A vocabulary of ours with seqio's methods; two are equal if all their ids are."""

  def __init__(self, vocabulary: Vocabulary):
    super().__init__(extra_ids=0)
    self.wrapped = vocabulary

  @property
  def fingerprint(self) -> str:
    return self.wrapped.fingerprint

  @property
  def bos_id(self) -> int | None:
    return self.wrapped.bos_id

  @property
  def eos_id(self) -> int | None:
    return self.wrapped.eos_id

  @property
  def unk_id(self) -> int | None:
    return self.wrapped.unk_id

  @property
  def pad_id(self) -> int:
    """0, as seqio pads with it whatever the vocabulary says."""
    return self.wrapped.pad_id or 0

  @property
  def _base_vocab_size(self) -> int:
    return self.wrapped.vocab_size

  def _encode(self, s: str | bytes | np.ndarray) -> Sequence[int]:
    return self.wrapped.encode(_text(s))

  def _decode(self, ids: Sequence[int]) -> str:
    return self.wrapped.decode(ids)

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
    """A scalar to ids [length]; strings of any other shape to ragged ids, encoded together."""
    if s.shape.rank == 0:
      ids = tf.numpy_function(lambda text: np.array(self._encode(text), np.int32), [s], tf.int32, stateful=False)
      ids.set_shape([None])
      return ids

    def encode_all(texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
      rows = self.wrapped.encode_batch([_text(text) for text in texts])
      return np.array([token for row in rows for token in row], np.int32), np.array(list(map(len, rows)), np.int64)

    values, lengths = tf.numpy_function(encode_all, [tf.reshape(s, [-1])], [tf.int32, tf.int64], stateful=False)
    values.set_shape([None])
    lengths.set_shape([None])
    ids = tf.RaggedTensor.from_row_lengths(values, lengths)
    for axis in range(s.shape.rank - 1, 0, -1):
      ids = tf.RaggedTensor.from_uniform_row_length(ids, tf.shape(s, tf.int64)[axis])
    return ids

  def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
    """Ids [..., length] to strings [...]."""

    def decode_all(rows: np.ndarray) -> np.ndarray:
      texts = [self.wrapped.decode(row).encode() for row in rows.reshape(-1, rows.shape[-1])]
      return np.array(texts, object).reshape(rows.shape[:-1])

    texts = tf.numpy_function(decode_all, [ids], tf.string, stateful=False)
    texts.set_shape(ids.shape[:-1])
    return texts

  def __eq__(self, other: object) -> bool:
    return isinstance(other, WrappedVocabulary) and self.fingerprint == other.fingerprint

  def __hash__(self) -> int:
    return hash(self.fingerprint)

  def __str__(self) -> str:
    return f"{type(self).__name__}({self.wrapped.path}, {self.fingerprint})"


def _text(value: str | bytes | np.ndarray) -> str:
  """TensorFlow hands over bytes; outside a graph, in an array without axes."""
  value = value.item() if isinstance(value, np.ndarray) else value
  return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value


def own_vocabulary(features: Mapping[str, seqio.Feature]) -> seqio.Vocabulary | None:
  """The vocabulary that inputs and targets share; None where they have several, or pass ids through."""
  of_texts = [features[name].vocabulary for name in ("inputs", "targets") if name in features]
  shared = of_texts and all(vocabulary == of_texts[0] for vocabulary in of_texts)
  return of_texts[0] if shared and not isinstance(of_texts[0], seqio.PassThroughVocabulary) else None


def with_vocabulary(features: Mapping[str, seqio.Feature], model: seqio.Vocabulary) -> dict[str, seqio.Feature]:
  """The features of a task for a model of this vocabulary.

  It takes the place of the one that the texts of the task have, whatever feature has it. Ids that are passed through,
  and texts with two vocabularies, stay as the task has them.
  """
  of_texts = [features[name].vocabulary for name in ("inputs", "targets") if name in features]
  of_texts = [vocabulary for vocabulary in of_texts if not isinstance(vocabulary, seqio.PassThroughVocabulary)]
  if not of_texts or any(vocabulary != of_texts[0] for vocabulary in of_texts):
    return dict(features)
  return {
    name: dataclasses.replace(feature, vocabulary=model) if feature.vocabulary == of_texts[0] else feature
    for name, feature in features.items()
  }


def from_seqio(vocabulary: seqio.Vocabulary) -> Vocabulary:
  """Ours behind one of seqio's, for what seqio does not tell: sentence ends, words, special ids."""
  if isinstance(vocabulary, WrappedVocabulary):
    return vocabulary.wrapped
  if isinstance(vocabulary, seqio.SentencePieceVocabulary):
    return SentencePieceVocabulary(vocabulary.sentencepiece_model_file, vocabulary.extra_ids)
  if isinstance(vocabulary, seqio.ByteVocabulary):
    return ByteVocabulary(vocabulary.extra_ids)
  raise UserError(
    f"objectives cannot use a {type(vocabulary).__name__}",
    expected="a seqio SentencePieceVocabulary or ByteVocabulary, or t5like.tasks.seqio_vocabularies.as_seqio(NAME)",
  )
