"""SQuAD's JSON files, 1.1 and 2.0 (Rajpurkar et al. 2016, 2018)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from t5like.files import storage
from t5like.tasks.preparation.datasets import (
  Dataset,
  KeyedRow,
  SourceSplit,
  check_row,
  check_unique,
  json_problem,
  splits_of_files,
)
from t5like.tasks.preparation.files import Folder, OriginalFile

_STEMS = {"train": "train", "validation": "dev"}


def find_splits(dataset: Dataset, folder: Folder) -> list[SourceSplit]:
  files = {split: f"{stem}-{dataset.config}.json" for split, stem in _STEMS.items()}
  names = {split: (name, f"squad/{name}") for split, name in files.items()}
  return splits_of_files(folder, names, functools.partial(_rows, dataset=dataset))


def _rows(split: SourceSplit, dataset: Dataset, file: OriginalFile) -> Iterator[KeyedRow]:
  del split
  questions = _questions(file, dataset.config)
  if dataset.config == "v1.1":
    questions = _merge_answers(questions)
  rows = ((file, place, (row["id"], check_row(dataset.features, row, file, place))) for place, row in questions)
  return check_unique(rows)


def _questions(file: OriginalFile, version: str) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields each question with its path in the file, `data[3].paragraphs[0].qas[2]`."""
  try:
    content = storage.parse_json(file.text(), object)
  except ValueError as error:
    raise file.malformed(getattr(error, "lineno", 1), f"JSON ({json_problem(error)})", "") from None
  for a, article in enumerate(_list(content, "data", file, "the file")):
    place = f"data[{a}]"
    for p, paragraph in enumerate(_list(article, "paragraphs", file, place)):
      inner = f"{place}.paragraphs[{p}]"
      for q, question in enumerate(_list(paragraph, "qas", file, inner)):
        where = f"{inner}.qas[{q}]"
        row = {"title": article.get("title", ""), "context": paragraph.get("context"), "plausible_answers": []}
        if not isinstance(question, dict):
          raise file.malformed(where, "an object", question)
        if version == "v2.0" and "is_impossible" not in question:
          raise file.malformed(where, "a field 'is_impossible', which every question of SQuAD 2.0 has", "none")
        if missing := [m for m in ("id", "question", "answers") if m not in question]:
          raise file.malformed(where, f"a field {missing[0]!r}", ", ".join(question))
        yield where, row | question


def _list(value: Any, member: str, file: OriginalFile, place: str) -> list[Any]:
  found = value.get(member) if isinstance(value, dict) else None
  if not isinstance(found, list):
    raise file.malformed(place, f"an object with a list {member!r}", value)
  return found


def _merge_answers(questions: Iterator[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, dict[str, Any]]]:
  """Merges the answers of entries with the same id into one question."""
  by_id: dict[str, tuple[str, dict[str, Any]]] = {}
  for place, question in questions:
    if question["id"] in by_id:
      kept = by_id[question["id"]][1]
      kept["answers"] = [*kept["answers"], *question["answers"]]
    else:
      by_id[question["id"]] = (place, question)
  yield from by_id.values()
