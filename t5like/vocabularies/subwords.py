"""Vocabularies based on Hugging Face's `tokenizers` library: WordPiece, byte-level BPE, tokenizer.json."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from t5like.vocabularies.base import Vocabulary, trimmed, well_formed

# The library's own threads do not survive a fork and ignore `threads`; a user's setting is kept.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_UNUSED = re.compile(r"\[unused[0-9]+\]|madeupword[0-9]+")  # BERT's and RoBERTa's spare rows
_LANGUAGE = re.compile(r"[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")  # en_XX
_MAX_CACHED_CHUNKS = 2**18
_AMBIGUOUS_SPACES = "\x1c\x1d\x1e\x1f\u180e"  # white space in some libraries only
_SENTINEL = re.compile(r"<extra_id_([0-9]+)>")


@dataclasses.dataclass(frozen=True)
class SpecialNames:
  """The special tokens of a vocabulary as text; None for those it does not have."""

  pad: str | None = None
  eos: str | None = None
  unk: str | None = None
  bos: str | None = None
  cls: str | None = None
  sep: str | None = None
  mask: str | None = None

  def all(self) -> list[str]:
    return list(dict.fromkeys(name for name in dataclasses.astuple(self) if name is not None))


class SubwordVocabulary(Vocabulary):
  """A `tokenizers.Tokenizer` as a vocabulary. Special tokens in a text are recognized, as in Hugging Face.

  Args:
    begins_word: returns whether a piece starts a word.
    reload: a function and its arguments that load the same vocabulary, for pickling.
    chunks: matches parts of a text that can be encoded independently; their ids are cached.
    files: the original files by their Hugging Face names.
    settings: the content of tokenizer_config.json.
  """

  def __init__(
    self,
    tokenizer: Tokenizer,
    names: SpecialNames,
    begins_word: Callable[[str], bool],
    path: Path,
    fingerprint: str,
    reload: tuple[Callable, tuple],
    chunks: re.Pattern | None = None,
    files: Mapping[str, Path] | None = None,
    settings: Mapping[str, Any] | None = None,
  ):
    self._files, self.settings = dict(files or {}), dict(settings or {})
    self._tokenizer, self._begins_word, self._reload = tokenizer, begins_word, reload
    self.path, self.fingerprint = path, fingerprint
    self._chunks, self._cached = chunks, {}
    special = [piece.content for piece in tokenizer.get_added_tokens_decoder().values()]
    self._not_plain = (*_AMBIGUOUS_SPACES, *special)
    for field in dataclasses.fields(names):
      name = getattr(names, field.name)
      setattr(self, f"{field.name}_id", None if name is None else tokenizer.token_to_id(name))
    if names.cls == "<cls>":
      self.cls_last = (self.template or ((), ()))[1][-1:] == (self.cls_id,)
    if self.cls_id is None and self.bos_id is not None:
      around = tokenizer.encode("a").ids
      self.opens_texts = len(around) > 1 and around[0] == self.bos_id and around[-1] != self.eos_id

  def __reduce__(self):
    return self._reload

  @property
  def tokenizer(self) -> Tokenizer:
    return self._tokenizer

  def original_files(self) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in self._files.items()}

  @cached_property
  def vocab_size(self) -> int:
    """Ids in all; a vocabulary file may leave gaps."""
    return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())

  @cached_property
  def template(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The ids that tokenizer.json puts before and after a text; None: it has no such template."""
    if self._tokenizer.post_processor is None:
      return None
    encoding = self._tokenizer.encode("a", add_special_tokens=True)
    added = np.array(encoding.special_tokens_mask, bool)
    text = np.flatnonzero(~added)
    ids = tuple(encoding.ids)
    return (ids[: text[0]], ids[text[-1] + 1 :]) if len(text) else None

  @cached_property
  def sentinel_ids(self) -> tuple[int, ...]:
    named = [(_SENTINEL.fullmatch(piece.lstrip("▁")), token) for piece, token in self._tokenizer.get_vocab().items()]
    return tuple(token for _, token in sorted((int(match[1]), token) for match, token in named if match))

  @cached_property
  def _added_special(self) -> set[int]:
    """The tokens that the tokenizer itself marks as special."""
    return {token for token, piece in self._tokenizer.get_added_tokens_decoder().items() if piece.special}

  @cached_property
  def special_ids(self) -> frozenset[int]:
    named = {self.pad_id, self.eos_id, self.bos_id, self.cls_id, self.sep_id, self.mask_id}
    unused = {token for piece, token in self._tokenizer.get_vocab().items() if _UNUSED.fullmatch(piece)}
    unknown = {None} if self.unk_id == self.eos_id else {None, self.unk_id}
    return frozenset((named | self._added_special | unused | set(self.sentinel_ids)) - unknown)

  @cached_property
  def _not_text(self) -> frozenset[int]:
    """Special tokens that a decoded text leaves out: padding, marks of sequences and turns, languages."""
    named = {self.pad_id, self.bos_id, self.cls_id, self.sep_id}
    return frozenset(named | (self._added_special - {self.mask_id, self.unk_id, *self.sentinel_ids}))

  @cached_property
  def language_ids(self) -> frozenset[int]:
    """The codes of languages (mBART)."""
    return frozenset(token for token in self.special_ids if _LANGUAGE.fullmatch(self.piece(token)))

  @cached_property
  def word_starts(self) -> np.ndarray:
    starts = np.zeros(self.vocab_size, bool)
    for piece, token in self._tokenizer.get_vocab(with_added_tokens=True).items():
      starts[token] = token in self.special_ids or self._begins_word(piece)
    return starts

  def piece(self, token: int) -> str:
    return self._tokenizer.id_to_token(int(token)) or ""

  def encode(self, text: str) -> list[int]:
    return self._encode_all([text])[0]

  def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
    if threads == 1 or len(texts) < 2 * threads:
      return self._encode_all(texts)
    share = -(-len(texts) // (4 * threads))  # small enough to balance the threads
    shares = [texts[start : start + share] for start in range(0, len(texts), share)]
    with ThreadPoolExecutor(threads) as pool:
      return [ids for encoded in pool.map(self._encode_all, shares) for ids in encoded]

  def _encode_all(self, texts: Sequence[str]) -> list[list[int]]:
    if self._chunks is None:
      return self._run(texts)
    plain = [not any(part in text for part in self._not_plain) for text in texts]
    others = iter(self._run([text for text, is_plain in zip(texts, plain, strict=True) if not is_plain]))
    return [self._look_up(text) if is_plain else next(others) for text, is_plain in zip(texts, plain, strict=True)]

  def _look_up(self, text: str) -> list[int]:
    cached = self._cached
    if len(cached) > _MAX_CACHED_CHUNKS:
      cached = self._cached = {}  # other threads keep using the old one
    chunks = self._chunks.findall(text)
    if new := list(set(chunks).difference(cached)):
      cached.update(zip(new, self._run(new), strict=True))
    return list(itertools.chain.from_iterable(map(cached.__getitem__, chunks)))

  def _run(self, texts: Sequence[str]) -> list[list[int]]:
    try:
      encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    except TypeError:
      encoded = self._tokenizer.encode_batch_fast([well_formed(text) for text in texts], add_special_tokens=False)
    return [encoding.ids for encoding in encoded]

  def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    text = well_formed(text)
    encoding = self._tokenizer.encode(text, add_special_tokens=False)
    return encoding.ids, [trimmed(text, *span) for span in encoding.offsets]

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text up to the first end-of-sequence, without special tokens other than masks and sentinels."""
    kept = []
    for token in map(int, ids):
      if token == self.eos_id:
        break
      if 0 <= token < self.vocab_size and token not in self._not_text:
        kept.append(token)
    return self._tokenizer.decode(kept, skip_special_tokens=False)
