"""Vocabularies: encode text to ids and back, without TensorFlow."""

from t5like.vocabularies.base import Vocabulary
from t5like.vocabularies.byte import ByteVocabulary
from t5like.vocabularies.catalogue import (
  SPELLED,
  load_vocabulary,
  name_of,
  split_name,
  vocabulary_in,
  vocabulary_path,
)
from t5like.vocabularies.copies import copied_vocabulary, copy_vocabulary
from t5like.vocabularies.sentencepiece import SentencePieceVocabulary
from t5like.vocabularies.spelled import SpelledWords

__all__ = [
  "SPELLED",
  "ByteVocabulary",
  "SentencePieceVocabulary",
  "SpelledWords",
  "Vocabulary",
  "copied_vocabulary",
  "copy_vocabulary",
  "load_vocabulary",
  "name_of",
  "split_name",
  "vocabulary_in",
  "vocabulary_path",
]
