"""Data cards: how much text a data set has, how much of it repeats, and where it is from (data_card.json and .md)."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5like.files import storage

CARD, PAGE = "data_card.json", "data_card.md"
FILES = (CARD, PAGE)
# Fields of a row that tell where it is from; for the address of a page, its host is counted.
ORIGINS = ("language", "lang", "origin", "source", "domain", "url", "license")
_HASHES = 1 << 24  # in memory, with their counts: 200 MB
_SHOWN = 20  # most frequent values of a field


class DuplicateCounter:
  """Counts texts that occurred before by their hashes, in bounded memory.

  Up to 17 million different texts are counted exactly. Beyond, only those are kept whose hash is in the lower half of
  the range, then in the lower quarter, and so on: all copies of a text are kept or none, so their share is an estimate
  from that part.
  """

  def __init__(self, most: int = _HASHES):
    self._most = most
    self._hashes, self._counts = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    self._pending: list[np.ndarray] = []
    self._halvings, self.texts = 0, 0

  def add(self, hashes: np.ndarray) -> None:
    """Adds the hashes of texts, uint64."""
    self.texts += len(hashes)
    self._pending.append(hashes[hashes >> np.uint64(64 - self._halvings) == 0] if self._halvings else hashes)
    if sum(map(len, self._pending)) > self._most // 4:
      self._merge()

  def report(self) -> dict[str, Any]:
    """Returns the number of duplicates, their share, and the part of all texts that it is computed from."""
    self._merge()
    kept = int(self._counts.sum())
    share = (kept - len(self._counts)) / max(kept, 1)
    part = 0.5**self._halvings
    return {"count": round(share * self.texts), "share": round(share, 6), "counted_part": part}

  def _merge(self) -> None:
    hashes = np.concatenate([self._hashes, *self._pending])
    counts = np.concatenate([self._counts, np.ones(len(hashes) - len(self._counts), np.int64)])
    order = np.argsort(hashes, kind="stable")
    hashes, counts, self._pending = hashes[order], counts[order], []
    first = np.flatnonzero(np.concatenate([[True], hashes[1:] != hashes[:-1]])) if len(hashes) else np.zeros(0, int)
    self._hashes, self._counts = hashes[first], np.add.reduceat(counts, first) if len(first) else counts
    while len(self._hashes) > self._most:
      self._halvings += 1
      kept = self._hashes >> np.uint64(64 - self._halvings) == 0
      self._hashes, self._counts = self._hashes[kept], self._counts[kept]


def text_hash(*texts: str) -> int:
  """Returns a 64-bit hash of texts."""
  digest = hashlib.blake2b(digest_size=8)
  for text in texts:
    digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
  return int.from_bytes(digest.digest(), "little")


class OriginCounter:
  """Counts the values of the fields of rows that tell where they are from."""

  def __init__(self):
    self._counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    self.rows = 0

  def add(self, row: Mapping[str, Any]) -> None:
    self.rows += 1
    for field in ORIGINS:
      value = row.get(field)
      if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
      if isinstance(value, str) and value:
        counter = self._counts[field]
        counter[_host(value) if "://" in value else value[:100]] += 1
        if len(counter) > 1000 * _SHOWN:  # the tail of a million hosts
          self._counts[field] = collections.Counter(dict(counter.most_common(100 * _SHOWN)))

  def report(self) -> dict[str, dict[str, int]]:
    """Returns the most frequent values of each field."""
    return {
      field: dict(sorted(counts.most_common(_SHOWN), key=lambda item: (-item[1], item[0])))
      for field, counts in sorted(self._counts.items())
    }


@dataclasses.dataclass(frozen=True)
class DataCard:
  """A data set in numbers; None: unknown."""

  name: str
  split: str
  documents: int
  tokens: int | None = None
  characters: int | None = None
  vocabulary: str | None = None
  duplicates: Mapping[str, Any] | None = None  # of DuplicateCounter
  source_files: int | None = None
  source_bytes: int | None = None
  origins: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)  # of OriginCounter
  origin_rows: int | None = None  # of the sample that was counted, if not all

  def page(self) -> str:
    """Returns the card as Markdown."""
    rows = {"documents": f"{self.documents:,}"}
    rows |= {"tokens": f"{self.tokens:,} ({self.vocabulary})"} if self.tokens is not None else {}
    rows |= {"characters": f"{self.characters:,}"} if self.characters is not None else {}
    rows["exact duplicates"] = _duplicates_text(self.duplicates)
    if self.source_files:
      size = f", {self.source_bytes:,} bytes" if self.source_bytes else ""
      rows["source"] = f"{self.source_files:,} files{size}"
    lines = [f"# {self.name} ({self.split})", "", "| | |", "|---|---|"]
    lines += [f"| {label} | {text} |" for label, text in rows.items()]
    for field, counts in self.origins.items():
      of = f" (in a sample of {self.origin_rows:,} rows)" if self.origin_rows else ""
      lines += ["", f"## {field}{of}", "", "| value | rows |", "|---|---:|"]
      lines += [f"| {value.replace('|', '/')} | {count:,} |" for value, count in counts.items()]
    return "\n".join(lines) + "\n"


def write_cards(folder: Path, cards: Sequence[DataCard]) -> None:
  """Writes the cards of a data set, one for each split, as data_card.json and data_card.md."""
  found = [{k: v for k, v in dataclasses.asdict(card).items() if v not in (None, {})} for card in cards]
  storage.write_atomic(folder / CARD, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
  storage.write_atomic(folder / PAGE, "\n".join(card.page() for card in cards))


def count_duplicates(hashes: Iterable[np.ndarray | None]) -> dict[str, Any] | None:
  """Returns the duplicates among hashes; None if some are unknown."""
  counter = DuplicateCounter()
  for each in hashes:
    if each is None:
      return None
    counter.add(each)
  return counter.report()


def read_hashes(path: Path) -> np.ndarray | None:
  """Returns the hashes of examples, uint64; None if an older version built them."""
  return np.frombuffer(path.read_bytes(), "<u8") if path.is_file() else None


def write_cache_card(
  folder: Path,
  plan: Mapping[str, Any],
  shards: Sequence[Mapping[str, Any]],
  hashes: Iterable[np.ndarray | None],
  origins: OriginCounter | None,
) -> None:
  """Writes the card of a token cache, given its plan and shards and the hashes of all examples."""
  description, vocabulary, counted = plan["description"], plan["vocabulary"], origins or OriginCounter()
  sources = description.get("source_files", [])
  card = DataCard(
    description.get("task", folder.name),
    description.get("split", ""),
    sum(shard["examples"] for shard in shards),
    sum(shard["tokens"] for shard in shards),
    vocabulary=f"{Path(vocabulary.get('name', '')).name}-{vocabulary.get('fingerprint', '')[:8]}",
    duplicates=count_duplicates(hashes),
    source_files=len(sources),
    source_bytes=sum(source.get("bytes", 0) for source in sources),
    origins=counted.report(),
    origin_rows=counted.rows if counted.report() else None,
  )
  write_cards(folder, [card])


def _host(address: str) -> str:
  return address.partition("://")[2].partition("/")[0].lower()[:100]


def _duplicates_text(duplicates: Mapping[str, Any] | None) -> str:
  if duplicates is None:
    return "unknown"
  part = duplicates["counted_part"]
  how = "" if part == 1 else f", estimated from {part:.3g} of the documents"
  return f"{duplicates['count']:,} ({duplicates['share']:.2%}{how})"
