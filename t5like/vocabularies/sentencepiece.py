"""SentencePiece with T5's sentinels, without TensorFlow. Ids equal those of seqio's vocabulary."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path

import sentencepiece

from t5like.errors import UserError


class SentencePieceVocabulary:
  """Text to ids and back.

  `extra_ids` sentinels follow the model's own pieces in reverse: `<extra_id_0>`, the first span's
  sentinel, has the highest id.
  """

  pad_id = 0

  def __init__(self, path: str | Path, extra_ids: int = 100):
    self.path = Path(path).expanduser()
    self.extra_ids = extra_ids
    try:
      model = self.path.read_bytes()
    except OSError as error:
      raise UserError(f"cannot read the vocabulary {path}", because=error.strerror) from None
    try:
      self._processor = sentencepiece.SentencePieceProcessor(model_proto=model + _sentinel_pieces(extra_ids))
    except RuntimeError as error:
      raise UserError(f"{path} is not a SentencePiece model", because=str(error).split("\n")[0]) from None
    self.fingerprint = hashlib.sha256(model + str(extra_ids).encode()).hexdigest()[:16]

  @property
  def vocab_size(self) -> int:
    """Pieces and sentinels; a model's embedding may be padded beyond it."""
    return self._processor.vocab_size()

  @property
  def eos_id(self) -> int:
    return self._processor.eos_id()

  @property
  def unk_id(self) -> int:
    return self._processor.unk_id()

  @property
  def sentinel_ids(self) -> tuple[int, ...]:
    return tuple(range(self.vocab_size - 1, self.vocab_size - 1 - self.extra_ids, -1))

  def encode(self, text: str) -> list[int]:
    return self._processor.encode(text)

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    return self._processor.encode(list(texts))

  def decode(self, ids: Sequence[int]) -> str:
    """Text up to the first end-of-sequence; ids outside the vocabulary (padding rows) are unknown."""
    kept = []
    for token in map(int, ids):
      if token == self.eos_id:
        break
      kept.append(token if token < self.vocab_size else self.unk_id)
    return self._processor.decode(kept)


def _sentinel_pieces(count: int) -> bytes:
  """The sentinels as protocol-buffer bytes: appended to a serialised model they extend its pieces.

  `SentencePiece {piece = 1: string, score = 2: float, type = 3: USER_DEFINED}`, field 1 of the model.
  """
  pieces = b""
  for number in reversed(range(count)):
    text = f"▁<extra_id_{number}>".encode()  # the word mark is part of the piece, as in seqio
    body = b"\x0a" + bytes([len(text)]) + text + b"\x15" + struct.pack("<f", 0.0) + b"\x18\x04"
    pieces += b"\x0a" + bytes([len(body)]) + body
  return pieces
