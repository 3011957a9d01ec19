"""SentencePiece with T5's sentinels, without TensorFlow. Ids equal those of seqio's vocabulary."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import sentencepiece

from t5like.errors import UserError
from t5like.vocabularies.base import Vocabulary, fingerprint_of, trimmed, well_formed
from t5like.vocabularies.tokenizer_config import tokenizer_settings

T5_SENTINELS = 100
_MOST_SENTINELS = 10_000
LLAMA_FILE = "tokenizer.model"
WORD_MARK = "▁"
_INVALID_UTF8 = (RuntimeError, TypeError)  # raised by SentencePiece for lone surrogates, in a text or a list
_SENTINEL = re.compile(f"{WORD_MARK}?<extra_id_([0-9]+)>")


class SentencePieceVocabulary(Vocabulary):
  """A SentencePiece model and its sentinels.

  `extra_ids` sentinels follow the model's own pieces in reverse: `<extra_id_0>`, the first span's
  sentinel, has the highest id. The default is 100, as in T5, or the number in Hugging Face's settings
  next to the model (UMT5: 300), or 0 if the model has sentinels among its pieces, as mT5's does, is called
  tokenizer.model, as Llama's and Mistral's, whose texts begin with <s>, or has XLNet's <cls>, which ends a row.
  As in seqio, a sentinel in a text is recognized as a separate word; Hugging Face's T5 tokenizer also
  recognizes it inside words, and `</s>` and `<pad>`, which are plain text here.
  """

  def __init__(self, path: str | Path, extra_ids: int | None = None):
    self.path = Path(path).expanduser()
    try:
      model = self.path.read_bytes()
    except OSError as error:
      raise UserError(f"cannot read the vocabulary {path}", because=error.strerror) from None
    if not model:
      raise UserError(f"{path} is not a SentencePiece model", because="the file is empty", try_="copy it again")
    own = _load(model, path)
    if extra_ids is None:
      has_own = any(map(_SENTINEL.fullmatch, _pieces(own))) or _is_xlnet(own)
      extra_ids = 0 if has_own else _default_sentinels(self.path)
    if extra_ids > _MOST_SENTINELS:
      raise UserError(f"too many sentinels for {path}: extra_ids = {extra_ids}", expected=f"at most {_MOST_SENTINELS}")
    self.extra_ids = extra_ids
    self._processor = _load(model + _sentinel_pieces(extra_ids), path)
    self.fingerprint = fingerprint_of(model, extra_ids)

    def special(*names: str) -> int | None:
      found = [self._processor.piece_to_id(name) for name in names]
      return next((token for token in found if token != self._processor.unk_id()), None)

    self.pad_id = _present(self._processor.pad_id())
    self.unk_id = self._processor.unk_id()
    self.bos_id = _present(self._processor.bos_id())
    if self.path.name == LLAMA_FILE and self.bos_id is not None:
      self.opens_texts = tokenizer_settings(self.path).get("add_bos_token") is not False
    self.cls_id, self.sep_id = special("[CLS]", "<cls>"), special("[SEP]", "<sep>")
    self.mask_id = special("[MASK]", "<mask>")
    if _is_xlnet(own):
      self.cls_last, self.pad_id = True, special("<pad>")
    eos = _present(self._processor.eos_id())
    self.eos_id = self.sep_id if eos is None else eos
    if self.eos_id is None:
      raise UserError(
        f"the vocabulary {path} has no end-of-sequence piece", try_="t5like tasks vocabulary to train one"
      )

  def __reduce__(self):
    return type(self), (self.path, self.extra_ids)

  @property
  def template(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The ids that Hugging Face's settings next to the model put before and after a text; None: they do not say."""
    settings = tokenizer_settings(self.path)
    if self.path.name != LLAMA_FILE:
      return ((), (self.eos_id,)) if settings.get("tokenizer_class") == "T5Tokenizer" else None
    return (self.bos_id,) if self.opens_texts else (), (self.eos_id,) if settings.get("add_eos_token") is True else ()

  @property
  def model_bytes(self) -> bytes:
    """The serialized model, without added sentinels."""
    return self.path.read_bytes()

  def original_files(self) -> dict[str, bytes]:
    return {LLAMA_FILE if self.path.name == LLAMA_FILE else "spiece.model": self.model_bytes}

  @property
  def vocab_size(self) -> int:
    return self._processor.vocab_size()

  @cached_property
  def sentinel_ids(self) -> tuple[int, ...]:
    numbers = {token: _SENTINEL.fullmatch(piece) for token, piece in enumerate(_pieces(self._processor))}
    return tuple(sorted((t for t, match in numbers.items() if match), key=lambda t: int(numbers[t][1])))

  @cached_property
  def special_ids(self) -> frozenset[int]:
    named = {self.pad_id, self.eos_id, self.bos_id, self.cls_id, self.sep_id, self.mask_id, *self.sentinel_ids}
    control = {token for token in range(self.vocab_size) if self._processor.is_control(token)}
    return frozenset(named - {None} | control)

  @cached_property
  def word_starts(self) -> np.ndarray:
    return np.array(
      [piece[:1] == WORD_MARK or token in self.special_ids for token, piece in enumerate(_pieces(self._processor))]
    )

  def piece(self, token: int) -> str:
    return self._processor.id_to_piece(int(token))

  def encode(self, text: str) -> list[int]:
    try:
      return self._processor.encode(text)
    except _INVALID_UTF8:
      return self._processor.encode(well_formed(text))

  def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
    try:
      return self._processor.encode(list(texts), num_threads=threads)
    except _INVALID_UTF8:
      return self._processor.encode([well_formed(text) for text in texts], num_threads=threads)

  def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    from sentencepiece import sentencepiece_pb2

    text = well_formed(text)
    encoded = self._processor.encode(text, out_type="serialized_proto")
    pieces = sentencepiece_pb2.SentencePieceText.FromString(encoded).pieces
    # SentencePiece offsets are bytes: a character starts at every byte that is not a continuation byte.
    utf8 = np.frombuffer(text.encode(), np.uint8)
    characters = np.concatenate([[0], np.cumsum((utf8 & 0xC0) != 0x80)])  # [bytes + 1] characters started before
    spans = [(int(characters[p.begin]), int(characters[p.end])) for p in pieces]
    return [p.id for p in pieces], [trimmed(text, *span) for span in spans]

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text up to the first end-of-sequence; ids beyond the vocabulary (padded embeddings) are unknown."""
    kept = []
    for token in map(int, ids):
      if token == self.eos_id:
        break
      kept.append(token if token < self.vocab_size else self.unk_id)
    return self._processor.decode(kept)


def _load(model: bytes, path: str | Path) -> sentencepiece.SentencePieceProcessor:
  try:
    return sentencepiece.SentencePieceProcessor(model_proto=model)
  except RuntimeError as error:
    message = str(error).split("\n")[0]
    if "already defined" in message:
      raise UserError(f"the vocabulary {path} already has sentinels", try_="extra_ids=0") from None
    hint = "Llama 3's file is in another format: use its tokenizer.json" if Path(path).name == LLAMA_FILE else ""
    raise UserError(f"{path} is not a SentencePiece model", because=message, hint=hint) from None


def _pieces(processor: sentencepiece.SentencePieceProcessor) -> list[str]:
  return processor.id_to_piece(list(range(processor.vocab_size())))


def _is_xlnet(processor: sentencepiece.SentencePieceProcessor) -> bool:
  return all(processor.piece_to_id(name) != processor.unk_id() for name in ("<cls>", "<sep>"))


def _present(token: int) -> int | None:
  return token if token >= 0 else None


def _default_sentinels(path: Path) -> int:
  if path.name == LLAMA_FILE:
    return 0
  count = tokenizer_settings(path).get("extra_ids")
  return count if isinstance(count, int) and count >= 0 else T5_SENTINELS


def _sentinel_pieces(count: int) -> bytes:
  """Returns sentinels as protocol-buffer bytes: appended to a serialized model, they extend its pieces.

  `SentencePiece {piece = 1: string, score = 2: float, type = 3: USER_DEFINED}`, field 1 of the model.
  """
  pieces = b""
  for number in reversed(range(count)):
    text = f"{WORD_MARK}<extra_id_{number}>".encode()  # the word mark is part of the piece, as in seqio
    body = b"\x0a" + bytes([len(text)]) + text + b"\x15" + struct.pack("<f", 0.0) + b"\x18\x04"
    pieces += b"\x0a" + bytes([len(body)]) + body
  return pieces
