"""The rows that `t5like infer` answers: lines of text, JSON lines, or the examples of a task."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import os
import queue
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from t5like.errors import RunError, UserError, nearest
from t5like.experiments.token_caches import CachedTask
from t5like.vocabularies import Vocabulary

STDIN = "-"
FORMATS = ("text", "jsonl")
TEXT_FIELD = "inputs"
_BOM = b"\xef\xbb\xbf"
_SHOWN = 60
_WAITING = 4096  # rows that are read from a pipe ahead of what is answered


@dataclasses.dataclass(frozen=True)
class Row:
  """One thing to answer."""

  number: int  # from 0, over all rows
  place: str  # where it came from, for people: "line 3"
  text: str
  fields: Mapping[str, Any]  # what else is known of it, to be passed on
  tokens: list[int] | None = None  # where the text is already in tokens
  targets: list[int] | None = None


@dataclasses.dataclass(frozen=True)
class Refused:
  """A row that cannot be answered, and why."""

  number: int
  place: str
  why: str
  fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  remedy: str = ""  # the options of `t5like infer` that would help

  @property
  def reason(self) -> str:
    return f"{self.why}. {self.remedy}" if self.remedy else self.why


Rows = Iterator[Row | Refused]


def refuse(row: Row, why: str, field: str = TEXT_FIELD, remedy: str = "") -> Refused:
  return Refused(row.number, row.place, why, {field: row.text, **row.fields}, remedy)


def input_format(path: str, given: str | None) -> str:
  """By the name of a file where it is not said."""
  if given:
    return given
  name = Path(path).name.removesuffix(".gz")
  return "jsonl" if name.endswith((".jsonl", ".json", ".ndjson")) else "text"


def read_rows(path: str, kind: str, field: str) -> Rows:
  """The rows of a file, or of standard input for "-"."""
  lines = _lines(path)
  return _text_rows(lines) if kind == "text" else _json_rows(lines, field)


def is_regular(path: str) -> bool:
  """A file that is all there, and no pipe whose rows come now and then."""
  return path != STDIN and os.path.isfile(path)


def count_lines(path: str) -> int | None:
  """How many rows there are about, to know how long it will take; None where only reading to the end would tell."""
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
    raise RunError(f"{path} is no whole gzip file", because=error) from None


def _open(path: str) -> BinaryIO:
  if path == STDIN:
    return sys.stdin.buffer
  try:
    return gzip.open(path) if path.endswith(".gz") else open(path, "rb")
  except OSError as error:
    raise UserError(f"cannot read {path}", because=error.strerror) from None


def _text_rows(lines: Iterable[bytes]) -> Rows:
  for number, line in enumerate(lines):
    place = f"line {number + 1}"
    try:
      yield Row(number, place, line.decode("utf-8"), {})
    except UnicodeDecodeError as error:
      yield Refused(number, place, _no_utf8(error))


def _json_rows(lines: Iterable[bytes], field: str) -> Rows:
  """Blank lines are no rows."""
  numbers = itertools.count()
  for at, line in enumerate(lines):
    if line.strip():
      yield _json_row(next(numbers), f"line {at + 1}", line, field)


def _json_row(number: int, place: str, line: bytes, field: str) -> Row | Refused:
  try:
    parsed = json.loads(line.decode("utf-8"))
  except UnicodeDecodeError as error:
    return Refused(number, place, _no_utf8(error))
  except (ValueError, RecursionError) as error:  # numbers of too many digits too
    shown = line.decode("utf-8")
    shown = shown if len(shown) <= _SHOWN else f"...{shown[-_SHOWN:]}"
    return Refused(number, place, f"no whole JSON object ({error}): {shown}")
  if not isinstance(parsed, dict):
    return Refused(number, place, f"no JSON object but {type(parsed).__name__}: {line.decode('utf-8')[:_SHOWN]}")
  if field not in parsed:
    known = f"it has {', '.join(parsed) or 'nothing'}"
    close = nearest(field, parsed, count=1)
    return Refused(number, place, f"no field {field!r}; {known}" + (f"; --field={close}?" if close else ""), parsed)
  if not isinstance(parsed[field], str):
    return Refused(number, place, f"the field {field!r} is no text but {type(parsed[field]).__name__}", parsed)
  return Row(number, place, parsed[field], {k: v for k, v in parsed.items() if k != field})


def _no_utf8(error: UnicodeDecodeError) -> str:
  return f"no UTF-8: byte 0x{error.object[error.start]:02x} at position {error.start + 1}"


def task_rows(members: Iterable[CachedTask], vocabulary: Vocabulary, examples: int = 0) -> Rows:
  """Every example of a task, or of all tasks of a mixture one after the other; at most `examples` of each."""
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
  """Refuses a task whose features the model cannot take."""
  for member in members:
    if member.cache.manifest.get("targets_vocabulary"):
      raise UserError(
        f"the answers of task {member.task!r} are written in a vocabulary of their own, and infer writes the model's",
        try_=f"t5like eval --task={member.task}, which keeps its answers in predictions/",
      )
    if not {"inputs", "targets"} <= set(member.cache.features):
      raise UserError(
        f"task {member.task!r} has no inputs that {model_name} could answer",
        features=", ".join(member.cache.features),
        expected="inputs and targets",
        try_="--input=FILE with the text itself" if member.cache.is_corpus else "",
      )


def windows(rows: Rows, size: Callable[[], int], patience: float | None = None) -> Iterator[list[Row | Refused]]:
  """Rows in lists of at most `size()`. With `patience`, rows that have arrived wait no longer than that for others."""
  if patience is None:
    while window := list(itertools.islice(rows, size())):
      yield window
    return
  arrived: queue.Queue = queue.Queue(maxsize=_WAITING)
  threading.Thread(target=_pass_on, args=(rows, arrived), daemon=True).start()
  window, ended = [], False
  while not ended:
    try:
      row = arrived.get(timeout=patience if window else None)
      ended = row is None
      if isinstance(row, BaseException):
        raise row
      window += [] if ended else [row]
    except queue.Empty:
      row = None
    if window and (row is None or len(window) >= size()):
      yield window
      window = []


def _pass_on(rows: Rows, arrived: queue.Queue) -> None:
  try:
    for row in rows:
      arrived.put(row)
    arrived.put(None)
  except BaseException as error:
    arrived.put(error)
