"""SuperGLUE's JSON lines (Wang et al. 2019)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from t5like.tasks.preparation.datasets import (
  Dataset,
  KeyedRow,
  SourceSplit,
  check_row,
  check_unique,
  json_objects,
  splits_of_files,
)
from t5like.tasks.preparation.files import Folder, OriginalFile

_FOLDERS = {
  "boolq": "BoolQ",
  "cb": "CB",
  "copa": "COPA",
  "multirc": "MultiRC",
  "record": "ReCoRD",
  "rte": "RTE",
  "wic": "WiC",
  "wsc": "WSC",
  "wsc.fixed": "WSC",
  "axb": "AX-b",
  "axg": "AX-g",
}
_STEMS = {"train": "train", "validation": "val", "test": "test"}

# Spans of WSC whose words are not contiguous in the text; `wsc.fixed` leaves them unchanged.
_SCATTERED_SPANS = ("Kamenev and Zinoviev", "Kamenev, Zinoviev, and Stalin")


def find_splits(dataset: Dataset, folder: Folder) -> list[SourceSplit]:
  top = _FOLDERS[dataset.config]
  if dataset.config in ("axb", "axg"):
    names = {"test": [f"{top}/{top}.jsonl"]}
  else:
    names = {split: [f"{top}/{stem}.jsonl"] for split, stem in _STEMS.items()}
  return splits_of_files(folder, names, functools.partial(_rows, dataset=dataset))


def _rows(split: SourceSplit, dataset: Dataset, file: OriginalFile) -> Iterator[KeyedRow]:
  def rows_with_lines() -> Iterator[tuple[OriginalFile, int, KeyedRow]]:
    for line, record in json_objects(file):
      try:
        for key, row in _examples(dataset.config, record, split.name == "test"):
          yield file, line, (key, check_row(dataset.features, row, file, line))
      except _Missing as missing:
        raise file.malformed(line, f"a field {missing.args[0]!r}", ", ".join(record)) from None

  # A line of ReCoRD or MultiRC has several rows, each with an id.
  return check_unique(rows_with_lines())


class _Missing(Exception):
  """A required field is missing."""


def _member(record: Any, name: str) -> Any:
  if not isinstance(record, dict) or name not in record:
    raise _Missing(name)
  return record[name]


def _examples(config: str, record: dict[str, Any], is_test: bool) -> Iterator[tuple[int | str, dict[str, Any]]]:
  if config == "multirc":
    yield from _multirc(record)
  elif config == "record":
    yield from _record(record)
  else:
    row = {**record, **_member(record, "target")} if config.startswith("wsc") else dict(record)
    if config == "wsc.fixed":
      row = _with_spans_in_text(row)
    if "label" not in record and not is_test:
      raise _Missing("label")
    row["label"] = _label(config, record["label"]) if "label" in record else -1
    yield _member(record, "idx"), row


def _label(config: str, value: Any) -> Any:
  if config == "copa":
    return {0: "choice1", 1: "choice2"}.get(value, value)
  return str(value) if isinstance(value, bool) else value


def _multirc(record: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
  passage = _member(record, "passage")
  for question in _member(passage, "questions"):
    for answer in _member(question, "answers"):
      idx = {
        "paragraph": _member(record, "idx"),
        "question": _member(question, "idx"),
        "answer": _member(answer, "idx"),
      }
      label = answer.get("label")
      yield (
        f"{idx['paragraph']}_{idx['question']}_{idx['answer']}",
        {
          "paragraph": _member(passage, "text"),
          "question": _member(question, "question"),
          "answer": _member(answer, "text"),
          "label": -1 if label is None else str(bool(label)),
          "idx": idx,
        },
      )


def _record(record: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields a row per query. Entities and answers are sets in alphabetical order."""
  passage = _member(record, "passage")
  text = _member(passage, "text")
  # The end of an entity is inclusive.
  entities = {text[_member(e, "start") : _member(e, "end") + 1] for e in _member(passage, "entities")}
  for query in _member(record, "qas"):
    yield (
      _member(query, "idx"),
      {
        "passage": text,
        "query": _member(query, "query"),
        "entities": sorted(entities),
        "answers": sorted({_member(a, "text") for a in query.get("answers", ())}),
        "idx": {"passage": _member(record, "idx"), "query": query["idx"]},
      },
    )


def _with_spans_in_text(row: dict[str, Any]) -> dict[str, Any]:
  """Fixes spans that differ from the text, as in `wsc.fixed`: case of the first letter, line ends, final period."""
  text = _member(row, "text")
  for span in ("span1", "span2"):
    words, index = _member(row, f"{span}_text"), _member(row, f"{span}_index")
    if words in text or words in _SCATTERED_SPANS:
      continue
    first = text.split()[index]
    words = (words[0].lower() if first[0].islower() else words[0].upper()) + words[1:]
    row[f"{span}_text"] = words.rstrip(".").replace("\n", " ")
  return row
