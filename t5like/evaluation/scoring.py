"""Scores answers with a task's metrics, alongside the majority baseline."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5like.configuration.modules import import_user_module
from t5like.data import TokenCache
from t5like.data.layouts import enclosed
from t5like.errors import UserError
from t5like.files import storage
from t5like.files.module_files import is_inside
from t5like.tasks.caching.code_closure import Closure
from t5like.tasks.metrics import MOVED_MODULES
from t5like.tasks.metrics import values as metric_values
from t5like.tasks.metrics.pairing import equal
from t5like.tasks.metrics.values import AUX_VALUES, PREDICTIONS, SCORES, Answers, Metric
from t5like.tasks.seqio_examples import as_seqio_calls, plain

# Modules with metrics and postprocessors of tasks of t5like, seqio and the t5 library.
_SCORING_MODULES = (
  *(f"t5like.tasks.{module}" for module in ("metrics", "postprocessors", "encoders.scores", "library.ner_text")),
  "seqio.metrics", "seqio.evaluation", "t5.evaluation", "t5.data",
)  # fmt: skip


# Fields of the written rows with what such metrics take; null if it did not fit into memory.
SCORE_FIELDS = {SCORES: "target_log_likelihood", AUX_VALUES: "log_likelihood"}


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """The result of an evaluation: scores and answers."""

  scores: dict[str, float]
  majority: dict[str, float]  # scores of always answering with the most common target
  rows: list[dict[str, Any]] = dataclasses.field(repr=False)  # inputs, prediction and target per example
  majority_answer: str = ""
  metrics: list[Mapping[str, Any]] = dataclasses.field(default_factory=list)  # functions, as in token caches
  others: dict[str, str] = dataclasses.field(default_factory=dict)  # non-numeric values of metrics
  failures: dict[str, str] = dataclasses.field(default_factory=dict)  # metrics that raised, and their errors
  notes: tuple[str, ...] = ()  # about examples that could not be answered
  tasks: dict[str, Evaluation] = dataclasses.field(default_factory=dict)  # per task of a mixture

  def summary(self) -> str:
    scores = "   ".join(
      f"{name} {score:.2f}"
      + (f"  (always {self.majority_answer!r}: {self.majority[name]:.2f})" if name in self.majority else "")
      for name, score in self.scores.items()
    )
    texts = (f"{name}: {text.strip().splitlines()[0][:100]}" for name, text in self.others.items() if text.strip())
    failed = (f"the metric {name} failed: {error}" for name, error in self.failures.items())
    return "\n  ".join([scores or "no scores", *texts, *failed])

  def report(self, task: str, split: str, step: int, shown: int) -> str:
    """Formats the first `shown` answers and the scores with their baseline."""
    lines = []
    for row in self.rows[:shown]:
      lines += [f"  {row['inputs']}", f"    {_shown(row)}"]
    scored = f"{task} ({split}, {len(self.rows):,} examples) at step {step:,}: {self.summary()}"
    return "\n".join([*lines, scored])

  def write(self, path: Path, data: str = "") -> None:
    """Writes the rows as JSON lines, atomically, and the scores and metrics next to them, to allow rescoring.

    `data` identifies the examples and their scoring.
    """
    about = {"scores": self.scores, "metrics": self.metrics}
    about |= {name: found for name in ("others", "failures") if (found := getattr(self, name))}
    about |= {"data": data} if data else {}
    storage.write_atomic(about_path(path), json.dumps(about, indent=2) + "\n")
    rows = (json.dumps(row, ensure_ascii=False, default=_as_json) + "\n" for row in self.rows)
    storage.write_atomic(path, "".join(rows))


_TEXTS = {"prediction": "output", "target": "expected"}  # fields of the texts that numbers of classes stand for


def _shown(row: Mapping[str, Any]) -> str:
  if row["prediction"] is None:
    return f"target {row['target']!r}, log-likelihood {row.get(SCORE_FIELDS[SCORES])}"
  mark = "correct" if is_correct(row["prediction"], row["target"]) else "wrong"
  return f"{mark}: {_named(row, 'prediction')}, target {_named(row, 'target')}"


def _named(row: Mapping[str, Any], field: str) -> str:
  """Returns a value as Python shows it; the number of a class also with its name, or with the text that was read."""
  value, text = row[field], row.get(_TEXTS[field])
  if not isinstance(value, int):
    return repr(value)
  if "label" in row and "probabilities" in row and 0 <= value < len(row["probabilities"]):
    text = list(row["probabilities"])[value]
  return repr(value) if text in (None, str(value)) else f"{value!r} ({text!r})"


def _as_json(value: Any) -> Any:
  """Converts what a user's postprocessor has returned; what JSON cannot hold is written as Python shows it."""
  converted = plain(value)
  return repr(value) if converted is value else converted


def about_path(predictions: Path) -> Path:
  """Returns the path of the scores and metrics of a predictions file."""
  return predictions.with_suffix(".scores.json")


def predictions_path(folder: Path, task: str, split: str, step: int, examples: int) -> Path:
  """Returns the path of a model directory's predictions; those of part of a split have their own."""
  part = f"-first{examples}" if examples else ""
  return folder / "predictions" / f"{task}-{split}-{step}{part}.jsonl"


def is_correct(prediction: Any, target: Any) -> bool:
  """Whether an answer equals the target, or one of several targets."""
  return equal(target, prediction) or (
    isinstance(target, list)
    and not isinstance(prediction, list | np.ndarray)
    and any(equal(one, prediction) for one in target)
  )


def score_answers(
  answers: Mapping[int, str],
  fields: Sequence[Mapping[str, Any]],
  scoring: Mapping[str, Any],
  more: Mapping[int, Mapping[str, Any]] | None = None,
  modules: Sequence[str] = (),
  prediction_scores: Mapping[int, float] | None = None,
  target_scores: Sequence[float] | None = None,
) -> Evaluation:
  """Scores a model's answers.

  Args:
    answers: by example number; None where none was generated, because no metric takes it.
    fields: of all examples.
    scoring: postprocessor and metrics, from a token cache.
    more: extra fields for the rows, by example number.
    modules: the user's modules in which metrics and postprocessors may be found.
    prediction_scores: log-likelihoods of the answers, for metrics that take them.
    target_scores: log-likelihoods of the targets, for metrics that take them.
  """
  postprocess, metrics = find_postprocessor(scoring, modules), find_metrics(scoring, modules)
  rows, targets, outputs = [], [], []
  for number, text in sorted(answers.items()):
    example = fields[number]
    targets.append(postprocess(example["targets_pretokenized"], example=example, is_target=True))
    outputs.append(None if text is None else postprocess(text, example=example, is_target=False))
    row = {"inputs": example.get("inputs_pretokenized"), "prediction": outputs[-1], "target": targets[-1]}
    if isinstance(targets[-1], int):  # numbers of classes
      row |= {_TEXTS["prediction"]: text, _TEXTS["target"]: example["targets_pretokenized"]}
    rows.append(row | dict(more[number] if more else {}))
  own = [(prediction_scores or {}).get(number, math.nan) for number in sorted(answers)]
  true = None if target_scores is None else [target_scores[number] for number in sorted(answers)]
  taken = {metric.takes for metric in metrics}
  for takes, scores in ((SCORES, true), (AUX_VALUES, own)):
    if takes in taken and scores is not None:
      for row, score in zip(rows, scores, strict=True):
        row[SCORE_FIELDS[takes]] = None if math.isnan(score) else score
  values = metric_values.compute(metrics, Answers(targets, outputs, true, own))
  answer, chosen = "", [fields[number] for number in sorted(answers)]
  by_prediction = [metric for metric in metrics if metric.takes == PREDICTIONS]
  baseline: dict[str, float] = {}
  if by_prediction and (answer := _most_common([example["targets_pretokenized"] for example in chosen])):
    constant = [postprocess(answer, example=example, is_target=False) for example in chosen]
    baseline = metric_values.compute(by_prediction, Answers(targets, constant)).numbers
  return Evaluation(values.numbers, baseline, rows, answer, list(scoring["metrics"]), values.others, values.failures)


def try_on_targets(
  scoring: Mapping[str, Any], fields: Sequence[Mapping[str, Any]], modules: Sequence[str]
) -> Evaluation:
  """Scores the targets as answers, to find errors that would otherwise show after hours of training."""
  answers = {number: example["targets_pretokenized"] for number, example in enumerate(fields)}
  zeros = dict.fromkeys(answers, 0.0)
  return score_answers(
    answers, fields, scoring, modules=modules, prediction_scores=zeros, target_scores=list(zeros.values())
  )


def find_postprocessor(scoring: Mapping[str, Any], modules: Sequence[str]) -> Callable:
  """Returns a function fn(text, example=..., is_target=...) that takes the fields of a token cache as `example`."""
  entry = scoring["postprocessor"]
  return as_seqio_calls(find_function(entry, modules)) if entry else _unchanged


def _unchanged(text: str, **unused) -> str:
  return text


def with_ids(fields: list[Mapping[str, Any]], cache: TokenCache, eos: int) -> list[Mapping[str, Any]]:
  """Returns the first examples of a cache for its postprocessor, with ids unless it is one of ours that needs none."""
  entry = cache.scoring["postprocessor"]
  named = entry and str(entry.get("function"))
  if not named or (named.startswith("t5like.") and not named.endswith(":rank_classification")):
    return fields
  found = [dict(example) for example in fields]
  for feature in cache.features:
    texts = cache.texts(feature, np.arange(len(fields)))
    if cache.eos_placement(feature) != "none":
      texts = enclosed(texts, None, (), (eos,))
    for example, tokens, length in zip(found, texts.tokens, texts.lengths, strict=True):
      example[feature] = tokens[:length]
  return found


def metric_scores(metrics: Sequence[Callable], targets: Sequence[Any], outputs: Sequence[Any]) -> dict[str, float]:
  """Returns the numeric values of metrics that compare predictions; lets their exceptions through."""
  return {
    name: number
    for metric in metrics
    for name, value in metric(targets, outputs).items()
    if (number := metric_values.as_number(value)) is not None
  }


def find_metrics(scoring: Mapping[str, Any], modules: Sequence[str]) -> list[Metric]:
  return [find_metric(entry, modules) for entry in scoring["metrics"]]


def find_metric(entry: Mapping[str, Any], modules: Sequence[str]) -> Metric:
  return Metric(_name(entry), find_function(entry, modules), entry.get("takes", PREDICTIONS))


def takes_predictions(scoring: Mapping[str, Any]) -> bool:
  """Whether answers are needed: not if all metrics take the log-likelihoods of the targets alone."""
  return not scoring["metrics"] or any(entry.get("takes") != SCORES for entry in scoring["metrics"])


def takes_scores(scoring: Mapping[str, Any]) -> bool:
  """Whether a metric needs the log-likelihoods of the targets."""
  return any(entry.get("takes") == SCORES for entry in scoring["metrics"])


def _name(entry: Mapping[str, Any]) -> str:
  if registered := entry.get("registered"):
    return f"{registered['metric']} of task {registered['task']}"
  return str(entry.get("function")).rpartition(":")[2]


def _most_common(texts: Sequence[Any]) -> Any:
  """Returns the most common target; '' if targets are not text, or too diverse for a baseline."""
  if not all(isinstance(text, str) for text in texts):
    return ""
  counts = collections.Counter(texts)
  text, count = counts.most_common(1)[0] if counts else ("", 0)
  return "" if count < 2 or len(counts) > len(texts) / 2 else text


def find_function(entry: Mapping[str, Any], modules: Sequence[str] = ()) -> Callable:
  """Returns the scoring function that a token cache or predictions file names, with its keywords bound.

  Such files are not trusted: names are only looked up in the scoring modules of t5like, seqio and t5, and in the
  packages of `modules`, which the user chose. Unnamed functions are taken from a registered task.
  """
  if isinstance(entry, Mapping) and isinstance(entry.get("registered"), Mapping):
    return _registered(entry["registered"], modules)
  try:
    named, keywords = str(entry["function"]), dict(entry["keywords"])
    module, name = named.split(":")
  except (KeyError, TypeError, ValueError):
    raise UserError("invalid entry for a scoring function", found=repr(entry)[:100]) from None
  module = MOVED_MODULES.get(module, module)
  packages = (*_SCORING_MODULES, *(given.partition(".")[0] for given in modules))
  if not is_inside(module, packages):
    if (function := _function_of_a_task(named, modules)) is not None:
      return functools.partial(function, **keywords) if keywords else function
    raise UserError(
      f"the scoring function {named} is not from t5like, seqio or t5 and needs an explicitly trusted module",
      try_=f"--task_modules={module} (in training: --gin.TASK_MODULES; in Python: load(..., modules=[{module!r}])), if "
      "you trust it",
    )
  try:
    function = functools.reduce(getattr, name.split("."), import_user_module(module))
  except Exception as error:  # whatever the user's module raises
    raise UserError(
      f"cannot import the scoring function {named}",
      because=f"{type(error).__name__}: {error}",
      try_="put its module on PYTHONPATH, or rebuild the token cache",
    ) from None
  # Names that the module imports are rejected, such as `t5.evaluation.metrics:os.system`.
  if not callable(function) or not is_inside(getattr(function, "__module__", None) or "", packages):
    raise UserError(f"{named} is not a scoring function", expected="a function defined in that module")
  return functools.partial(function, **keywords) if keywords else function


def _function_of_a_task(named: str, modules: Sequence[str]) -> Callable | None:
  """Returns a function by which a task of the trusted modules is scored, if they have imported it from another."""
  for module in modules:
    with contextlib.suppress(ImportError):
      import_user_module(module)
  if not modules or (seqio := sys.modules.get("seqio")) is None:
    return None
  from t5like.tasks.caching.cache_kind import unbound

  for name in seqio.TaskRegistry.names():
    task = seqio.TaskRegistry.get(name)
    for function in map(unbound, filter(None, (task.postprocessor, *task.metric_fns))):
      if f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}" == named:
        return function
  return None


def _registered(entry: Mapping[str, Any], modules: Sequence[str]) -> Callable:
  """Returns a lambda or inner function of a task from seqio's registry; loads TensorFlow."""
  from t5like.tasks.quiet_start import load_seqio

  load_seqio()
  from t5like.tasks import registry

  task = registry.find_task(str(entry.get("task")), modules)
  if entry.get("metric") is None:
    return task.postprocessor
  functions = [*task.predict_metric_fns, *task.score_metric_fns, *task.predict_with_aux_metric_fns]
  try:
    return functions[entry["metric"]]
  except (IndexError, TypeError):
    raise UserError(f"the metrics of task {task.name!r} do not match its token cache", try_="t5like cache") from None


def scoring_identity(scoring: Mapping[str, Any], modules: Sequence[str]) -> str:
  """Returns a text that changes with the user's postprocessor and metrics and what they use; '' if there are none."""
  parts = []
  for entry in filter(None, (scoring["postprocessor"], *scoring["metrics"])):
    named = str(entry.get("function", "")).partition(":")[0]
    if is_inside(named, _SCORING_MODULES):
      continue
    parts.append(Closure([find_function(entry, modules)], values=True).digest)
  return f"{json.dumps(scoring, sort_keys=True)} {parts}" if parts else ""


def check_functions(scoring: Mapping[str, Any], modules: Sequence[str]) -> None:
  """Looks up every scoring function of a task, to fail before anything is decoded."""
  if scoring.get("refused"):
    raise UserError(
      f"the task cannot be evaluated with {scoring['refused']}",
      expected="metric_fns, of (targets, predictions), (targets, scores) or (targets, predictions, aux_values)",
    )
  for entry in (scoring["postprocessor"], *scoring["metrics"]):
    if entry:
      find_function(entry, modules)
