"""Input rows of `t5like infer`: lines of text, JSON lines, or the examples of a task."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import numbers
import os
import queue
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from t5like.errors import RunError, UserError, nearest
from t5like.experiments.token_caches import CachedTask
from t5like.vocabularies import Vocabulary

STDIN = "-"
TEXT_FIELD, TRAINING_FIELD = "inputs", "text"  # the latter in rows for training
_BOM = b"\xef\xbb\xbf"
_SHOWN = 60
_PREFETCH = 4096  # rows prefetched from a pipe


@dataclasses.dataclass(frozen=True)
class Row:
  """One input."""

  number: int  # from 0, over all rows
  location: str  # for messages: "line 3"
  text: str
  fields: Mapping[str, Any]  # other fields, copied to the output
  tokens: list[int] | None = None  # set if the text is already tokenized
  targets: list[int] | None = None


def listed(texts: str | Sequence[str]) -> list[str]:
  """Returns one text or several as a list."""
  if hasattr(texts, "columns"):  # iterating over a table yields the names of its columns
    raise UserError(f"not a text: a {type(texts).__name__}", expected="one of its columns, such as table['text']")
  if not isinstance(texts, Iterable) or isinstance(texts, Mapping | bytes):
    raise UserError(f"not a text: {texts!r}", expected="a string, or a list of strings")
  found = [texts] if isinstance(texts, str) else list(texts)
  if wrong := [text for text in found if not isinstance(text, str)]:
    raise UserError(f"not a text: {wrong[0]!r}", expected="a string, or a list of strings")
  return found


def like_input(texts: str | Sequence[str], results: Any) -> Any:
  """Returns a single result for a single text."""
  return results[0] if isinstance(texts, str) else results


def candidate_lists(texts: Sequence[str], candidates: Sequence[str] | Sequence[Sequence[str]]) -> list[list[str]]:
  """Returns the candidates of each text, from one list for all or one for each."""
  if isinstance(candidates, str) or not isinstance(candidates, Iterable):
    raise UserError(f"not a list of candidates: {candidates!r}", expected="a list of strings, or one for each input")
  candidates = list(candidates)
  if all(isinstance(candidate, str) for candidate in candidates):
    return [candidates] * len(texts)
  return [listed(each) for each in candidates]


def checked_batch_size(batch_size: int) -> int:
  """Returns a valid batch size; raises UserError for another."""
  if not isinstance(batch_size, numbers.Integral) or isinstance(batch_size, bool) or batch_size < 1:
    raise UserError(f"batch_size={batch_size!r} is invalid", expected="a whole number from 1")
  return int(batch_size)


def numbered_rows(texts: Sequence[str], fields: Sequence[Mapping[str, Any]] | None = None) -> list[Row]:
  """Returns the rows of texts that were given in Python."""
  return [Row(n, f"texts[{n}]", text, {} if fields is None else fields[n]) for n, text in enumerate(texts)]


@dataclasses.dataclass(frozen=True)
class RejectedRow:
  """A row that cannot be answered, with the reason."""

  number: int
  location: str
  why: str
  fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  remedy: str = ""  # options of `t5like infer` that would help

  @property
  def reason(self) -> str:
    return f"{self.why}. {self.remedy}" if self.remedy else self.why


Rows = Iterator[Row | RejectedRow]


def reject(row: Row, why: str, field: str = TEXT_FIELD, remedy: str = "") -> RejectedRow:
  return RejectedRow(row.number, row.location, why, {field: row.text, **row.fields}, remedy)


def input_format(path: str, given: str | None) -> str:
  """Returns the given format, or the one that the file name suggests."""
  if given:
    return given
  name = Path(path).name.removesuffix(".gz")
  return "jsonl" if name.endswith((".jsonl", ".json", ".ndjson")) else "text"


def read_rows(path: str, kind: str, field: str, words: Sequence[str] = ()) -> Rows:
  """Reads the rows of a file, or of standard input for "-". A list in one of the fields `words` may replace a text."""
  lines = _lines(path)
  return _text_rows(lines) if kind == "text" else _json_rows(lines, field, words)


def is_regular(path: str) -> bool:
  """Whether a path is a regular file, not a pipe."""
  return path != STDIN and os.path.isfile(path)


def count_lines(path: str) -> int | None:
  """Returns the approximate number of rows, for the ETA; None for pipes and compressed files."""
  if path.endswith(".gz") or not is_regular(path):
    return None
  count, last = 0, b"\n"
  with open(path, "rb") as file:
    while block := file.read(2**20):
      count, last = count + block.count(b"\n"), block[-1:]
  return count + (last != b"\n")


def _lines(path: str) -> Iterator[bytes]:
  try:
    with _open(path) as file:
      for number, line in enumerate(file):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        yield line.removeprefix(_BOM) if number == 0 else line
  except (EOFError, gzip.BadGzipFile, zlib.error) as error:
    raise RunError(f"{path} is a truncated or damaged gzip file", because=error) from None


def _open(path: str) -> BinaryIO:
  if path == STDIN:
    return sys.stdin.buffer
  try:
    return gzip.open(path) if path.endswith(".gz") else open(path, "rb")
  except OSError as error:
    raise UserError(f"cannot read {path}", because=error.strerror) from None


def _text_rows(lines: Iterable[bytes]) -> Rows:
  for number, line in enumerate(lines):
    location = f"line {number + 1}"
    try:
      yield Row(number, location, line.decode("utf-8"), {})
    except UnicodeDecodeError as error:
      yield RejectedRow(number, location, _invalid_utf8(error))


def _json_rows(lines: Iterable[bytes], field: str, words: Sequence[str]) -> Rows:
  """Parses JSON lines; skips blank ones."""
  numbers = itertools.count()
  for at, line in enumerate(lines):
    if line.strip():
      yield _json_row(next(numbers), f"line {at + 1}", line, field, words)


def _json_row(number: int, location: str, line: bytes, field: str, words: Sequence[str]) -> Row | RejectedRow:
  try:
    parsed = json.loads(line.decode("utf-8"))
  except UnicodeDecodeError as error:
    return RejectedRow(number, location, _invalid_utf8(error))
  except (ValueError, RecursionError) as error:  # numbers with too many digits, too
    shown = line.decode("utf-8")
    shown = shown if len(shown) <= _SHOWN else f"...{shown[-_SHOWN:]}"
    return RejectedRow(number, location, f"invalid JSON ({error}): {shown}")
  if not isinstance(parsed, dict):
    return RejectedRow(
      number, location, f"expected a JSON object, got {type(parsed).__name__}: {line.decode('utf-8')[:_SHOWN]}"
    )
  if field not in parsed:
    found = words_of(parsed, words)
    if found is not None:
      return Row(number, location, " ".join(found), parsed)
  if field == TEXT_FIELD and field not in parsed and TRAINING_FIELD in parsed:
    field = TRAINING_FIELD
  if field not in parsed:
    known = f"it has {', '.join(parsed) or 'nothing'}"
    close = nearest(field, parsed, count=1)
    return RejectedRow(
      number, location, f"no field {field!r}; {known}" + (f"; --field={close}?" if close else ""), parsed
    )
  if not isinstance(parsed[field], str):
    return RejectedRow(number, location, f"field {field!r}: expected text, got {type(parsed[field]).__name__}", parsed)
  return Row(number, location, parsed[field], {k: v for k, v in parsed.items() if k != field})


def words_of(fields: Mapping[str, Any], names: Sequence[str]) -> list[str] | None:
  """Returns the first list of texts in the fields `names`. Outputs have other `tokens`: a number, or ids."""
  lists = [fields[name] for name in names if isinstance(fields.get(name), list)]
  return next((words for words in lists if all(isinstance(word, str) for word in words)), None)


def _invalid_utf8(error: UnicodeDecodeError) -> str:
  return f"invalid UTF-8: byte 0x{error.object[error.start]:02x} at position {error.start + 1}"


def task_rows(members: Iterable[CachedTask], vocabulary: Vocabulary, examples: int = 0) -> Rows:
  """Yields the examples of a task, or of all tasks of a mixture in turn; at most `examples` of each."""
  numbers = itertools.count()
  members = list(members)
  for member in members:
    cache = member.cache
    has_fields = all("fields" in shard["files"] for shard in cache.manifest["shards"])
    fields = cache.fields() if has_fields else None
    for at in range(min(examples or cache.examples, cache.examples)):
      known = next(fields) if fields else {}
      example = {name: ids.tolist() for name, ids in cache.example(at).items()}
      text = known.get("inputs_pretokenized") or vocabulary.decode(example["inputs"])
      targets = known.get("targets_pretokenized") or vocabulary.decode(example["targets"])
      named = {"task": member.task} if len(members) > 1 else {}
      yield Row(
        next(numbers), f"{member.task} example {at + 1}", text, {**named, "targets": targets},
        example["inputs"], example["targets"],
      )  # fmt: skip


def check_task(members: Iterable[CachedTask], model_name: str) -> None:
  """Raises UserError if a task's features do not fit the model."""
  for member in members:
    if member.cache.manifest.get("targets_vocabulary"):
      raise UserError(
        f"the targets of task {member.task!r} have their own vocabulary, which infer does not support",
        try_=f"t5like eval --task={member.task}, which writes its answers to predictions/",
      )
    if member.cache.manifest.get("answers") == "ids":
      raise UserError(
        f"the targets of task {member.task!r} are plain ids, not text",
        try_=f"t5like eval --task={member.task}, which writes ids to predictions/",
      )
    if not {"inputs", "targets"} <= set(member.cache.features):
      raise UserError(
        f"task {member.task!r} has no inputs for {model_name}",
        features=", ".join(member.cache.features),
        expected="inputs and targets",
        try_="--input=FILE with the text itself" if member.cache.is_corpus else "",
      )


def windows(rows: Rows, size: Callable[[], int], max_wait: float | None = None) -> Iterator[list[Row | RejectedRow]]:
  """Yields lists of at most `size()` rows; with `max_wait`, waits at most that many seconds to fill a list."""
  if max_wait is None:
    while window := list(itertools.islice(rows, size())):
      yield window
    return
  arrived: queue.Queue = queue.Queue(maxsize=_PREFETCH)
  threading.Thread(target=_enqueue, args=(rows, arrived), daemon=True).start()
  window, ended = [], False
  while not ended:
    try:
      row = arrived.get(timeout=max_wait if window else None)
      ended = row is None
      if isinstance(row, BaseException):
        raise row
      window += [] if ended else [row]
    except queue.Empty:
      row = None
    if window and (row is None or len(window) >= size()):
      yield window
      window = []


def _enqueue(rows: Rows, arrived: queue.Queue) -> None:
  try:
    for row in rows:
      arrived.put(row)
    arrived.put(None)
  except BaseException as error:
    arrived.put(error)
