"""Decides how to cache the examples of a task so that a run reads exactly what seqio would produce.

text     caches the text before `tokenize`, tokenized once with the model's vocabulary: works for any lengths
tokens   runs all preprocessors for given lengths and caches the finished tokens
stream   caches nothing: the preprocessors are random, so seqio runs them again in every epoch
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import seqio
import tensorflow as tf

from t5like.tasks import objective_adapter
from t5like.tasks.seqio_vocabularies import own_vocabulary

Closing = Literal["after_trim", "before_trim", "none"]  # when EOS is appended to a feature

# Name prefixes of TensorFlow operations that draw random numbers.
_RANDOM = (
  "Random", "Shuffle", "AnonymousRandom", "Multinomial", "TruncatedNormal", "ParameterizedTruncated", "Sampling",
  "StatelessRandom", "StatelessMultinomial", "StatelessTruncated", "StatelessParameterized", "StatelessShuffle",
  "StatefulUniform", "StatefulStandardNormal", "StatefulTruncated", "StatefulRandom", "RngReadAndSkip",
  "NonDeterministicInts",
)  # fmt: skip
_PYTHON = ("PyFunc", "EagerPyFunc", "PyFuncStateless")
# Transformations of datasets that process examples one by one.
_ONE_BY_ONE = (
  "MapDataset", "ParallelMapDataset", "ParallelMapDatasetV2", "FilterDataset", "ParallelFilterDataset",
  "FlatMapDataset", "UnbatchDataset", "PrefetchDataset", "OptionsDataset", "ModelDataset",
)  # fmt: skip
_COMPARED = 64  # rows compared under two seeds if Python code may be random
_ANY_LENGTH = 512


@dataclasses.dataclass(frozen=True)
class CacheKind:
  """The part of a task that a cache stores; `why` explains any kind but "text"."""

  name: Literal["text", "tokens", "stream"]
  why: str = ""
  closing: Mapping[str, Closing] = dataclasses.field(default_factory=dict)

  @property
  def appends_eos_after_trim(self) -> bool:
    return all(closing == "after_trim" for closing in self.closing.values())


def cache_kind(task: seqio.Task, split: str) -> CacheKind:
  """Determines the kind from the preprocessors of the task; reads a few examples at most."""
  steps = Steps.of(task)
  if step := random_step(task, split, steps.before if steps.is_plain else list(task.preprocessors)):
    return CacheKind("stream", f"the step {step} draws random numbers, so every epoch differs")
  if why := steps.why_not_text(task) or _why_no_text(task, split, steps):
    return CacheKind("tokens", why)
  return CacheKind("text", closing=steps.closing(task))


def _why_no_text(task: seqio.Task, split: str, steps: Steps) -> str:
  if steps.is_encoder_form or objective_adapter.corrupt in map(unbound, steps.after):
    return ""  # t5like creates the inputs
  members = text_dataset(task, split, steps.before).element_spec
  for name, feature in task.output_features.items():
    if name in ("inputs", "targets") and (name in members or feature.required):
      if name not in members or members[name].dtype != tf.string or members[name].shape.rank:
        return f"its {name} are not single strings"
  return ""


def text_dataset(task: seqio.Task, split: str, steps: Sequence[Callable]) -> tf.data.Dataset:
  """Returns the task's examples after `steps`, in the order of the source."""
  *_, (_, dataset) = _datasets(task, task.source.get_dataset(split=split, shuffle=False), steps, None)
  return dataset


def _datasets(
  task: seqio.Task, dataset: tf.data.Dataset, steps: Sequence[Callable], lengths: Mapping[str, int] | None
) -> Iterator[tuple[Callable | None, tf.data.Dataset]]:
  """Yields the source dataset, then each step with its output."""
  yield None, dataset
  for step in steps:
    if not isinstance(step, seqio.CacheDatasetPlaceholder):
      function = seqio.utils.add_kwargs_to_transform(
        step, sequence_length=lengths, output_features=task.output_features
      )
      dataset = function(dataset)
      yield step, dataset


@dataclasses.dataclass(frozen=True)
class Steps:
  """The preprocessors of a task before and after `tokenize`, without placeholders for seqio's cache."""

  before: list[Callable]
  tokenize: Callable | None
  after: list[Callable]

  @classmethod
  def of(cls, task: seqio.Task) -> Steps:
    steps = [step for step in task.preprocessors if not isinstance(step, seqio.CacheDatasetPlaceholder)]
    for number, step in enumerate(steps):
      function = unbound(step)
      if function in _TOKENIZE or getattr(function, "makes_tokens", False):
        return cls(steps[:number], step, steps[number + 1 :])
    return cls(steps, None, [])

  @property
  def is_plain(self) -> bool:
    """Returns whether the only steps after `tokenize` append EOS or apply a t5like objective."""
    return self.tokenize is not None and all(unbound(step) in _KNOWN_AFTER for step in self.after)

  @property
  def is_encoder_form(self) -> bool:
    """Returns whether a t5like step creates the tokens, in an encoder's form."""
    return getattr(unbound(self.tokenize), "makes_tokens", False)

  def why_not_text(self, task: seqio.Task) -> str:
    """Returns why the text before `tokenize` is not sufficient for a run, or ''."""
    if self.tokenize is None:
      return "it is tokenized by its own steps, not by seqio.preprocessors.tokenize"
    if others := [step_name(step) for step in self.after if unbound(step) not in _KNOWN_AFTER]:
      return f"the step {others[0]} works on tokens"
    if by_length := [step_name(s) for s in self.before if "sequence_length" in inspect.signature(s).parameters]:
      return f"the step {by_length[0]} depends on the sequence length"
    if len(self._closing_steps()) > 1:
      return "its steps append EOS more than once"
    if own_vocabulary(task.output_features) is None and not self.is_encoder_form:
      return "its inputs and targets have different vocabularies"
    return ""

  def closing(self, task: seqio.Task) -> dict[str, Closing]:
    """Returns when EOS is appended to each feature."""
    appended: Closing = "none"
    for step in self._closing_steps():
      appended = "after_trim" if step is seqio.preprocessors.append_eos_after_trim else "before_trim"
    features = task.output_features
    return {n: appended if features[n].add_eos else "none" for n in ("inputs", "targets") if n in features}

  def _closing_steps(self) -> list[Callable]:
    """Returns the steps that append EOS."""
    closing = [step for step in map(unbound, (self.tokenize, *self.after)) if step in _CLOSING]
    return closing + [unbound(self.tokenize)] * bool(bound_keywords(self.tokenize).get("with_eos"))


_CLOSING = (
  seqio.preprocessors.append_eos, seqio.preprocessors.append_eos_after_trim, seqio.preprocessors.tokenize_and_append_eos
)  # fmt: skip
_TOKENIZE = (seqio.preprocessors.tokenize, seqio.preprocessors.tokenize_and_append_eos)
_KNOWN_AFTER = (seqio.preprocessors.append_eos, seqio.preprocessors.append_eos_after_trim, objective_adapter.corrupt)


def unbound(step: Callable | None) -> Callable | None:
  """Unwraps functools.partial."""
  while isinstance(step, functools.partial):
    step = step.func
  return step


def bound_keywords(step: Callable | None) -> dict:
  keywords: dict = {}
  while isinstance(step, functools.partial):
    keywords, step = {**step.keywords, **keywords}, step.func
  return keywords


def step_name(step: Callable) -> str:
  """Returns the name of a step for messages; a lambda includes its line number."""
  function = inspect.unwrap(unbound(step))
  name = getattr(function, "__qualname__", type(function).__name__)
  code = getattr(function, "__code__", None)
  return f"{name} (line {code.co_firstlineno})" if "<lambda>" in name and code else name


def random_step(task: seqio.Task, split: str, steps: Sequence[Callable]) -> str | None:
  """Returns the name of the first step whose examples depend on the seed, or None.

  Random operations are found in TensorFlow's graph. Python code in the graph is opaque: some of its examples are
  created twice, with two seeds, and compared.
  """
  lengths = dict.fromkeys(task.output_features, _ANY_LENGTH)
  python, runs_python = 0, None
  for step, dataset in _datasets(task, task.source.get_dataset(split=split, shuffle=False), steps, lengths):
    operations = _operations(dataset)
    if any(operation.startswith(_RANDOM) for operation in operations):
      return step_name(step) if step else f"{type(task.source).__name__}, the source,"
    calls = sum(operation in _PYTHON for operation in operations)
    if step and calls > python and runs_python is None:
      runs_python = step_name(step)
    python = calls
  if runs_python and _first_examples(task, split, steps, 1) != _first_examples(task, split, steps, 2):
    return runs_python
  return None


def whole_dataset_step(task: seqio.Task, split: str, steps: Sequence[Callable]) -> str | None:
  """Returns the name of the first step that does not process examples one by one, such as `ds.take(100)`, or None."""
  before: collections.Counter[str] | None = None
  for step, dataset in _datasets(task, task.source.get_dataset(split=split, shuffle=False), steps, None):
    transforms = collections.Counter(node.op for node in _graph(dataset).node if "Dataset" in node.op)
    if before is not None and any(op not in _ONE_BY_ONE for op in transforms - before):
      return step_name(step)
    before = transforms
  return None


def _operations(dataset: tf.data.Dataset) -> list[str]:
  graph = _graph(dataset)
  nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
  return [node.op for node in nodes]


def _graph(dataset: tf.data.Dataset) -> tf.compat.v1.GraphDef:
  return tf.compat.v1.GraphDef.FromString(dataset._as_serialized_graph().numpy())


def _first_examples(task: seqio.Task, split: str, steps: Sequence[Callable], seed: int) -> list:
  # Few rows, read to the end: a pipeline that calls Python may hang when it is torn down early.
  rows = task.source.get_dataset(split=split, shuffle=False).take(_COMPARED)
  with seqio.utils.map_seed_manager(seed):
    *_, (_, dataset) = _datasets(task, rows, steps, dict.fromkeys(task.output_features, _ANY_LENGTH))
  return [
    {name: (np.asarray(value).dtype.str, np.asarray(value).tolist()) for name, value in example.items()}
    for example in dataset.as_numpy_iterator()
  ]
