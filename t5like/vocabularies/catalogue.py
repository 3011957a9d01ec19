"""Vocabularies by name or path."""

from pathlib import Path

from t5like.errors import UserError, nearest
from t5like.vocabularies.sentencepiece import SentencePieceVocabulary

EMBEDDED_FOLDER = Path(__file__).parent / "embedded"
EMBEDDED = {
  "t5": EMBEDDED_FOLDER / "t5.model",  # 32,000 pieces, the vocabulary of all T5 checkpoints in English
  "tiny": EMBEDDED_FOLDER / "tiny.model",  # 4,000 pieces of the embedded data, for the quickstart
}


def vocabulary_path(name: str) -> Path:
  """The file behind a vocabulary name, or the path itself."""
  if name in EMBEDDED:
    return EMBEDDED[name]
  path = Path(name).expanduser()
  if path.is_dir():
    path = path / "sentencepiece.model"
  if path.is_file():
    return path
  raise UserError(
    f"no vocabulary {name!r}",
    expected="a name or the path of a SentencePiece .model file",
    nearest=nearest(name, EMBEDDED),
    known=", ".join(EMBEDDED),
  )


def load_vocabulary(name: str) -> SentencePieceVocabulary:
  return SentencePieceVocabulary(vocabulary_path(name))
