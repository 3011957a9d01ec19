"""seqio data sources over local or remote files."""

from __future__ import annotations

import copy
import csv
import inspect
import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import seqio
import tensorflow as tf

from t5like.errors import UserError
from t5like.files import storage
from t5like.tasks.preparation.datasets import json_objects
from t5like.tasks.preparation.files import OriginalFile
from t5like.tasks.preparation.members import holds_json, text_documents


def read_json_lines(path: str | Path, fields: Sequence[str]) -> Iterator[dict[str, str]]:
  """Yields the given fields of every object in a JSON-lines file, plain or compressed."""
  file = OriginalFile(storage.as_path(path))
  for number, record in json_objects(file):
    if not all(isinstance(record.get(field), str) for field in fields):  # a number or null would fail inside tf.data
      raise file.malformed(number, f"an object with {', '.join(fields)}, all strings", record)
    check_unicode(file, number, [record[field] for field in fields])
    yield {field: record[field] for field in fields}


def check_unicode(file: OriginalFile, number: int, texts: Sequence[str]) -> None:
  """Raises UserError for half of a pair of surrogates, as in "\\ud83d": JSON allows it, UTF-8 does not."""
  try:
    "".join(texts).encode()
  except UnicodeEncodeError as error:
    found = ascii(error.object[max(0, error.start - 20) : error.end + 20])
    raise file.malformed(number, "Unicode text", f"half of a surrogate pair in {found}") from None


def read_table(path: str | Path, fields: Sequence[str]) -> Iterator[dict[str, str]]:
  """Yields the given columns of every row of a CSV or TSV file, plain or compressed."""
  file = OriginalFile(storage.as_path(path))
  tabs = ".tsv" in file.name
  quoting = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {"strict": True}
  rows = csv.reader((line for _, line in file.lines(newline="", keep_ends=True)), **quoting)
  names = next(rows, [])
  if missing := [field for field in fields if field not in names]:
    raise UserError(f"the table has no column {missing[0]!r}", file=path, columns=", ".join(names) or "none")
  try:
    for row in rows:
      if len(row) != len(names):
        raise file.malformed(rows.line_num, f"{len(names)} columns: {', '.join(names)}", row)
      yield {field: row[names.index(field)] for field in fields}
  except csv.Error as error:
    raise file.malformed(rows.line_num, "a row of CSV", str(error)) from None


def read_documents(path: str | Path, text_key: str, documents: str) -> Iterator[str]:
  """Yields the documents of a JSON-lines file or a text file, plain or compressed."""
  file = OriginalFile(storage.as_path(path))
  if holds_json(file):
    yield from (record[text_key] for record in read_json_lines(path, [text_key]))
  else:
    yield from (text for _, text in text_documents(file, documents))


class FileBlocks:
  """The items of files as a tf.data.Dataset, read in Python in blocks of `size`.

  Block n is a function of the file and n, so tf.data can save its position as a number; it cannot save a
  generator's. Sequential reads are cheap; any other block is reached by reading the file from the start.
  """

  _OPEN = 64  # partly read files kept open; beyond that, the least recently used is reopened when needed

  def __init__(self, open_: Callable[[str], Iterator[Sequence[str]]], columns: int, size: int):
    self._open, self._columns, self._size = open_, columns, size
    self._readers: dict[tuple[str, int], Iterator[Sequence[str]]] = {}  # key: file and its next block
    self._lock = threading.Lock()

  def read(self, path: str, number: int) -> list[Sequence[str]]:
    """Returns block `number`; empty past the end."""
    with self._lock:
      reader = self._readers.pop((path, number), None)
    if reader is None:
      reader = itertools.islice(self._open(path), number * self._size, None)
    block = list(itertools.islice(reader, self._size))
    with self._lock:
      if block:
        self._readers[path, number + 1] = reader
      while len(self._readers) > self._OPEN:
        del self._readers[next(iter(self._readers))]
    return block

  def dataset(self, path: str | tf.Tensor) -> tf.data.Dataset:
    """Returns a dataset of single items, each a tuple of `columns` strings."""

    def call(path: bytes, number: np.int64) -> list[np.ndarray]:
      block = self.read(path.decode(), int(number))
      return [np.array([item[column] for item in block], object) for column in range(self._columns)]

    def block(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
      columns = tf.numpy_function(call, [path, number], [tf.string] * self._columns, stateful=False)
      return tuple(tf.ensure_shape(column, [None]) for column in columns)

    blocks = tf.data.Dataset.range(sys.maxsize).map(block)
    return blocks.take_while(lambda *columns: tf.size(columns[0]) > 0).unbatch()


class _RowsOfFiles(seqio.FunctionDataSource):
  """One file per split; `fields` are the string fields of a row to keep."""

  def __init__(self, files: Mapping[str, str | Path], fields: Sequence[str], sizes: Mapping[str, int] | None = None):
    self.files = {split: str(path) for split, path in files.items()}
    self.fields = tuple(fields)
    self._blocks = FileBlocks(self._records, len(self.fields), size=1024)
    super().__init__(self._dataset, splits=list(files), num_input_examples=sizes)

  def _records(self, path: str) -> Iterator[list[str]]:
    return ([record[field] for field in self.fields] for record in self._read(path, self.fields))

  _read: Callable[[str, Sequence[str]], Iterator[dict[str, str]]]

  def _dataset(self, split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
    del shuffle_files, seed  # a split is one file
    path = self.files[split]
    if not storage.as_path(path).is_file():
      raise UserError(f"the file of split {split!r} is missing", file=path)

    return self._blocks.dataset(path).map(lambda *values: dict(zip(self.fields, values, strict=True)))


class JsonLinesSource(_RowsOfFiles):
  """JSON lines, plain or compressed; `fields` are the string fields to keep."""

  _read = staticmethod(read_json_lines)


class TableSource(_RowsOfFiles):
  """Rows of a table with a header line, plain or compressed; `fields` are the columns to keep.

  A .tsv file is tab-separated with no quoting; any other file is CSV.
  """

  _read = staticmethod(read_table)


def seedable(source: seqio.DataSource) -> seqio.DataSource:
  """Wraps a FunctionDataSource whose function takes no seed, which seqio passes; it then reads files in order."""
  if not isinstance(source, seqio.FunctionDataSource) or "seed" in inspect.signature(source._dataset_fn).parameters:
    return source
  seeded = copy.copy(source)
  seeded._dataset_fn = lambda split, shuffle_files, seed: source._dataset_fn(split=split, shuffle_files=False)
  return seeded
