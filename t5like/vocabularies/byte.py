"""ByT5's vocabulary of UTF-8 bytes (Xue et al. 2021). Ids equal those of seqio's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from t5like.errors import UserError
from t5like.vocabularies.base import Vocabulary, fingerprint_of, trimmed, well_formed

BYT5_SENTINELS = 125
_FIRST_BYTE = 3  # after padding, end-of-sequence and unknown
_SIZE = _FIRST_BYTE + 256
# UTF-8 never uses the bytes 0xF5 to 0xFF.
_UNUSED_BYTES = tuple(range(_SIZE - 1, _FIRST_BYTE + 0xF5 - 1, -1))


class ByteVocabulary(Vocabulary):
  """Three special ids, 256 bytes, and `extra_ids` sentinels above them, the first span's being the highest.

  With 125 sentinels there are the 384 ids of ByT5's embedding. The published ByT5 models were
  pre-trained without sentinels: spans use the ids from 258 downward, bytes that no text contains.
  `extra_ids=0` is that vocabulary, with the eleven such bytes as sentinels (ByT5's rows of 1,024
  need nine). Sentinels in a text are encoded as bytes, as in seqio; Hugging Face's tokenizer maps
  them to ids above 258, in the opposite order.
  """

  pad_id, eos_id, unk_id = 0, 1, 2

  def __init__(self, extra_ids: int | None = None):
    self.extra_ids = BYT5_SENTINELS if extra_ids is None else extra_ids
    if self.extra_ids < 0:
      raise UserError(f"invalid extra_ids: {extra_ids} (expected at least 0)")
    self.fingerprint = fingerprint_of("utf-8 bytes", self.extra_ids)

  def __reduce__(self):
    return type(self), (self.extra_ids,)

  @property
  def vocab_size(self) -> int:
    return _SIZE + self.extra_ids

  @property
  def sentinel_ids(self) -> tuple[int, ...]:
    return tuple(range(self.vocab_size - 1, _SIZE - 1, -1)) if self.extra_ids else _UNUSED_BYTES

  @cached_property
  def special_ids(self) -> frozenset[int]:
    return frozenset({self.pad_id, self.eos_id, *self.sentinel_ids})

  @cached_property
  def word_starts(self) -> np.ndarray:
    """Whether each token starts a word: a word starts with the white space before it, as in SentencePiece."""
    starts = np.zeros(self.vocab_size, bool)
    starts[[_FIRST_BYTE + byte for byte in b" \t\n\r\v\f"]] = True
    starts[list(self.special_ids)] = True
    return starts

  def piece(self, token: int) -> str:
    if token in self.sentinel_ids:
      return f"<extra_id_{self.sentinel_ids.index(token)}>"
    if token < _FIRST_BYTE:
      return ("<pad>", "</s>", "<unk>")[token]
    byte = token - _FIRST_BYTE
    return chr(byte) if 32 <= byte < 127 else f"<0x{byte:02X}>"

  def encode(self, text: str) -> list[int]:
    return (np.frombuffer(_utf8(text), np.uint8).astype(np.int32) + _FIRST_BYTE).tolist()

  def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
    del threads  # copying bytes holds the GIL
    return [self.encode(text) for text in texts]

  def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    ids = self.encode(text)
    spans = [trimmed(text, i, i + 1) for i, character in enumerate(text) for _ in range(len(_utf8(character)))]
    return ids, spans

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text up to the first end-of-sequence; drops special ids and invalid UTF-8, as in seqio."""
    tokens = np.asarray(ids, np.int64).reshape(-1)
    ends = np.flatnonzero(tokens == self.eos_id)
    tokens = tokens[: ends[0]] if len(ends) else tokens
    kept = tokens[(tokens >= _FIRST_BYTE) & (tokens < _SIZE)] - _FIRST_BYTE
    return kept.astype(np.uint8).tobytes().decode("utf-8", errors="ignore")


def _utf8(text: str) -> bytes:
  try:
    return text.encode()
  except UnicodeEncodeError:
    return well_formed(text).encode()
