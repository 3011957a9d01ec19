"""Pre-training corpora: C4, Wikipedia and local files, with a task for every objective.

A corpus `c4` is registered as the task `c4` (raw documents) and as `c4_<objective>` for each objective in
`t5like.objectives.CATALOGUE`, such as `c4_span_corruption`. They share one token cache.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import seqio
import tensorflow as tf

from t5like.errors import UserError
from t5like.files import storage
from t5like.objectives import CATALOGUE
from t5like.tasks import objective_adapter, preprocessors
from t5like.tasks.preparation.datasets import json_objects
from t5like.tasks.preparation.files import OriginalFile
from t5like.tasks.registry import register_task
from t5like.tasks.seqio_vocabularies import as_seqio
from t5like.tasks.sources import FileBlocks, read_documents

_BLOCK = 256  # documents passed to TensorFlow at a time


class TextFiles(seqio.FileDataSource):
  """Documents of JSON-lines and text files, plain or compressed; patterns such as `news/*.jsonl.gz` are expanded.

  `documents` is the unit of a document in a text file: "line", "paragraph" (separated by blank lines)
  or "file". A JSON line is one document, its text in the field `text_key`.
  """

  def __init__(
    self,
    files: Mapping[str, str | Path | Sequence[str | Path]],
    text_key: str = "text",
    documents: str = "line",
    sizes: Mapping[str, int] | None = None,
  ):
    patterns = {
      split: [str(given)] if isinstance(given, str | Path) else [str(p) for p in given]
      for split, given in files.items()
    }
    self.settings = (text_key, documents)
    self._blocks = FileBlocks(self._documents, columns=1, size=_BLOCK)
    super().__init__(self._read, patterns, num_input_examples=sizes)

  def list_shards(self, split: str) -> list[str]:
    patterns = self._split_to_filepattern[split]
    found = sorted({path for pattern in patterns for path in storage.matching(pattern)})
    if not found:
      raise UserError(f"no files found for split {split!r}", looked_for=", ".join(patterns))
    return found

  @tf.autograph.experimental.do_not_convert
  def _read(self, path: tf.Tensor) -> tf.data.Dataset:
    return self._blocks.dataset(path).map(lambda text: {"text": text})

  def _documents(self, path: str) -> Iterator[tuple[str]]:
    text_key, documents = self.settings
    return ((text,) for text in read_documents(path, text_key, documents))


class ColumnFiles(TextFiles):
  """The given fields of JSON lines, of any number of files, as text; `_values` checks a row and returns them."""

  def __init__(self, files: Mapping[str, str | Path | Sequence[str | Path]], fields: Sequence[str]):
    super().__init__(files)
    self.settings = self.fields = tuple(fields)
    self._blocks = FileBlocks(self._rows, len(self.fields), _BLOCK)

  @tf.autograph.experimental.do_not_convert
  def _read(self, path: tf.Tensor) -> tf.data.Dataset:
    return self._blocks.dataset(path).map(lambda *values: dict(zip(self.fields, values, strict=True)))

  def _rows(self, path: str) -> Iterator[list[str]]:
    file = OriginalFile(storage.as_path(path))
    return (self._values(file, number, record) for number, record in json_objects(file))

  def _values(self, file: OriginalFile, number: int, record: Mapping[str, Any]) -> list[str]:
    raise NotImplementedError


def first_row(source: TextFiles, split: str) -> tuple[str, dict[str, Any]]:
  """Returns the first file of a split, and its first JSON line."""
  path = source.list_shards(split)[0]
  row = next((record for _, record in json_objects(OriginalFile(storage.as_path(path)))), None)
  if row is None:
    raise UserError(f"{path} is empty", expected="JSON lines")
  return path, row


def register_corpus(
  name: str,
  files: Mapping[str, str | Path | Sequence[str | Path]] | None = None,
  sizes: Mapping[str, int] | None = None,
  source: seqio.DataSource | None = None,
  text_key: str = "text",
  documents: str = "line",
) -> seqio.Task:
  """Registers a pre-training corpus, and a task for every objective over it.

  `files` maps a split to files (see `TextFiles`); `source` is any seqio source whose examples have `text_key`.
  """
  if (files is None) == (source is None):
    raise UserError(f"the corpus {name!r} needs either files or a source")
  source = source or TextFiles(files, text_key, documents, sizes)
  # The field of TextFiles is always `text`.
  to_text = functools.partial(preprocessors.document, text_key="text" if files is not None else text_key)
  steps = [to_text, seqio.preprocessors.tokenize, seqio.CacheDatasetPlaceholder()]
  t5, bert = (_vocabulary(objective_makes) for objective_makes in ("pairs", "masked"))
  for objective_name, objective in CATALOGUE.items():
    closing = [seqio.preprocessors.append_eos_after_trim] if objective.makes == "pairs" and objective.closed else []
    register_task(
      f"{name}_{objective_name}",
      source=source,
      preprocessors=[*steps, functools.partial(objective_adapter.corrupt, objective=objective), *closing],
      output_features=objective_adapter.features(objective, bert if objective.makes == "masked" else t5),
    )
  return register_task(
    name,
    source=source,
    preprocessors=[*steps, seqio.preprocessors.append_eos_after_trim],
    output_features={"targets": seqio.Feature(t5, add_eos=True)},
  )


@functools.cache
def _vocabulary(makes: str) -> seqio.Vocabulary:
  return as_seqio("bert_uncased" if makes == "masked" else "t5")


# Colossal Clean Crawled Corpus, English (Raffel et al. 2019, section 2.2).
register_corpus("c4", source=seqio.TfdsDataSource(tfds_name="c4/en:3.1.0"))
register_corpus(
  "wikipedia",
  source=seqio.TfdsDataSource(
    tfds_name="wikipedia/20230601.en:1.0.0", splits={"train": "train[:99%]", "validation": "train[99%:]"}
  ),
)
