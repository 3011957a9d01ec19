"""Sentences with their vectors, on disk: a search among millions of them needs little memory."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from t5like.errors import UserError
from t5like.inference.rows import Row


class Sentences:
  """Sentences by number, (text, line), and their `vectors` [sentences, width]."""

  vectors: np.ndarray

  def __getitem__(self, number: int) -> tuple[str | None, int]:
    raise NotImplementedError


class SpooledSentences(Sentences):
  """Sentences that are added while they are embedded, in temporary files."""

  def __init__(self, width: int):
    self._texts, self._vectors = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    self._ends, self._lines, self._width = array("Q", [0]), array("Q"), width

  def add(self, rows: Sequence[Row], vectors: Sequence[np.ndarray]) -> None:
    for row, vector in zip(rows, vectors, strict=True):
      self._ends.append(self._ends[-1] + self._texts.write(row.text.encode("utf-8", "surrogatepass")))
      self._lines.append(row.number + 1)
      self._vectors.write(np.asarray(vector, "<f4").tobytes())

  def __len__(self) -> int:
    return len(self._lines)

  def finish(self) -> SpooledSentences:
    """Makes `vectors` readable, after the last sentence."""
    self._vectors.flush()
    self.vectors = np.memmap(self._vectors, "<f4", "r", shape=(len(self), self._width))
    return self

  def __getitem__(self, number: int) -> tuple[str | None, int]:
    begin, end = self._ends[number], self._ends[number + 1]
    self._texts.seek(begin)
    return self._texts.read(end - begin).decode("utf-8", "surrogatepass"), self._lines[number]


class VectorsOnly(Sentences):
  """The vectors of a .npy file, without texts."""

  def __init__(self, path: str | Path):
    try:
      self.vectors = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
      raise UserError(f"{path} is not a file of vectors", because=error, expected="a .npy file") from None
    if self.vectors.ndim != 2 or not np.issubdtype(self.vectors.dtype, np.floating) or not len(self.vectors):
      shape = f"{self.vectors.dtype} {list(self.vectors.shape)}"
      raise UserError(f"{path} does not hold vectors", found=shape, expected="numbers [sentences, width]")

  def __getitem__(self, number: int) -> tuple[str | None, int]:
    return None, number + 1
