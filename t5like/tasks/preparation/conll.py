"""CoNLL files: token and tag columns, sentences separated by blank lines (Tjong Kim Sang and De Meulder 2003)."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence

import tensorflow_datasets as tfds

from t5like.tasks.preparation.datasets import Dataset, KeyedRow, SourceSplit
from t5like.tasks.preparation.files import Folder, OriginalFile, split_named_by

# In the order of the public mirrors of the data set, so that class numbers agree.
WNUT_17_TAGS = ("O",) + tuple(
  f"{place}-{kind}"
  for kind in ("corporation", "creative-work", "group", "location", "person", "product")
  for place in "BI"
)
_ENDINGS = (".conll", ".annotated", ".txt", ".iob", ".bio", ".tsv", ".train", ".testa", ".testb")
_CONLL_2003_FILES = {
  "train": ("train.txt", "eng.train"),
  "dev": ("valid.txt", "eng.testa"),
  "test": ("test.txt", "eng.testb"),
}


def features(tags: Sequence[str]) -> tfds.features.FeaturesDict:
  """Returns the features `tokens` and `ner`, named as in TFDS's conll2003."""
  return tfds.features.FeaturesDict(
    {
      "tokens": tfds.features.Sequence(tfds.features.Text()),
      "ner": tfds.features.Sequence(tfds.features.ClassLabel(names=list(tags))),
    }
  )


def find_files(folder: Folder) -> dict[str, list[OriginalFile]]:
  """Returns the files of each split, identified by their names."""
  if folder.given:
    return {split: list(files) for split, files in folder.given.items()}
  files: dict[str, list[OriginalFile]] = {}
  for file in folder.all_files():
    split = split_named_by(file.name)
    if split and file.name.endswith(_ENDINGS):
      files.setdefault(split, []).append(file)
  return files


def find_splits(dataset: Dataset, folder: Folder) -> list[SourceSplit]:
  """Finds the splits of wnut_17 and custom files: the token in the first column, its tag in the last."""
  files = find_files(folder)
  return [
    SourceSplit(
      split,
      functools.partial(_rows, dataset=dataset, files=files[split]) if split in files else None,
      f"a file with {split!r} in its name that ends in {', '.join(_ENDINGS)}",
    )
    for split in dict.fromkeys(("train", "validation", "test", *files))
  ]


def find_conll2003(dataset: Dataset, folder: Folder) -> list[SourceSplit]:
  splits = []
  for split, names in _CONLL_2003_FILES.items():
    file = folder.file_of(split, *names, *(f"conll2003/{n}" for n in names))
    rows = functools.partial(_rows, dataset=dataset, files=[file], all_columns=True) if file else None
    splits.append(SourceSplit(split, rows, " or ".join(names)))
  return splits


def tags_of(files: dict[str, list[OriginalFile]]) -> list[str]:
  """Returns every tag that occurs: O first, then sorted by entity type."""
  found = {
    cells[-1] for group in files.values() for file in group for _, block in _sentences(file) for cells in block
  } - {"O"}
  return ["O", *sorted(found, key=lambda tag: (tag[2:], tag))]


def _rows(
  split: SourceSplit, dataset: Dataset, files: list[OriginalFile], all_columns: bool = False
) -> Iterator[KeyedRow]:
  del split
  # TFDS has conll2003's columns in the order of the file.
  names = ("tokens", "pos", "chunks", "ner") if all_columns else ("tokens", "ner")
  number = 0
  for file in files:
    for line, block in _sentences(file):
      if all_columns and len(block[0]) != len(names):
        raise file.malformed(line, f"{len(names)} columns", " ".join(block[0]))
      columns = list(zip(*block, strict=True))
      picked = columns if all_columns else (columns[0], columns[-1])
      row = {name: list(column) for name, column in zip(names, picked, strict=True)}
      for name in names[1:]:
        known = dataset.features[name].feature.names
        for offset, tag in enumerate(row[name]):
          if tag not in known:
            raise file.malformed(line + offset, f"a tag of {name}: {', '.join(known)}", tag)
      yield number, row
      number += 1
    if all_columns:
      # TFDS ends each file of conll2003 with an empty sentence: 14,042 rows for 14,041 sentences.
      yield number, {name: [] for name in names}
      number += 1


def _sentences(file: OriginalFile) -> Iterator[tuple[int, list[list[str]]]]:
  """Yields the number of each sentence's first line, and the cells of its lines."""
  for block in file.blocks(lambda line: not line.strip() or line.startswith("-DOCSTART-")):
    sentence: list[list[str]] = []
    for number, line in block:
      line = line.strip(" \t\r")
      # Not split(), which would split a token at any Unicode space.
      cells = line.split("\t") if "\t" in line else re.split(" +", line)
      if len(cells) < 2:
        raise file.malformed(number, "a token and a tag, separated by a tab or a space", line)
      if sentence and len(cells) != len(sentence[0]):
        raise file.malformed(number, f"{len(sentence[0])} columns, as in the line before", f"{len(cells)}: {line}")
      sentence.append(cells)
    yield block[0][0], sentence
