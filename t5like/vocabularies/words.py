"""Vocabularies of whole words: fastai's (ULMFiT) and ELMo's. A file has one word per line, or is a JSON list of words.

fastai's words are lower case; `xxmaj` precedes a word that was capitalized, `xxup` one in capitals. fastai splits text
with spaCy, which is not required here: words, numbers and single marks are separated as BERT does, and the rules for
repetitions (`xxrep`) are left out. ELMo's text is expected to be split by spaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from t5like.errors import UserError
from t5like.files import storage
from t5like.vocabularies.base import fingerprint_of, trimmed, well_formed
from t5like.vocabularies.subwords import SpecialNames, SubwordVocabulary

# A document of fastai starts with xxbos, which then separates documents.
_FASTAI = SpecialNames(pad="xxpad", eos="xxbos", unk="xxunk", bos="xxbos")
_ELMO = SpecialNames(eos="</S>", unk="<UNK>", bos="<S>")
_CAPITALIZED, _CAPITALS = "xxmaj", "xxup"


class WordVocabulary(SubwordVocabulary):
  """Whole words; others are `unk_id`."""

  has_whole_words = True

  def __init__(self, words: Sequence[str], path: Path, content: bytes):
    ids = {word: token for token, word in reversed(list(enumerate(words)))}  # the first of equal words
    is_fastai = _FASTAI.unk in ids
    names = _FASTAI if is_fastai else _ELMO
    if missing := [name for name in names.all() if name not in ids]:
      raise UserError(
        f"{path} is not a vocabulary of words: {', '.join(missing)} missing",
        expected=f"one word per line, with {', '.join(_FASTAI.all())} (fastai) or {', '.join(_ELMO.all())} (ELMo)",
      )
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=names.unk))
    if is_fastai:
      tokenizer.normalizer = normalizers.Lowercase()
    split = pre_tokenizers.BertPreTokenizer() if is_fastai else pre_tokenizers.WhitespaceSplit()
    tokenizer.pre_tokenizer = split
    marks = [word for word in (_CAPITALIZED, _CAPITALS) if word in ids] if is_fastai else []
    tokenizer.add_special_tokens([*names.all(), *marks])
    self._capitalized, self._capitals = (ids.get(mark) if is_fastai else None for mark in (_CAPITALIZED, _CAPITALS))
    self._words = list(words)
    fingerprint = fingerprint_of("words", content)
    super().__init__(tokenizer, names, lambda piece: True, path, fingerprint, (load_words, (path,)))
    self.opens_texts = is_fastai

  @property
  def vocab_size(self) -> int:
    return len(self._words)

  def piece(self, token: int) -> str:
    return self._words[token] if 0 <= token < len(self._words) else ""

  def _run(self, texts: Sequence[str]) -> list[list[int]]:
    return [self.encode_with_offsets(text)[0] for text in texts]

  def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    text = well_formed(text)
    encoding = self._tokenizer.encode(text, add_special_tokens=False)
    ids, spans = [], []
    for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
      mark = self._mark(text[start:end])
      if mark is not None:
        ids.append(mark)
        spans.append((start, start))
      ids.append(token)
      spans.append(trimmed(text, start, end))
    return ids, spans

  def _mark(self, word: str) -> int | None:
    """Returns the token before a word that shows its capitals; None: it has none."""
    if not word[:1].isupper():
      return None
    return self._capitals if len(word) > 1 and word.isupper() else self._capitalized

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the words up to the first end-of-sequence with spaces between them, their capitals restored."""
    dropped, words, mark = {self.pad_id, self.bos_id}, [], None
    for token in map(int, ids):
      if token == self.eos_id:
        break
      if token in (self._capitalized, self._capitals):
        mark = token
      elif 0 <= token < self.vocab_size and token not in dropped:
        word = self._words[token]
        capital = word.upper() if mark == self._capitals else word[:1].upper() + word[1:]
        words.append(word if mark is None else capital)
        mark = None
    return " ".join(words)


def load_words(path: str | Path) -> WordVocabulary:
  """Loads a text file with one word per line, or a JSON list of words; the number of a word is its id."""
  path = Path(path).expanduser()
  content = path.read_bytes()
  try:
    if path.suffix == ".json":
      words = storage.parse_json(content, list)
      if not all(isinstance(word, str) for word in words):
        raise ValueError("not a list of strings")
    else:
      words = content.decode().removesuffix("\n").split("\n")
  except ValueError as error:
    raise UserError(f"{path} is not a vocabulary of words", reason=error, expected="a JSON list of words") from None
  return WordVocabulary(words, path, content)
