"""Worker processes that build pieces of a token cache.

Each exits when the builder's end of its pipe closes: a killed builder leaves no orphans behind.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from t5like.errors import UserError
from t5like.files.child_processes import ending

PieceId = tuple[int, int]  # part, piece
Result = tuple[PieceId, dict[str, Any]]  # with the entry of the shard

# A process takes seconds to start; fewer characters are done sooner without one.
_MIN_CHARACTERS_FOR_WORKERS = 1 << 23


class PieceWorkers:
  """Distributes pieces to idle workers; builds the first few, or all if there are no workers, in this process."""

  def __init__(self, make: Callable[[str, Sequence[Any]], dict[str, Any]], count: int):
    self._make, self._count = make, count
    self._characters = 0
    self._workers: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []
    self._busy: dict[Connection, PieceId] = {}

  def __enter__(self) -> PieceWorkers:
    return self

  def __exit__(self, *unused: object) -> None:
    for process, connection in self._workers:
      connection.close()
      process.terminate()
    for process, _ in self._workers:
      process.join()

  def submit(self, piece: PieceId, name: str, examples: Sequence[Any], characters: int) -> Iterator[Result]:
    """Submits a piece; yields the results that are ready."""
    self._characters += characters
    if not self._count or (self._characters < _MIN_CHARACTERS_FOR_WORKERS and not self._workers):
      yield piece, self._make(name, examples)
      return
    yield from self._ready(block=len(self._busy) == self._count)
    idle = next((c for _, c in self._workers if c not in self._busy), None) or self._start_one()
    self._busy[idle] = piece
    try:
      idle.send((name, examples))
    except BrokenPipeError:
      raise self._died(idle) from None

  def finish(self) -> Iterator[Result]:
    """Yields the remaining results."""
    while self._busy:
      yield from self._ready(block=True)

  def _start_one(self) -> Connection:
    context = multiprocessing.get_context("spawn")  # a fork of a process with TensorFlow's threads may hang
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, self._make), daemon=True)
    process.start()
    theirs.close()
    self._workers.append((process, ours))
    return ours

  def _ready(self, block: bool) -> list[Result]:
    ready = []
    for connection in wait(list(self._busy), timeout=None if block else 0):
      try:
        result = connection.recv()
      except (EOFError, ConnectionResetError):
        raise self._died(connection) from None
      if isinstance(result, BaseException):
        raise result
      ready.append((self._busy.pop(connection), result))
    return ready

  def _died(self, connection: Connection) -> UserError:
    process = next(p for p, c in self._workers if c is connection)
    process.join(timeout=5)
    return UserError(
      "a token cache worker died",
      because=ending(process.exitcode),
      try_="run the same command again to resume; fewer --workers need less memory",
    )


def _work(connection: Connection, make: Callable[[str, Sequence[Any]], dict[str, Any]]) -> None:
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the builder decides
  while True:
    try:
      name, examples = connection.recv()
    except (EOFError, ConnectionResetError):
      return
    try:
      result: Any = make(name, examples)
    except Exception as error:
      result = error
    try:
      connection.send(result)
    except (BrokenPipeError, ConnectionResetError):
      return
