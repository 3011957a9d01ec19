"""The result of writing a leaderboard's file."""

from __future__ import annotations

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class WrittenFiles:
  """A file of a submission, with remarks for the user."""

  path: Path
  rows: int | None  # None: an archive of the others
  warning: str = ""
  note: str = ""
