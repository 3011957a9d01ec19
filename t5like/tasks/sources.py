"""seqio data sources over local files."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import seqio
import tensorflow as tf

from t5like.errors import UserError


def read_json_lines(path: str | Path, fields: Sequence[str]) -> Iterator[dict[str, str]]:
  """The named members of every object of a JSON-lines file, plain or gzipped."""
  opener = gzip.open if str(path).endswith(".gz") else open
  with opener(path, "rt", encoding="utf-8") as lines:
    for number, line in enumerate(lines, 1):
      try:
        record = json.loads(line)
        yield {field: record[field] for field in fields}
      except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise UserError(
          "a line is not the JSON object this task expects",
          file=f"{path}:{number}",
          expected=f"an object with {', '.join(fields)}",
          because=f"{type(error).__name__}: {error}",
        ) from None


class JsonLinesSource(seqio.FunctionDataSource):
  """JSON objects, one a line, plain or gzipped; `fields` are the string members to keep."""

  def __init__(self, files: Mapping[str, str | Path], fields: Sequence[str], sizes: Mapping[str, int] | None = None):
    self.files = {split: str(path) for split, path in files.items()}
    self.fields = tuple(fields)
    super().__init__(self._dataset, splits=list(files), num_input_examples=sizes)

  def _dataset(self, split: str, shuffle_files: bool) -> tf.data.Dataset:
    del shuffle_files  # a split is one file
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
