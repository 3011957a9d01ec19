"""AllNLI: SNLI (Bowman et al. 2015) and MultiNLI (Williams et al. 2018) as one data set, from their JSON lines.

`pairs` has a premise, a hypothesis and a label per row; `triplets` (anchor, positive, negative) are for sentence
embeddings: a sentence, one that it entails and one that it contradicts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow_datasets as tfds

from t5like.tasks.preparation.datasets import Dataset, KeyedRow, SourceSplit, json_objects
from t5like.tasks.preparation.files import Folder, OriginalFile

LABELS = ("entailment", "neutral", "contradiction")
# MultiNLI's own test labels are withheld: its mismatched development set takes their place, as in
# sentence-transformers.
_FILES = {
  "train": ("snli_1.0_train", "multinli_1.0_train"),
  "validation": ("snli_1.0_dev", "multinli_1.0_dev_matched"),
  "test": ("snli_1.0_test", "multinli_1.0_dev_mismatched"),
}


def features(config: str) -> tfds.features.FeaturesDict:
  if config == "triplets":
    return tfds.features.FeaturesDict({name: tfds.features.Text() for name in ("anchor", "positive", "negative")})
  return tfds.features.FeaturesDict(
    {
      "premise": tfds.features.Text(),
      "hypothesis": tfds.features.Text(),
      "label": tfds.features.ClassLabel(names=list(LABELS)),
      "idx": tfds.features.Scalar(np.int32),
    }
  )


def find_splits(dataset: Dataset, folder: Folder) -> list[SourceSplit]:
  splits = []
  make = _triplets if dataset.config == "triplets" else _pairs
  for split, stems in _FILES.items():
    names = [f"{stem.partition('_')[0]}_1.0/{stem}.jsonl" for stem in stems]
    given = folder.given.get(split)
    # A part of the data is better than none; the table of sizes shows what is missing.
    files = given or [file for name in names if (file := folder.find(name))]
    splits.append(SourceSplit(split, functools.partial(make, files=files) if files else None, " and ".join(names)))
  return splits


def _pairs(split: SourceSplit, files: list[OriginalFile]) -> Iterator[KeyedRow]:
  for number, (premise, hypothesis, label) in enumerate(_labeled(split, files)):
    yield number, {"premise": premise, "hypothesis": hypothesis, "label": label, "idx": number}


def _triplets(split: SourceSplit, files: list[OriginalFile]) -> Iterator[KeyedRow]:
  yield from enumerate(triplets(_labeled(split, files)))


def triplets(labeled: Iterable[tuple[str, str, str]]) -> Iterator[dict[str, str]]:
  """Yields two triplets for every sentence with an entailed and a contradicted one, with each as the anchor.

  Pairs count in both directions, as in sentence-transformers; of several candidates it draws one, this takes the
  first.
  """
  related: dict[str, dict[str, str]] = {}
  for premise, hypothesis, label in labeled:
    for one, other in ((premise.strip(), hypothesis.strip()), (hypothesis.strip(), premise.strip())):
      related.setdefault(one, {}).setdefault(label, other)
  for sentence, by_label in related.items():
    if {"entailment", "contradiction"} <= by_label.keys():
      entailed, contradicted = by_label["entailment"], by_label["contradiction"]
      for anchor, positive in ((sentence, entailed), (entailed, sentence)):
        yield {"anchor": anchor, "positive": positive, "negative": contradicted}


def _labeled(split: SourceSplit, files: list[OriginalFile]) -> Iterator[tuple[str, str, str]]:
  for file in files:
    for line, record in json_objects(file):
      # The original names of the fields, or those of TFDS.
      premise, hypothesis, label = (
        record.get(original, record.get(name))
        for original, name in (("sentence1", "premise"), ("sentence2", "hypothesis"), ("gold_label", "label"))
      )
      if not isinstance(premise, str) or not isinstance(hypothesis, str):
        raise file.malformed(line, "texts as sentence1 and sentence2", ", ".join(record))
      if label == "-":
        split.left_out["without a label that annotators agree on"] += 1
        continue
      if label not in LABELS:
        raise file.malformed(line, f"one of {', '.join(LABELS)} as gold_label", label)
      yield premise, hypothesis, label
