"""Processes that make pieces of a token cache.

Each has a pipe of its own to the builder, and ends when the builder's end of it closes: a builder that is
killed leaves no orphans behind.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from t5like.errors import UserError

Place = tuple[int, int]
Made = tuple[Place, dict[str, Any]]

# A process takes seconds to start; tasks of so many characters are done before.
_WORTH_A_PROCESS = 1 << 23


class PieceWorkers:
  """Gives pieces to idle workers; the first small ones, and all where there are no workers, are made here."""

  def __init__(self, make: Callable[[str, Sequence[Any]], dict[str, Any]], count: int):
    self._make, self._count = make, count
    self._characters = 0
    self._workers: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []
    self._busy: dict[Connection, Place] = {}

  def __enter__(self) -> PieceWorkers:
    return self

  def __exit__(self, *unused: object) -> None:
    for process, connection in self._workers:
      connection.close()
      process.terminate()
    for process, _ in self._workers:
      process.join()

  def make(self, place: Place, name: str, examples: Sequence[Any], characters: int) -> Iterator[Made]:
    """Has a piece made; yields those that are ready meanwhile."""
    self._characters += characters
    if not self._count or (self._characters < _WORTH_A_PROCESS and not self._workers):
      yield place, self._make(name, examples)
      return
    yield from self._ready(block=len(self._busy) == self._count)
    idle = next((c for _, c in self._workers if c not in self._busy), None) or self._start_one()
    self._busy[idle] = place
    try:
      idle.send((name, examples))
    except BrokenPipeError:
      raise self._died(idle) from None

  def finish(self) -> Iterator[Made]:
    """Those not yet yielded."""
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

  def _ready(self, block: bool) -> list[Made]:
    made = []
    for connection in wait(list(self._busy), timeout=None if block else 0):
      try:
        result = connection.recv()
      except (EOFError, ConnectionResetError):
        raise self._died(connection) from None
      if isinstance(result, BaseException):
        raise result
      made.append((self._busy.pop(connection), result))
    return made

  def _died(self, connection: Connection) -> UserError:
    process = next(p for p, c in self._workers if c is connection)
    process.join(timeout=5)
    status = process.exitcode
    how = signal.Signals(-status).name if status and status < 0 else f"status {status}"
    return UserError(
      "a worker of the token cache ended unexpectedly",
      because=f"{how}, perhaps for lack of memory" if how == "SIGKILL" else how,
      try_="the same command goes on where it stopped; fewer --workers need less memory",
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
