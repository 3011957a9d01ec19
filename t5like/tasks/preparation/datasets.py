"""TFDS data sets to prepare, their splits, and validation of rows against the features."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from t5like.errors import UserError
from t5like.files import storage
from t5like.tasks.preparation.files import Folder, OriginalFile

# The key determines a record's position in the stored order, as in TFDS's builders.
KeyedRow = tuple[int | str, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Dataset:
  """A data set as TFDS names and describes it; `builder` is None if it is not in TFDS."""

  name: str
  config: str | None
  version: str
  features: tfds.features.FeatureConnector
  builder: tfds.core.DatasetBuilder | None = None
  description: str | None = None
  homepage: str | None = None
  citation: str | None = None

  @property
  def title(self) -> str:
    return f"{self.name}/{self.config}" if self.config else self.name

  @property
  def folder(self) -> str:
    return f"{self.title}/{self.version}"


@dataclasses.dataclass
class SourceSplit:
  """A split: its rows, or None if its files are missing, and a description of the files looked for."""

  name: str
  rows: Callable[[SourceSplit], Iterator[KeyedRow]] | None
  looked_for: str
  # Number of rows skipped by reason, as in the official builder.
  left_out: collections.Counter = dataclasses.field(default_factory=collections.Counter)


def splits_of_files(
  folder: Folder, names: Mapping[str, Sequence[str]], rows: Callable[..., Iterator[KeyedRow]]
) -> list[SourceSplit]:
  """Returns the splits of a data set with one file each; `names` has the possible names of each split's file.

  `rows` takes a split and its `file`.
  """
  splits = []
  for split, candidates in names.items():
    file = folder.file_of(split, *candidates)
    splits.append(SourceSplit(split, functools.partial(rows, file=file) if file else None, candidates[0]))
  return splits


class Mismatch(Exception):
  """A value does not match its feature."""

  def __init__(self, member: str, expected: str, found: Any):
    super().__init__(member)
    self.member, self.expected, self.found = member, expected, found


def conform(feature: Any, value: Any, member: str = "") -> Any:
  """Returns `value`, read from JSON, if it is valid for a TFDS feature; raises Mismatch otherwise.

  TFDS's `encode_example` would accept invalid values (a number for a text, "1.5" for a float) or raise
  without naming the field.
  """
  if isinstance(feature, tfds.features.Sequence):
    return _conform_sequence(feature, value, member)
  if isinstance(feature, tfds.features.FeaturesDict):
    if not isinstance(value, dict):
      raise Mismatch(member, f"an object with {', '.join(feature)}", value)
    if absent := [name for name in feature if name not in value]:
      raise Mismatch(f"{member}.{absent[0]}".strip("."), "a value", "no such field")
    return {name: conform(feature[name], value[name], f"{member}.{name}".strip(".")) for name in feature}
  if isinstance(feature, tfds.features.ClassLabel):
    return _conform_label(feature, value, member)
  if isinstance(feature, tfds.features.Text) or feature.np_dtype in (np.str_, np.object_, object):
    return _of_type(value, (str,), "a string", member)
  if feature.np_dtype == np.bool_:
    return _of_type(value, (bool,), "true or false", member)
  if np.issubdtype(feature.np_dtype, np.integer):
    if isinstance(value, str) and value.lstrip("-").isdigit():  # AX-b writes its idx as a string
      value = int(value)
    return _of_type(value, (int,), "an integer", member)
  if np.issubdtype(feature.np_dtype, np.floating):
    return _of_type(value, (int, float), "a number", member)
  raise UserError(f"cannot read {type(feature).__name__} features from these files", feature=member)


def _of_type(value: Any, types: tuple[type, ...], expected: str, member: str) -> Any:
  if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
    raise Mismatch(member, expected, value)
  return value


def _conform_label(feature: tfds.features.ClassLabel, value: Any, member: str) -> Any:
  names = feature.names
  if isinstance(value, str) and value in names:
    return value
  if isinstance(value, int) and not isinstance(value, bool) and -1 <= value < len(names):
    return value
  raise Mismatch(member, f"one of {', '.join(names)}, or a class number below {len(names)}", value)


def _conform_sequence(feature: tfds.features.Sequence, value: Any, member: str) -> Any:
  inner = feature.feature
  if isinstance(inner, tfds.features.FeaturesDict) and isinstance(value, dict):  # columns instead of rows
    columns = {
      name: conform(tfds.features.Sequence(inner[name]), value.get(name), f"{member}.{name}") for name in inner
    }
    if len({len(column) for column in columns.values()}) > 1:
      raise Mismatch(member, "lists of equal length", value)
    return columns
  if not isinstance(value, list):
    raise Mismatch(member, "a list", value)
  if feature._length is not None and len(value) != feature._length:
    raise Mismatch(member, f"{feature._length} values", value)
  return [conform(inner, item, f"{member}[{i}]") for i, item in enumerate(value)]


def json_objects(file: OriginalFile) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields line numbers and objects of a JSON-lines file, skipping empty lines."""
  for number, line in file.lines():
    if not line.strip():
      continue
    try:
      record = storage.parse_json(line, object)
    except ValueError as error:
      raise file.malformed(number, f"a JSON object ({json_problem(error)})", line) from None
    if not isinstance(record, dict):
      raise file.malformed(number, "a JSON object", line)
    yield number, record


def json_problem(error: ValueError) -> str:
  """Returns what `storage.parse_json` did not accept, without the line: the row or file may be a part of another."""
  return f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)


def check_row(features: Any, row: dict[str, Any], file: OriginalFile, line: int | str) -> dict[str, Any]:
  """Runs `conform` on a row; a mismatch is reported with file and line."""
  try:
    return conform(features, row)
  except Mismatch as wrong:
    raise file.malformed(line, f"{wrong.expected} as {wrong.member}", wrong.found) from None


def check_unique(rows: Iterator[tuple[OriginalFile, int | str, KeyedRow]]) -> Iterator[KeyedRow]:
  """Yields rows without their positions; a duplicate key is an error that names both."""
  places: dict[str, int | str] = {}
  for file, place, (key, row) in rows:
    if str(key) in places:
      raise file.malformed(place, "a unique id", f"{key}, as at {places[str(key)]}")
    places[str(key)] = place
    yield key, row
