"""Runs a seqio task up to the point where text becomes tokens.

The token cache is made from what comes out here, with whatever vocabulary a model has; objectives
and end-of-sequence come later, in the loader.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5like import storage
from t5like.errors import UserError
from t5like.tasks.identity import code_identity, source_identity
from t5like.tasks.registry import check_split

_HASHED = 1 << 20  # bytes of a file at each of three places
# An encoder reads a first and a second text; its label is a number.
_TEXTS = ("inputs", "targets", "first", "second")


def text_preprocessors(task: seqio.Task) -> list[Callable]:
  """The steps before seqio's `tokenize`, which must be there."""
  steps = []
  for step in task.preprocessors:
    if isinstance(step, seqio.CacheDatasetPlaceholder):
      continue
    function = step.func if isinstance(step, functools.partial) else step
    if function is seqio.preprocessors.tokenize or getattr(function, "makes_tokens", False):
      return steps
    steps.append(step)
  raise UserError(
    f"task {task.name!r} does not say where its text becomes tokens",
    expected="seqio.preprocessors.tokenize among its preprocessors",
  )


def _text_dataset(task: seqio.Task, split: str) -> tf.data.Dataset:
  check_split(task, split)
  dataset = task.source.get_dataset(split=split, shuffle=False)
  for step in text_preprocessors(task):
    step = seqio.utils.add_kwargs_to_transform(step, sequence_length=None, output_features=task.output_features)
    dataset = step(dataset)
  return dataset


def text_features(task: seqio.Task, split: str) -> list[str]:
  """The members of an example that become tokens: inputs and targets, or the texts that an encoder reads."""
  members = _text_dataset(task, split).element_spec
  return [
    name for name in _TEXTS if name in members and members[name].dtype == tf.string and not members[name].shape.rank
  ]


def text_examples(task: seqio.Task, split: str) -> Iterator[dict[str, Any]]:
  """Examples as plain Python values, before tokenisation, in the source's order."""
  dataset = _text_dataset(task, split)
  if all(spec.shape.rank == 0 for spec in dataset.element_spec.values()):
    # Handing values over one by one costs more than making them.
    for block in dataset.batch(1024).as_numpy_iterator():
      columns = {name: _plain(values) for name, values in block.items()}
      yield from (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
  else:
    for example in dataset.as_numpy_iterator():
      yield {name: _plain(value) for name, value in example.items()}


def _plain(value: Any) -> Any:
  """bytes to str, arrays to lists: values that JSON can hold."""
  if isinstance(value, np.ndarray | np.generic):
    value = value.tolist()
  if isinstance(value, bytes):
    return value.decode("utf-8", errors="replace")
  if isinstance(value, list):
    return [_plain(v) for v in value]
  return value


def describe(task: seqio.Task, split: str) -> dict[str, Any]:
  """What the text of this task depends on: a change of any of it makes a token cache stale."""
  check_split(task, split)
  return {
    "task": task.name,
    "split": split,
    "source": source_identity(task.source),
    "source_files": [_file_identity(path) for path in _source_files(task.source, split)],
    "preprocessors": [code_identity(step) for step in text_preprocessors(task)],
  }


def scoring(task: seqio.Task) -> dict[str, Any]:
  """Importable names of the postprocessor and metric functions, to score without the registry."""
  return {
    "postprocessor": _importable(task.postprocessor) if task.postprocessor else None,
    "metrics": [_importable(m) for m in task.metric_fns],
  }


def _source_files(source: seqio.DataSource, split: str) -> list[str]:
  files = getattr(source, "files", None)
  if files is not None:
    return [files[split]]
  return list(source.list_shards(split)) if isinstance(source, seqio.FileDataSource | seqio.TfdsDataSource) else []


def _file_identity(path: str) -> dict[str, Any]:
  """Its size and a hash of its beginning, middle and end: a corpus of terabytes is not read for this."""
  data = storage.as_path(path)
  if not data.is_file():
    return {"path": path}
  size = data.stat().st_size
  digest = hashlib.sha256()
  with data.open("rb") as content:
    for start in (0, (size - _HASHED) // 2, size - _HASHED):
      content.seek(max(start, 0))
      digest.update(content.read(_HASHED))
  return {"path": path, "bytes": size, "sha256_of_parts": digest.hexdigest()}


def _importable(function: Callable) -> dict[str, Any]:
  """How to find a function again where the registry cannot be imported: its name and bound keywords."""
  keywords = {}
  while isinstance(function, functools.partial):
    if function.args:
      raise UserError(f"{function} binds positional arguments", try_="bind them by keyword")
    keywords = {**function.keywords, **keywords}
    function = function.func
  name = getattr(function, "__qualname__", "<none>")
  if "<" in name:
    raise UserError(
      f"the function {name} of a task cannot be imported by name",
      try_="define postprocessors and metrics at the top of a module; functools.partial may bind keywords",
    )
  try:
    json.dumps(keywords)
  except TypeError:
    raise UserError(f"the keywords bound to {name} are not plain values", given=keywords) from None
  return {"function": f"{function.__module__}:{name}", "keywords": keywords}
