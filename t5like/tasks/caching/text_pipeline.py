"""Runs a seqio task up to tokenization.

A token cache is built from its output with the vocabulary of a model; objectives and EOS are applied
later, in the loader.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

import seqio
import tensorflow as tf

from t5like.console import warn
from t5like.errors import UserError
from t5like.files.module_files import file_hash, module_file
from t5like.files.source_files import file_identities
from t5like.objectives.segments import TEXT_FIELDS
from t5like.tasks.caching.cache_kind import Steps, text_dataset, unbound
from t5like.tasks.caching.code_closure import Closure
from t5like.tasks.caching.identity import code_identity, feature_identity, source_identity, source_parts
from t5like.tasks.caching.label_forms import label_form
from t5like.tasks.registry import check_split
from t5like.tasks.seqio_examples import is_ours, plain

# Text fields; "first", "second" and so on are those of an encoder, whose label is a number.
_TEXTS = ("inputs", "targets", *TEXT_FIELDS)


def text_preprocessors(task: seqio.Task) -> list[Callable]:
  """Returns the steps before seqio's `tokenize`, which is required."""
  steps = Steps.of(task)
  if steps.tokenize is None:
    raise UserError(
      f"task {task.name!r} has no tokenization step",
      expected="seqio.preprocessors.tokenize among its preprocessors",
    )
  return steps.before


def _text_dataset(task: seqio.Task, split: str) -> tf.data.Dataset:
  check_split(task, split)
  return text_dataset(task, split, text_preprocessors(task))


def text_features(task: seqio.Task, split: str) -> list[str]:
  """Returns the fields that are tokenized: inputs and targets, or the texts of an encoder."""
  members = _text_dataset(task, split).element_spec
  texts = {name: members[name] for name in _TEXTS if isinstance(members.get(name), tf.TensorSpec)}
  return [name for name, spec in texts.items() if spec.dtype == tf.string and not spec.shape.rank]


def text_examples(task: seqio.Task, split: str) -> Iterator[dict[str, Any]]:
  """Yields examples as plain Python values, before tokenization, in the order of the source."""
  dataset, noted = _text_dataset(task, split), False
  if all(getattr(spec, "shape", None) == () for spec in dataset.element_spec.values()):
    blocks = dataset.batch(1024).as_numpy_iterator()  # transferring values one by one costs more than computing them
  else:
    blocks = ({name: [value] for name, value in example.items()} for example in dataset.as_numpy_iterator())
  for block in blocks:
    columns = {name: plain(values) for name, values in block.items()}
    if not noted and (text := _replaced(block, columns)):
      noted = True
      warn(f"note: task {task.name!r} has text that is not UTF-8; invalid bytes are replaced, as in {text[:80]!r}")
    yield from (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))


def _replaced(block: Mapping[str, Sequence[Any]], columns: Mapping[str, Sequence[Any]]) -> str | None:
  """Returns a text whose bytes were not UTF-8; seqio keeps them."""
  for name in columns.keys() & {*_TEXTS}:
    for given, text in zip(block[name], columns[name], strict=True):
      if isinstance(given, bytes) and "\ufffd" in text and given != text.encode():
        return text
  return None


def texts(task: seqio.Task, split: str) -> Iterator[str]:
  """Yields the text fields of every example, one after the other."""
  for example in text_examples(task, split):
    for member in _TEXTS:
      if isinstance(example.get(member), str):
        yield example[member]


def describe(task: seqio.Task, split: str) -> dict[str, Any]:
  """Returns everything the text of this task depends on: any change makes a token cache stale."""
  return _describe(task, split, text_preprocessors(task))


def describe_tokens(task: seqio.Task, split: str, lengths: Mapping[str, int]) -> dict[str, Any]:
  """Returns everything the finished tokens of this task depend on."""
  return _describe(task, split, task.preprocessors) | {
    "lengths": dict(lengths),
    "features": {name: feature_identity(feature) for name, feature in task.output_features.items()},
    "libraries": library_versions(task),
  }


def _describe(task: seqio.Task, split: str, steps: Sequence[Callable]) -> dict[str, Any]:
  check_split(task, split)
  return {
    "task": task.name,
    "split": split,
    "source": source_identity(task.source),
    "source_files": file_identities(_source_files(task.source, split)),
    "preprocessors": [code_identity(step) for step in steps],
    "uses": Closure([task.source, *steps]).digest,
    "values": Closure([*source_parts(task.source), *steps], values=True).digest,
  }


def module_hashes(task: seqio.Task, modules: Sequence[str]) -> dict[str, str]:
  """Returns the hash of every module the task uses: those of its functions, their dependencies, and `modules`."""
  functions = [task.source, *task.preprocessors, task.postprocessor, *task.metric_fns]
  names = {*Closure(functions).modules, *modules}
  for function in functions:
    module = getattr(inspect.unwrap(unbound(function)), "__module__", None) or type(function).__module__
    if module.startswith("t5like.tasks."):
      names.add(module)
  files = {name: module_file(name) for name in sorted(names)}
  return {name: file_hash(path) for name, path in files.items() if path is not None}


def library_versions(task: seqio.Task) -> dict[str, str]:
  """Returns the versions of seqio, t5 and tensorflow_datasets, as far as the task uses them."""
  functions = [task.source, *task.preprocessors]
  modules = {getattr(unbound(function), "__module__", None) or type(function).__module__ for function in functions}
  names = {"seqio", *(module.partition(".")[0] for module in modules)} & {"seqio", "t5", "tensorflow_datasets"}
  return {name: metadata.version(name.replace("_", "-")) for name in sorted(names)}


def scoring(task: seqio.Task) -> dict[str, Any]:
  """Returns the importable names of the postprocessor and metrics, to score without the registry.

  Lambdas and nested functions, which have none, are identified by task and index.
  """
  kinds = {"predictions": task.predict_metric_fns, "scores": task.score_metric_fns}
  kinds["aux_values"] = task.predict_with_aux_metric_fns
  found: dict[str, Any] = {"postprocessor": None, "metrics": []}
  if task.postprocessor:
    found["postprocessor"] = _named(task.postprocessor, {"task": task.name, "metric": None})
  for takes, functions in kinds.items():
    for function in functions:
      entry = _named(function, {"task": task.name, "metric": len(found["metrics"])})
      found["metrics"].append(entry | ({} if takes == "predictions" else {"takes": takes}))
  if objects := [type(metric).__name__ for metric in task._metric_objs_constructor_args]:
    found["refused"] = f"its metric_objs ({', '.join(objects)})"
  form = label_form(task)
  return found | ({"form": form} if form else {})


def _named(function: Callable, registered: Mapping[str, Any]) -> dict[str, Any]:
  try:
    return _importable(function)
  except UserError:
    return {"registered": dict(registered)}


def _source_files(source: seqio.DataSource, split: str) -> list[str]:
  files = getattr(source, "files", None)
  if files is not None:
    return [files[split]]
  return list(source.list_shards(split)) if isinstance(source, seqio.FileDataSource | seqio.TfdsDataSource) else []


def _find(module: str, qualified_name: str) -> Any:
  """Returns what a name stands for in a module; None if it has none of that name."""
  found = sys.modules.get(module)
  for name in qualified_name.split("."):
    found = getattr(found, name, None)
  return found


def _importable(function: Callable) -> dict[str, Any]:
  """Returns a function's module-qualified name and bound keywords, to import it without the registry."""
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
      try_="define postprocessors and metrics at module level; functools.partial may bind keywords",
    )
  if not is_ours(function) and _find(function.__module__, name) != function:  # a bound method, or a decorated function
    raise UserError(f"{function.__module__}.{name} is not the function of the task")
  try:
    unchanged = json.loads(json.dumps(keywords)) == keywords
  except TypeError:
    unchanged = False
  if not unchanged and not is_ours(function):  # ours take lists for tuples
    raise UserError(f"the keywords bound to {name} are not plain values", given=keywords)
  return {"function": f"{function.__module__}:{name}", "keywords": keywords}
