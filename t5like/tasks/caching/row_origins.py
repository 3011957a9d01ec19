"""Counts where the rows of a source are from: its fields such as `language` and `url`, in a sample of rows."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import seqio

from t5like.errors import UserError
from t5like.files import storage
from t5like.files.data_card import ORIGINS, OriginCounter
from t5like.tasks.preparation.datasets import json_objects
from t5like.tasks.preparation.files import OriginalFile
from t5like.tasks.preparation.members import holds_json

_FILES, _ROWS = 50, 200  # of the sample: files from the whole source, and the first rows of each


def count_origins(source: seqio.DataSource, split: str) -> OriginCounter:
  """Returns counts of a sample of JSON lines, or of a TFDS data set; nothing for other sources."""
  counter = OriginCounter()
  for row in _sample(source, split):
    counter.add(row)
  return counter


def _sample(source: seqio.DataSource, split: str) -> Iterator[Mapping[str, Any]]:
  if isinstance(source, seqio.TfdsDataSource):
    rows = source.get_dataset(split, shuffle=False)
    if isinstance(rows.element_spec, dict) and set(ORIGINS) & rows.element_spec.keys():
      yield from rows.take(_FILES * _ROWS).as_numpy_iterator()
    return
  named = getattr(source, "files", {}).get(split)
  paths = [named] if named else source.list_shards(split) if isinstance(source, seqio.FileDataSource) else []
  files = [OriginalFile(storage.as_path(path)) for path in paths[:: max(1, len(paths) // _FILES)][:_FILES]]
  with contextlib.suppress(UserError):  # a source's own files, in any format
    for file in files:
      if holds_json(file):
        yield from (row for _, row in itertools.islice(json_objects(file), _ROWS))
