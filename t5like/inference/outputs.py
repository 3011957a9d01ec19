"""Output files of `t5like infer`. They also record progress: a killed command resumes after the last complete row.

FILE.run.json next to FILE records the model and settings, so that rows of different models never share a file.
"""

from __future__ import annotations

import contextlib
import functools
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
from t5like.inference.rows import RejectedRow, Row, Rows

Header = Mapping[str, Mapping[str, Any]]  # sections of values that must match to resume a file
ERROR = "error"
_STALE_AFTER_SECONDS, _HEARTBEAT = 3600.0, 60.0


class JsonLines:
  """Writes one JSON object per row, in order, to a file or stdout."""

  def __init__(self, path: Path | None, field: str):
    self.path, self._field = path, field
    self._out = None
    self.rejected = 0

  def resume(self, rows: Rows) -> int:
    """Opens the file after its last complete row and skips the rows already done; returns their number."""
    if self.path is None:
      self._out = sys.stdout.buffer if hasattr(sys.stdout, "buffer") else None
      return 0
    done, end = self._read_done()
    check_same_rows(rows, done, self.path)
    with _write_errors(self.path):
      self._out = _open_for_append(self.path)
      self._out.truncate(end)
    return len(done)

  def write(self, rows: Sequence[Row | RejectedRow], answers: Sequence[dict[str, Any] | None]) -> None:
    lines = b"".join(_line(self._object(row, answer)) for row, answer in zip(rows, answers, strict=True))
    self.rejected += sum(isinstance(row, RejectedRow) for row in rows)
    if self._out is None:  # a text-only stdout
      sys.stdout.write(lines.decode())
      return
    with _write_errors(self.path):
      self._out.write(lines)
      self._out.flush()

  def close(self) -> None:
    if self.path is not None and self._out is not None:
      with _write_errors(self.path):  # closing writes what a full disk did not take
        self._out.close()

  def finish(self) -> None:
    """Does nothing: the file is complete."""

  def _object(self, row: Row | RejectedRow, answer: dict[str, Any] | None) -> dict[str, Any]:
    own = {ERROR: f"{row.location}: {row.reason}"} if isinstance(row, RejectedRow) else answer
    given = dict(row.fields) if isinstance(row, RejectedRow) else {self._field: row.text, **row.fields}
    # Input fields whose names clash with ours are kept under another name.
    ours = {"row", ERROR, *own}
    passed = {f"input_{name}" if name in ours else name: value for name, value in given.items()}
    return {"row": row.number, **passed, **own}

  def _read_done(self) -> tuple[array, int]:
    """Returns the digest of each complete row's text (0: rejected) and the end offset of the last one."""
    done, end = array("Q"), 0
    if not self.path.is_file():
      return done, end
    with self.path.open("rb") as file:
      for line in file:
        text = _row_text(line, len(done), self._field)
        if text is None:
          break  # truncated by a kill or crash
        done.append(text if isinstance(text, int) else digest(text))
        self.rejected += text == 0
        end += len(line)
    return done, end


class VectorFile:
  """Writes embeddings to a .npy file, [rows, embed] float32, with NaN for rejected rows.

  Until it is finished, rows are stored in FILE.part, each with a digest of its text.
  """

  def __init__(self, path: Path, width: int):
    self._target, self.rejected = path, 0
    self.path = storage.local_counterpart(path)  # remote files are uploaded when complete
    self.path.parent.mkdir(parents=True, exist_ok=True)
    self._part = _partial_path(path)
    self._record_dtype = np.dtype([("digest", "<u8"), ("vector", "<f4", (width,))])
    self._out = None

  def resume(self, rows: Rows) -> int:
    if self._target.is_file():
      return self._check_finished(rows)
    size = self._part.stat().st_size // self._record_dtype.itemsize if self._part.is_file() else 0
    stored = np.fromfile(self._part, self._record_dtype, count=size) if size else np.zeros(0, self._record_dtype)
    check_same_rows(rows, array("Q", stored["digest"].tolist()), self.path)
    self.rejected = int((stored["digest"] == 0).sum())
    self._out = open(self._part, "ab")
    self._out.truncate(size * self._record_dtype.itemsize)
    return size

  def write(self, rows: Sequence[Row | RejectedRow], answers: Sequence[dict[str, Any] | None]) -> None:
    records = np.zeros(len(rows), self._record_dtype)
    for record, row, answer in zip(records, rows, answers, strict=True):
      rejected = isinstance(row, RejectedRow)
      record["digest"] = 0 if rejected else digest(row.text)
      record["vector"] = np.nan if rejected else answer["embedding"]
      self.rejected += rejected
    with _write_errors(self._part):
      self._out.write(records.tobytes())
      self._out.flush()

  def finish(self) -> None:
    if self._out is None:
      return
    records = np.memmap(self._part, self._record_dtype, "r")
    fresh = self.path.with_name(self.path.name + ".tmp")
    with _write_errors(fresh):
      with open(fresh, "wb") as file:
        np.save(file, np.ascontiguousarray(records["vector"]))
      storage.write_atomic(_finished_path(self._target), f"{_combined_digest(records['digest'])}\n")
    fresh.replace(self.path)
    if self._target is not self.path:
      with _write_errors(self._target):
        self._target.upload(self.path)
    self._part.unlink()

  def _check_finished(self, rows: Rows) -> int:
    """Checks that a finished file was computed from the same texts; returns the number of rows."""
    digests = np.array([0 if isinstance(row, RejectedRow) else digest(row.text) for row in rows], "<u8")
    record = _finished_path(self._target)
    if not record.is_file() or record.read_text().strip() != _combined_digest(digests):
      raise UserError(f"{self._target} was written for another input", try_="another --output, or --overwrite")
    self._part.unlink(missing_ok=True)
    self.rejected = int((digests == 0).sum())
    return len(digests)

  def close(self) -> None:
    if self._out is not None:
      with _write_errors(self.path):
        self._out.close()


def _open_for_append(path: Path) -> Any:
  return storage.open_append(path) if storage.is_remote(path) else open(path, "ab")


@contextlib.contextmanager
def _write_errors(path: Path | None) -> Iterator[None]:
  try:
    yield
  except OSError as error:
    if isinstance(error, BrokenPipeError):
      raise  # the reader of stdout is gone
    raise RunError(
      f"cannot write {path or 'to standard output'}: {error.strerror or error}",
      try_="free some space, then run the same command again to resume",
    ) from None


def digest(text: str) -> int:
  """Returns a hash of a row's text; never 0, which marks a rejected row."""
  hashed = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
  return int.from_bytes(hashed, "little") or 1


def _combined_digest(digests: np.ndarray) -> str:
  return hashlib.sha256(digests.tobytes()).hexdigest()


def _finished_path(path: Path) -> Path:
  return path.with_name(path.name + ".texts.sha256")


def check_same_rows(rows: Rows, done: Sequence[int], path: Path) -> None:
  """Skips the rows already done; raises UserError if the text of one of them differs."""
  for number, expected in enumerate(done):
    row = next(rows, None)
    if row is None:
      raise UserError(
        f"{path} has {len(done):,} rows, but the input only {number:,}", try_="another --output, or --overwrite"
      )
    if expected and (isinstance(row, RejectedRow) or digest(row.text) != expected):
      raise UserError(
        f"{path} was written for another input",
        differs=f"{row.location}: row {number} of the output has another text",
        try_="the original input, another --output, or --overwrite to start over",
      )


@contextlib.contextmanager
def exclusive_writer(path: Path | None) -> Iterator[None]:
  """Locks an output file; raises UserError if another process is writing it."""
  if path is None:
    yield
    return
  if path.exists() and not path.is_file():
    raise UserError(f"--output={path} is not a file", try_="a file, or no --output for standard output")
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
  """Raises UserError if an existing file was not written with this model and these settings."""
  if any(file.exists() for file in (path, _partial_path(path))):
    _compare(path, header_path(path), header)


def start_file(path: Path, header: Header, overwrite: bool) -> None:
  """Records the model and settings of a new file; `overwrite` deletes an existing one first."""
  files = (path, _partial_path(path))
  if overwrite:
    for file in files:
      file.unlink(missing_ok=True)
  if not any(file.exists() for file in files):
    with _write_errors(path):
      storage.write_atomic(header_path(path), json.dumps(header, indent=2, ensure_ascii=False, sort_keys=True) + "\n")


def header_path(path: Path) -> Path:
  return path.with_name(path.name + ".run.json")


def _partial_path(path: Path) -> Path:
  return storage.local_counterpart(path).with_name(path.name + ".part")


def _compare(path: Path, record: Path, header: Header) -> None:
  try:
    stored = storage.read_json(record)
    if not all(isinstance(section, dict) for section in stored.values()):
      raise ValueError("not sections of values")
  except (OSError, ValueError):
    raise UserError(
      f"{path} exists but cannot be resumed: {record.name} is missing or damaged",
      try_="another --output, or --overwrite to replace it",
    ) from None
  differing = []
  now = json.loads(json.dumps(header))
  for section in sorted({*stored, *now}):
    old, new = stored.get(section, {}), now.get(section, {})
    names = sorted({*old, *new})
    differing += [f"{n}: was {old.get(n)!r}, now {new.get(n)!r}" for n in names if old.get(n) != new.get(n)]
  if differing:
    raise UserError(
      f"{path} was written with another model or other settings",
      differs="\n".join(differing),
      try_="the original settings, another --output, or --overwrite to start over",
    )


def _row_text(line: bytes, number: int, field: str) -> str | int | None:
  """Returns the text of a complete row with this number; 0 if it was rejected, None if the line is not such a row."""
  try:
    row = storage.parse_json(line, object) if line.endswith(b"\n") else None
  except ValueError:
    return None
  if not isinstance(row, dict) or row.get("row") != number:
    return None
  text = row.get(f"input_{field}", row.get(field))
  return 0 if ERROR in row else text if isinstance(text, str) else None


def _line(row: dict[str, Any]) -> bytes:
  dumps = functools.partial(json.dumps, default=np.ndarray.tolist)
  try:
    line = dumps(row, ensure_ascii=False, allow_nan=False)
  except ValueError:  # JSON has no nan and no infinity: null
    row = json.loads(dumps(row), parse_constant=lambda _: None)
    line = dumps(row, ensure_ascii=False)
  try:
    return f"{line}\n".encode()
  except UnicodeEncodeError:  # a lone surrogate, valid in JSON but not in UTF-8
    return f"{dumps(row)}\n".encode()
