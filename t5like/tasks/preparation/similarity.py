"""Sentence pairs with similarity scores: SICK (Marelli et al. 2014) and SemEval's STS of 2012 to 2016.

Rows are those of GLUE's STS-B: `sentence1`, `sentence2`, `label` (the score) and `idx`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

import numpy as np
import tensorflow_datasets as tfds

from t5like.tasks.preparation.datasets import Dataset, KeyedRow, SourceSplit
from t5like.tasks.preparation.files import Folder, OriginalFile

YEARS = ("12", "13", "14", "15", "16")
# A single file with the split of each row, or the files of SemEval, which have a few more rows.
_SICK = "SICK.txt"
_SICK_FILES = {"train": "SICK_train.txt", "validation": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
_SICK_SETS = {"TRAIN": "train", "TRIAL": "validation", "TEST": "test"}
_INPUT = re.compile(r"STS(?:20\d\d)?\.input\.(.+)\.txt", re.IGNORECASE)
_ENTAILMENT = ("ENTAILMENT", "NEUTRAL", "CONTRADICTION")


def sick_features() -> tfds.features.FeaturesDict:
  """Returns the features of SICK: those of pairs, and the entailment label."""
  entailment = tfds.features.ClassLabel(names=[name.lower() for name in _ENTAILMENT])
  return tfds.features.FeaturesDict({**_pair_features(), "entailment": entailment})


def sts_features() -> tfds.features.FeaturesDict:
  """Returns the features of a year of STS: those of pairs, and the name of their source, such as `headlines`."""
  return tfds.features.FeaturesDict({**_pair_features(), "source": tfds.features.Text()})


def _pair_features() -> dict[str, tfds.features.FeatureConnector]:
  return {
    "sentence1": tfds.features.Text(),
    "sentence2": tfds.features.Text(),
    "label": tfds.features.Scalar(np.float32),
    "idx": tfds.features.Scalar(np.int32),
  }


def find_sick(dataset: Dataset, folder: Folder) -> list[SourceSplit]:
  del dataset
  combined = folder.find(_SICK, f"SICK/{_SICK}")
  splits = []
  for split, name in _SICK_FILES.items():
    file = folder.file_of(split, name, f"SICK/{name}") or combined
    splits.append(SourceSplit(split, functools.partial(_sick_rows, file=file) if file else None, f"{name}, or {_SICK}"))
  return splits


def _sick_rows(split: SourceSplit, file: OriginalFile) -> Iterator[KeyedRow]:
  columns: list[str] = []
  for line, text in file.lines(newline="\n"):
    cells = text.rstrip("\r").split("\t")
    if not columns:
      columns = cells
      # The two releases name the entailment differently.
      entailment = "entailment_judgment" if "entailment_judgment" in columns else "entailment_label"
      needed = ("pair_ID", "sentence_A", "sentence_B", "relatedness_score", entailment)
      if missing := [name for name in needed if name not in columns]:
        raise file.malformed(line, f"a column {missing[0]!r}", ", ".join(columns))
      continue
    if not text.strip():
      continue
    if len(cells) != len(columns):
      raise file.malformed(line, f"{len(columns)} columns separated by tabs", f"{len(cells)}: {text}")
    row = dict(zip(columns, cells, strict=True))
    if _SICK_SETS.get(row.get("SemEval_set", "").strip(), split.name) != split.name:
      continue
    if row[entailment] not in _ENTAILMENT:
      raise file.malformed(line, f"one of {', '.join(_ENTAILMENT)}", row[entailment])
    if not row["pair_ID"].isdigit():
      raise file.malformed(line, "a number as pair_ID", row["pair_ID"])
    number = int(row["pair_ID"])
    yield (
      number,
      {
        "sentence1": row["sentence_A"],
        "sentence2": row["sentence_B"],
        "label": _score(row["relatedness_score"], file, line),
        "entailment": row[entailment].lower(),
        "idx": number,
      },
    )


def find_sts(dataset: Dataset, folder: Folder) -> list[SourceSplit]:
  """Finds the files of a year, whose pairs form one test set ("all" in the literature)."""
  pairs = []
  for place in (f"STS{dataset.config}-en-test", f"20{dataset.config}", "."):
    root = folder.root / place
    if root.is_dir() and (pairs := _score_files(Folder(root))):
      break
  looked_for = f"STS{dataset.config}-en-test/STS.input.*.txt with STS.gs.*.txt"
  return [SourceSplit("test", functools.partial(_sts_rows, pairs=pairs) if pairs else None, looked_for)]


def _score_files(folder: Folder) -> list[tuple[str, OriginalFile, OriginalFile]]:
  """Returns source, sentences and scores; ALL, in which 2012 repeats its other files, is left out."""
  found = []
  for file in folder.all_files():
    match = _INPUT.fullmatch(file.name)
    if match and match[1] != "ALL" and (scores := folder.find(file.name.replace(".input.", ".gs."))):
      found.append((match[1], file, scores))
  return found


def _sts_rows(split: SourceSplit, pairs: list[tuple[str, OriginalFile, OriginalFile]]) -> Iterator[KeyedRow]:
  index = 0
  for source, sentences, scores in pairs:
    texts, values = list(sentences.lines(newline="\n")), list(scores.lines(newline="\n"))
    if len(texts) != len(values):
      raise sentences.malformed(len(texts), f"{len(values):,} lines, as in {scores.path.name}", f"{len(texts):,} lines")
    for (line, text), (_, value) in zip(texts, values, strict=True):
      if not value.strip():  # since 2015 only some of the pairs have a score
        split.left_out["without a score"] += 1
        continue
      cells = text.rstrip("\r").split("\t")  # 2016 has more columns: the origin of each sentence
      if len(cells) < 2:
        raise sentences.malformed(line, "two sentences separated by a tab", text)
      score = _score(value, scores, line)
      yield index, {"sentence1": cells[0], "sentence2": cells[1], "label": score, "source": source, "idx": index}
      index += 1


def _score(text: str, file: OriginalFile, line: int) -> np.float32:
  try:
    score = np.float32(text)
  except ValueError:
    score = np.float32("nan")
  if not 0 <= score <= 5:
    raise file.malformed(line, "a score from 0 to 5", text)
  return score
