"""Text to ids and back, without TensorFlow."""

from t5like.vocabularies.catalogue import load_vocabulary, vocabulary_path
from t5like.vocabularies.sentencepiece import SentencePieceVocabulary

__all__ = ["SentencePieceVocabulary", "load_vocabulary", "vocabulary_path"]
