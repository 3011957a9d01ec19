"""The identity of a task as plain values, to detect changes of its definition or data."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import seqio

from t5like.tasks.caching.code_closure import Closure


def definition(task: seqio.Task) -> dict[str, Any]:
  """Returns everything that two registrations under one name must agree on."""
  functions = [*task.preprocessors, task.postprocessor, *task.metric_fns]
  return {
    "source": source_identity(task.source),
    "preprocessors": [code_identity(step) for step in task.preprocessors],
    "output_features": {name: feature_identity(feature) for name, feature in task.output_features.items()},
    "postprocessor": code_identity(task.postprocessor) if task.postprocessor else None,
    "metrics": [code_identity(metric) for metric in task.metric_fns],
    "values": Closure([*source_parts(task.source), *functions], code=False, values=True).digest,
  }


def source_parts(source: seqio.DataSource) -> list[Any]:
  """Returns a source, and the functions and settings with which a source of seqio reads files."""
  names = ("_dataset_fn", "_reader", "_skip_header_lines", "feature_description")
  return [source, *(getattr(source, name, None) for name in names)]


def source_identity(source: seqio.DataSource) -> str:
  """Returns the class of a source and its plain-valued settings."""
  settings = {
    name.strip("_"): value if isinstance(value, str | int | float | tuple | list | dict) else code_identity(value)
    for name, value in sorted(vars(source).items())
    if name in _SOURCE_SETTINGS and value is not None
  }
  if isinstance(source, seqio.TfdsDataSource):
    settings["tfds"] = source.tfds_dataset.name
  return f"{type(source).__name__}{settings}"


# Attributes of seqio's sources; `files`, `fields` and `settings` are those of t5like's.
_SOURCE_SETTINGS = ("files", "fields", "settings", "_split_to_filepattern", "_dataset_fn", "_splits")


def code_identity(step: Callable) -> str:
  """Returns a function's name and a hash of its source code and bound arguments, to detect edits."""
  settings = ""
  while isinstance(step, functools.partial):
    settings += _setting(step.args) + repr(sorted((k, _setting(v)) for k, v in step.keywords.items()))
    step = step.func
  step = inspect.unwrap(step)
  if inspect.ismethod(step):
    step = step.__func__
  try:
    code = inspect.getsource(step)
  except (OSError, TypeError):
    # An instance: its class, and its fields unless its repr is an address.
    code = repr(type(step)) + ("" if " at 0x" in repr(step) else repr(step))
  name = getattr(step, "__qualname__", type(step).__qualname__)
  return f"{name}:{hashlib.sha256((code + settings).encode()).hexdigest()[:16]}"


def _setting(value: Any) -> str:
  """Returns `repr`, without the addresses of objects in memory."""
  if callable(value):
    return code_identity(value)
  if isinstance(value, seqio.Vocabulary):
    return _vocabulary_identity(value)
  if isinstance(value, seqio.Feature):
    return feature_identity(value)
  text = repr(value)
  if " at 0x" not in text:
    return text
  if isinstance(value, dict):
    return repr({key: _setting(each) for key, each in value.items()})
  if isinstance(value, list | tuple):
    return repr(list(map(_setting, value)))
  return type(value).__qualname__


def feature_identity(feature: seqio.Feature) -> str:
  return (
    f"{_vocabulary_identity(feature.vocabulary)} add_eos={feature.add_eos} "
    f"required={feature.required} dtype={feature.dtype.name} rank={feature.rank}"
  )


def _vocabulary_identity(vocabulary: seqio.Vocabulary) -> str:
  described = getattr(vocabulary, "fingerprint", None) or getattr(vocabulary, "_sentencepiece_model_file", "")
  return f"{type(vocabulary).__name__}({described}, extra_ids={vocabulary.extra_ids})"
