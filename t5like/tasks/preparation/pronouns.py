"""Definite pronoun resolution: blocks of sentence, pronoun, two candidates, correct one (Rahman and Ng 2012)."""

from __future__ import annotations

from collections.abc import Iterator

from t5like.tasks.preparation.datasets import Dataset, KeyedRow, SourceSplit, splits_of_files
from t5like.tasks.preparation.files import Folder, OriginalFile


def find_splits(dataset: Dataset, folder: Folder) -> list[SourceSplit]:
  del dataset
  return splits_of_files(folder, {"train": ["train.c.txt"], "test": ["test.c.txt"]}, _rows)


def _rows(split: SourceSplit, file: OriginalFile) -> Iterator[KeyedRow]:
  del split
  for number, block in enumerate(file.blocks()):
    line = block[0][0]
    if len(block) != 4:
      raise file.malformed(line, "four lines: sentence, pronoun, candidates, correct one", f"{len(block)} lines")
    sentence, pronoun, pair, right = (text.strip() for _, text in block)
    candidates = [candidate.strip() for candidate in pair.split(",")]
    if len(candidates) != 2:
      raise file.malformed(line + 2, "two candidates separated by a comma", pair)
    if right not in candidates:
      raise file.malformed(line + 3, f"one of the candidates: {pair}", right)
    yield (
      number,
      {
        "sentence": sentence,
        "pronoun": pronoun,
        "candidates": candidates,
        "label": candidates.index(right),
      },
    )
