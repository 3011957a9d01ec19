"""t5like vocabularies for seqio: its own classes where the ids are equal, otherwise a thin wrapper."""

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
  """Returns a seqio vocabulary. SentencePiece and byte ones run as TensorFlow ops; the others call Python."""
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
  """A t5like vocabulary with seqio's interface; two are equal if all their ids are."""

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
    """Returns 0 if there is no padding id: seqio always pads with 0."""
    return self.wrapped.pad_id or 0

  @property
  def _base_vocab_size(self) -> int:
    return self.wrapped.vocab_size

  def _encode(self, s: str | bytes | np.ndarray) -> Sequence[int]:
    return self.wrapped.encode(_text(s))

  def _decode(self, ids: Sequence[int]) -> str:
    return self.wrapped.decode(ids)

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
    """Encodes a scalar to ids [length]; strings of any other shape to ragged ids, in one batch."""
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
    """Decodes ids [..., length] to strings [...]."""

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
  """Decodes what TensorFlow passes: bytes, or outside a graph a 0-d array of bytes."""
  value = value.item() if isinstance(value, np.ndarray) else value
  return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value


def own_vocabulary(features: Mapping[str, seqio.Feature]) -> seqio.Vocabulary | None:
  """Returns the vocabulary that inputs and targets share; None if they differ or pass ids through."""
  found = [features[name].vocabulary for name in ("inputs", "targets") if name in features]
  shared = found and all(vocabulary == found[0] for vocabulary in found)
  return found[0] if shared and not isinstance(found[0], seqio.PassThroughVocabulary) else None


def with_vocabulary(features: Mapping[str, seqio.Feature], model: seqio.Vocabulary) -> dict[str, seqio.Feature]:
  """Returns a task's features with the vocabulary of a model.

  It replaces the vocabulary of inputs and targets in every feature that has it. Pass-through ids, and tasks
  whose inputs and targets have different vocabularies, are left unchanged.
  """
  found = [features[name].vocabulary for name in ("inputs", "targets") if name in features]
  found = [vocabulary for vocabulary in found if not isinstance(vocabulary, seqio.PassThroughVocabulary)]
  if not found or any(vocabulary != found[0] for vocabulary in found):
    return dict(features)
  return {
    name: dataclasses.replace(feature, vocabulary=model) if feature.vocabulary == found[0] else feature
    for name, feature in features.items()
  }


def from_seqio(vocabulary: seqio.Vocabulary) -> Vocabulary:
  """Returns the t5like vocabulary for one of seqio's, which lacks sentence ends, words and special ids."""
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
