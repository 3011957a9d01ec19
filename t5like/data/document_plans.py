"""Cuts a corpus into rows: across documents, within them, or at sentence ends."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np

from t5like.data.cache import TokenCache
from t5like.data.documents import Documents
from t5like.data.first_tokens import FirstTokens
from t5like.objectives import Objective, Ragged, SpecialTokens
from t5like.objectives.cutting import sentence_rows
from t5like.objectives.ragged import numbered, within

Corpus = TokenCache | FirstTokens


class RowPlan(Protocol):
  rows: int

  def read(self, rows: np.ndarray) -> Ragged:
    """Returns the tokens of the given rows."""

  def tokens(self, first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the token number at which each row `first` starts, and the one at which the row before `last` ends."""

  def sample_other_rows(self, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Samples another row for each row with its key, from another document if there is one."""


def plan_rows(cache: Corpus, objective: Objective, raw: int, special: SpecialTokens) -> RowPlan:
  if objective.unit == "document":
    return DocumentRows(cache, raw)
  separator = special.eos if objective.separated else None
  if objective.unit == "sentences":
    return SentenceRows.of(cache, raw, special.sentence_ends, separator)
  return StreamRows(cache, raw, separator)


@dataclasses.dataclass(frozen=True)
class TokenStream:
  """Documents end to end, each followed by the separator if there is one."""

  cache: Corpus
  separator: int | None
  documents: Documents

  @classmethod
  def of(cls, cache: Corpus, separator: int | None) -> TokenStream:
    return cls(cache, separator, cache.documents())

  @property
  def length(self) -> int:
    return self.documents.tokens + (self.documents.count if self.separator is not None else 0)

  def read(self, begin: np.ndarray, length: int) -> np.ndarray:
    """Returns the tokens [rows, length] from each `begin`; those past the end of the corpus are 0."""
    if self.separator is None:
      return self._tokens(begin, length)
    before, after = np.split(self.documents.ended(np.concatenate([begin, begin + length])), 2)
    counts = after - before
    separators = np.zeros((len(begin), length), bool)
    row = np.repeat(np.arange(len(begin)), counts)
    ended = np.repeat(before, counts) + numbered(counts)
    # Document d ends where the next one starts, after d separators.
    separators[row, self.documents.starts(ended + 1) + ended - begin[row]] = True
    tokens = self._tokens(begin - before, length)
    out = np.full((len(begin), length), self.separator, np.int32)
    out[~separators] = tokens[within(length - counts, length)]
    return out

  def token_numbers(self, positions: np.ndarray) -> np.ndarray:
    """Returns the numbers in the cache of the tokens at, or after, positions of the stream."""
    return positions if self.separator is None else positions - self.documents.ended(positions)

  def _tokens(self, begin: np.ndarray, length: int) -> np.ndarray:
    overrun = np.maximum(begin + length - self.cache.tokens, 0)
    if not overrun.any():
      return self.cache.stream_rows(begin, length)
    if length > self.cache.tokens:
      corpus = self.cache.stream_rows(np.zeros(1, np.int64), self.cache.tokens)
      corpus = np.pad(corpus, ((0, 0), (0, 2 * length)))
      return np.stack([corpus[0, b : b + length] for b in begin.tolist()])
    # Read so that the row ends where the corpus does, then move it to the front.
    tokens = self.cache.stream_rows(begin - overrun, length)
    columns = np.arange(length)[None, :] + overrun[:, None]
    moved = np.take_along_axis(tokens, np.minimum(columns, length - 1), axis=1)
    return np.where(columns < length, moved, 0).astype(np.int32)


class StreamRows:
  """Rows of `raw` tokens, regardless of document boundaries; a shorter rest at the end of the corpus is dropped."""

  def __init__(self, cache: Corpus, raw: int, separator: int | None):
    self._raw = raw
    self._stream = TokenStream.of(cache, separator) if separator is not None else None
    self._cache = cache
    self.rows = (self._stream.length if self._stream else cache.tokens) // raw

  def read(self, rows: np.ndarray) -> Ragged:
    begin = rows * self._raw
    return Ragged.full(
      self._stream.read(begin, self._raw) if self._stream else self._cache.stream_rows(begin, self._raw)
    )

  def tokens(self, first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    begin, end = first * self._raw, last * self._raw
    return (self._stream.token_numbers(begin), self._stream.token_numbers(end)) if self._stream else (begin, end)

  def sample_other_rows(self, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
    return _another(rows, self.rows, keys)


class DocumentRows:
  """Rows of at most `raw` tokens, each from one document."""

  def __init__(self, cache: Corpus, raw: int):
    self._raw = raw
    self._stream = TokenStream.of(cache, None)
    documents = self._stream.documents
    counts = np.zeros(len(documents.first), np.int64)
    for shard, index, _ in documents.by_shard(np.arange(documents.shards)):
      counts[shard + 1] = self._pieces(index)[-1]
    self._first = np.cumsum(counts)  # [shards + 1] rows before each shard
    self.rows = int(self._first[-1])

  def read(self, rows: np.ndarray) -> Ragged:
    begin, end, _, _ = self._find(rows)
    lengths = np.minimum(self._raw, end - begin)
    tokens = self._stream.read(begin, int(lengths.max(initial=0)))
    return Ragged(np.where(within(lengths, tokens.shape[1]), tokens, 0).astype(np.int32), lengths)

  def tokens(self, first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return self._find(first)[0], self._find(last - 1)[0] + self._raw

  def sample_other_rows(self, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Samples from the rows of all other documents, numbered from the end of the row's own document."""
    _, _, before, after = self._find(rows)
    foreign = self.rows - (after - before)
    if not foreign.all():  # a corpus of one document
      return _another(rows, self.rows, keys)
    drawn = ((keys >> np.uint64(32)) * foreign.astype(np.uint64) >> np.uint64(32)).astype(np.int64)
    return (after + drawn) % self.rows

  def _find(self, rows: np.ndarray) -> np.ndarray:
    """Returns each row's first token, the end of its document, and the rows before both of the document's ends."""
    found = np.empty((4, len(rows)), np.int64)
    documents = self._stream.documents
    for shard, index, mine in documents.by_shard(np.searchsorted(self._first, rows, side="right") - 1):
      pieces, own = self._pieces(index), rows[mine] - self._first[shard]
      at = np.searchsorted(pieces, own, side="right") - 1
      found[:2, mine] = documents.first_token[shard] + [index[at] + (own - pieces[at]) * self._raw, index[at + 1]]
      found[2:, mine] = self._first[shard] + [pieces[at], pieces[at + 1]]
    return found

  def _pieces(self, index: np.ndarray) -> np.ndarray:
    """Returns the rows of a shard before each of its documents, and all: [documents + 1]."""
    return np.concatenate([[0], np.cumsum(-(-np.diff(index) // self._raw))])


class SentenceRows:
  """Rows of as many complete sentences as fit into `raw` tokens, across document boundaries."""

  def __init__(self, stream: TokenStream, starts: np.ndarray, lengths: np.ndarray):
    self._stream, self._starts, self._lengths = stream, starts, lengths
    self.rows = len(starts)

  @classmethod
  def of(cls, cache: Corpus, raw: int, sentence_ends: tuple[int, ...], separator: int | None) -> SentenceRows:
    stream = TokenStream.of(cache, separator)
    starts = stream.documents.all()
    ends = [(starts + np.arange(len(starts)) if separator is not None else starts)[1:]]
    block = 1 << 20
    table = np.zeros(int(max(sentence_ends, default=0)) + 1, bool)
    table[list(sentence_ends)] = True
    for begin in range(0, stream.length, block):
      size = min(block, stream.length - begin)
      tokens = stream.read(np.array([begin]), size)[0]
      is_end = table[np.minimum(tokens, len(table) - 1)] & (tokens < len(table))
      ends.append(begin + 1 + np.flatnonzero(is_end))
    return cls(stream, *sentence_rows(np.concatenate(ends), stream.length, raw))

  def read(self, rows: np.ndarray) -> Ragged:
    lengths = self._lengths[rows]
    tokens = self._stream.read(self._starts[rows], int(lengths.max(initial=0)))
    return Ragged(np.where(within(lengths, tokens.shape[1]), tokens, 0).astype(np.int32), lengths)

  def tokens(self, first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    end = self._starts[last - 1] + self._lengths[last - 1]
    return self._stream.token_numbers(self._starts[first]), self._stream.token_numbers(end)

  def sample_other_rows(self, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
    return _another(rows, self.rows, keys)


def _another(rows: np.ndarray, count: int, keys: np.ndarray) -> np.ndarray:
  """Samples another row for each row; the same one if there is only one."""
  drawn = ((keys >> np.uint64(32)) * np.uint64(max(count - 1, 1)) >> np.uint64(32)).astype(np.int64)
  return (rows + 1 + drawn) % count
