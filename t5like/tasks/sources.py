"""seqio data sources over local files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import seqio
import tensorflow as tf

from t5like.errors import UserError
from t5like.tasks.preparation.datasets import json_objects
from t5like.tasks.preparation.files import OriginalFile
from t5like.tasks.preparation.members import JSON_ENDINGS, plain


def read_json_lines(path: str | Path, fields: Sequence[str]) -> Iterator[dict[str, str]]:
  """The named members of every object of a JSON-lines file, plain or compressed."""
  file = OriginalFile(Path(path))
  for number, record in json_objects(file):
    try:
      yield {field: record[field] for field in fields}
    except KeyError:
      raise file.malformed(number, f"an object with {', '.join(fields)}", record) from None


def read_documents(path: str | Path, text_key: str, documents: str) -> Iterator[str]:
  """The texts of a JSON-lines file or of a text file, plain or compressed."""
  file = OriginalFile(Path(path))
  if file.name.endswith(JSON_ENDINGS):
    yield from (record[text_key] for record in read_json_lines(path, [text_key]))
  else:
    yield from (text for _, text in plain(file, documents))


class JsonLinesSource(seqio.FunctionDataSource):
  """JSON objects, one a line, plain or compressed; `fields` are the string members to keep."""

  def __init__(self, files: Mapping[str, str | Path], fields: Sequence[str], sizes: Mapping[str, int] | None = None):
    self.files = {split: str(path) for split, path in files.items()}
    self.fields = tuple(fields)
    super().__init__(self._dataset, splits=list(files), num_input_examples=sizes)

  def _dataset(self, split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
    del shuffle_files, seed  # a split is one file
    path = self.files[split]
    if not Path(path).is_file():
      raise UserError(f"the file of split {split!r} is missing", file=path)

    def blocks() -> Iterator[dict[str, list[str]]]:
      # A generator costs about a millisecond a value; in blocks that is nothing.
      records = read_json_lines(path, self.fields)
      while block := list(itertools.islice(records, 1024)):
        yield {field: [record[field] for record in block] for field in self.fields}

    signature = {field: tf.TensorSpec([None], tf.string) for field in self.fields}
    return tf.data.Dataset.from_generator(blocks, output_signature=signature).unbatch()
