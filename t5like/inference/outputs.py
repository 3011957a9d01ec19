"""Where answers go. A file of them is also the record of what is done: a killed command goes on after its last row.

Beside FILE lies FILE.run.json, which says what model and settings it was begun with: rows of another model or of
other settings never get into one file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5like.errors import RunError, UserError
from t5like.files import storage
from t5like.files.locks import LockHeld, hold
from t5like.inference.rows import Refused, Row, Rows
from t5like.training.records.model_dir import write_text

Header = Mapping[str, Mapping[str, Any]]  # sections of what must not change between two parts of a file
ERROR = "error"
_STALE_AFTER_SECONDS, _HEARTBEAT = 3600.0, 60.0


class JsonLines:
  """A JSON object a row, to a file or to standard output, in the order of the rows."""

  def __init__(self, path: Path | None, field: str):
    self.path, self._field = path, field
    self._out = None
    self.refused = 0

  def begin(self, rows: Rows) -> int:
    """Opens the file after its last whole row, and takes the rows that are done from `rows`. How many there were."""
    if self.path is None:
      self._out = sys.stdout.buffer if hasattr(sys.stdout, "buffer") else None
      return 0
    done, end = self._read_done()
    check_same_rows(rows, done, self.path)
    self._out = _appending(self.path)
    self._out.truncate(end)
    return len(done)

  def write(self, rows: Sequence[Row | Refused], answers: Sequence[dict[str, Any] | None]) -> None:
    lines = b"".join(_line(self._object(row, answer)) for row, answer in zip(rows, answers, strict=True))
    self.refused += sum(isinstance(row, Refused) for row in rows)
    if self._out is None:  # a standard output of text alone
      sys.stdout.write(lines.decode())
      return
    with _writing(self.path):
      self._out.write(lines)
      self._out.flush()

  def close(self) -> None:
    if self.path is not None and self._out is not None:
      self._out.close()

  def finish(self) -> None:
    """All rows are there."""

  def _object(self, row: Row | Refused, answer: dict[str, Any] | None) -> dict[str, Any]:
    own = {ERROR: f"{row.place}: {row.reason}"} if isinstance(row, Refused) else answer
    given = dict(row.fields) if isinstance(row, Refused) else {self._field: row.text, **row.fields}
    # A field of the input that is called as one of ours, as in a file that was written here, keeps its value.
    passed = {f"input_{name}" if name in own or name == "row" else name: value for name, value in given.items()}
    return {"row": row.number, **passed, **own}

  def _read_done(self) -> tuple[array, int]:
    """The digest of each whole row's text (0: refused), and where the last of them ends."""
    done, end = array("Q"), 0
    if not self.path.is_file():
      return done, end
    with self.path.open("rb") as file:
      for line in file:
        text = _done_text(line, len(done), self._field)
        if text is None:
          break  # torn by a kill, or by a machine that went down
        done.append(text if isinstance(text, int) else digest(text))
        self.refused += text == 0
        end += len(line)
    return done, end


class VectorFile:
  """Embeddings as a .npy file, [rows, embed] float32, a row of NaN for a text that was refused.

  While it is written rows lie in FILE.part, each with a digest of its text.
  """

  def __init__(self, path: Path, width: int):
    self._target, self.refused = path, 0
    self.path = _collected_in(path)
    self.path.parent.mkdir(parents=True, exist_ok=True)
    self._part = _part_of(path)
    self._kind = np.dtype([("digest", "<u8"), ("vector", "<f4", (width,))])
    self._out = None

  def begin(self, rows: Rows) -> int:
    if self._target.is_file():
      return self._check_finished(rows)
    size = self._part.stat().st_size // self._kind.itemsize if self._part.is_file() else 0
    stored = np.fromfile(self._part, self._kind, count=size) if size else np.zeros(0, self._kind)
    check_same_rows(rows, array("Q", stored["digest"].tolist()), self.path)
    self.refused = int((stored["digest"] == 0).sum())
    self._out = open(self._part, "ab")
    self._out.truncate(size * self._kind.itemsize)
    return size

  def write(self, rows: Sequence[Row | Refused], answers: Sequence[dict[str, Any] | None]) -> None:
    records = np.zeros(len(rows), self._kind)
    for record, row, answer in zip(records, rows, answers, strict=True):
      refused = isinstance(row, Refused)
      record["digest"] = 0 if refused else digest(row.text)
      record["vector"] = np.nan if refused else answer["embedding"]
      self.refused += refused
    with _writing(self._part):
      self._out.write(records.tobytes())
      self._out.flush()

  def finish(self) -> None:
    if self._out is None:
      return
    records = np.memmap(self._part, self._kind, "r")
    fresh = self.path.with_name(self.path.name + ".tmp")
    with _writing(fresh), open(fresh, "wb") as file:
      np.save(file, np.ascontiguousarray(records["vector"]))
    write_text(_finished_path(self._target), f"{_digest_of_all(records['digest'])}\n")
    fresh.replace(self.path)
    if self._target is not self.path:
      with _writing(self._target):
        self._target.upload(self.path)
    self._part.unlink()

  def _check_finished(self, rows: Rows) -> int:
    """A file that has all its rows has them of the same texts."""
    digests = np.array([0 if isinstance(row, Refused) else digest(row.text) for row in rows], "<u8")
    beside = _finished_path(self._target)
    if not beside.is_file() or beside.read_text().strip() != _digest_of_all(digests):
      raise UserError(f"{self._target} is finished, with another input", try_="another --output, or --overwrite")
    self._part.unlink(missing_ok=True)
    self.refused = int((digests == 0).sum())
    return len(digests)

  def close(self) -> None:
    if self._out is not None:
      self._out.close()


def _appending(path: Path) -> Any:
  return storage.open_append(path) if storage.is_remote(path) else open(path, "ab")


@contextlib.contextmanager
def _writing(path: Path | None) -> Iterator[None]:
  try:
    yield
  except OSError as error:
    if path is None:
      raise  # a reader of standard output that went away
    raise RunError(
      f"cannot write {path}: {error.strerror or error}",
      try_="make room; the same command then goes on where this one was",
    ) from None


def digest(text: str) -> int:
  """Of a row's text; never 0, which stands for a row that was refused."""
  hashed = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
  return int.from_bytes(hashed, "little") or 1


def _digest_of_all(digests: np.ndarray) -> str:
  return hashlib.sha256(digests.tobytes()).hexdigest()


def _finished_path(path: Path) -> Path:
  return path.with_name(path.name + ".texts.sha256")


def check_same_rows(rows: Rows, done: Sequence[int], path: Path) -> None:
  """Takes as many rows as are done, and refuses to go on where one of them has another text."""
  for number, expected in enumerate(done):
    row = next(rows, None)
    if row is None:
      raise UserError(
        f"{path} has {len(done):,} rows, the input only {number:,}", try_="another --output, or --overwrite"
      )
    if expected and (isinstance(row, Refused) or digest(row.text) != expected):
      raise UserError(
        f"{path} was begun with another input",
        differs=f"{row.place}: its row {number} answers another text",
        try_="the input it was begun with, another --output, or --overwrite to begin anew",
      )


@contextlib.contextmanager
def sole_writer(path: Path | None) -> Iterator[None]:
  """Refuses a file that another process is writing."""
  if path is None:
    yield
    return
  if path.exists() and not path.is_file():
    raise UserError(f"--output={path} is no file", try_="a file, or no --output for standard output")
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(hold(path.with_name(path.name + ".lock"), _STALE_AFTER_SECONDS, heartbeat=_HEARTBEAT))
    except LockHeld as other:
      who = " ".join(f"{k} {v}" for k, v in other.holder.items())
      raise UserError(
        f"another process is writing {path}", holder=who, try_="wait for it, or another --output"
      ) from None
    except OSError as error:
      raise UserError(f"cannot write {path}", because=error.strerror) from None
    yield


def check_header(path: Path, header: Header) -> None:
  """Refuses a file that was begun with another model or other settings, or by somebody else."""
  if any(file.exists() for file in (path, _part_of(path))):
    _compare(path, header_path(path), header)


def begin_file(path: Path, header: Header, overwrite: bool) -> None:
  """Writes down what a new file is begun with; `overwrite` makes it a new one."""
  files = (path, _part_of(path))
  if overwrite:
    for file in files:
      file.unlink(missing_ok=True)
  if not any(file.exists() for file in files):
    write_text(header_path(path), json.dumps(header, indent=2, ensure_ascii=False, sort_keys=True) + "\n")


def header_path(path: Path) -> Path:
  return path.with_name(path.name + ".run.json")


def _collected_in(path: Path) -> Path:
  """Vectors for a store are collected in this machine's copy, and sent when all are there."""
  return storage.mirror_folder(path) if storage.is_remote(path) else path


def _part_of(path: Path) -> Path:
  return _collected_in(path).with_name(path.name + ".part")


def _compare(path: Path, beside: Path, header: Header) -> None:
  try:
    begun = json.loads(beside.read_text(encoding="utf-8"))
  except (OSError, ValueError):
    raise UserError(
      f"{path} is there, and not begun by this command: {beside.name} is missing or damaged",
      try_="another --output, or --overwrite to lose what is there",
    ) from None
  differing = []
  now = json.loads(json.dumps(header))
  for section in sorted({*begun, *now}):
    old, new = begun.get(section, {}), now.get(section, {})
    names = sorted({*old, *new})
    differing += [f"{n}: begun with {old.get(n)!r}, now {new.get(n)!r}" for n in names if old.get(n) != new.get(n)]
  if differing:
    raise UserError(
      f"{path} was begun with another model or other settings",
      differs="\n".join(differing),
      try_="the same as before, another --output, or --overwrite to begin anew",
    )


def _done_text(line: bytes, number: int, field: str) -> str | int | None:
  """The text of a whole row that has the right number; 0 where it was refused, None where the line is no such row."""
  try:
    row = json.loads(line) if line.endswith(b"\n") else None
  except ValueError:
    return None
  if not isinstance(row, dict) or row.get("row") != number:
    return None
  text = row.get(f"input_{field}", row.get(field))
  return 0 if ERROR in row else text if isinstance(text, str) else None


def _line(row: dict[str, Any]) -> bytes:
  try:
    return (json.dumps(row, ensure_ascii=False) + "\n").encode()
  except UnicodeEncodeError:  # half a surrogate pair, which JSON can say and UTF-8 cannot
    return (json.dumps(row) + "\n").encode()
