"""From decoded answers to the task's own metrics, with the baseline that shows what they are worth."""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5like.errors import UserError
from t5like.training.model_dir import write_text

# Where the tasks of t5like, and those written for seqio and the t5 library, have their metrics and postprocessors.
_SCORING_MODULES = (
  *(f"t5like.tasks.{module}" for module in (
    "metrics", "postprocessors", "qa_metrics", "text_metrics", "tagging_metrics", "ranking_metrics", "encoder_scores",
    "ner_text",
  )),
  "seqio.metrics", "seqio.evaluation", "t5.evaluation", "t5.data",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """What came out, row by row and as numbers."""

  scores: dict[str, float]
  majority: dict[str, float]  # the same metrics if every answer were the text of the commonest target
  rows: list[dict[str, Any]]  # inputs, prediction and target of every example
  majority_answer: str = ""
  metrics: list[Mapping[str, Any]] = dataclasses.field(default_factory=list)  # the functions, as a token cache has them

  def summary(self) -> str:
    return "   ".join(
      f"{name} {score:.2f}"
      + (f"  (always {self.majority_answer!r}: {self.majority[name]:.2f})" if name in self.majority else "")
      for name, score in self.scores.items()
    )

  def write(self, path: Path) -> None:
    """One JSON object a row, replaced in one step; beside it what scored them, so that they can be scored again."""
    about = {"scores": self.scores, "metrics": self.metrics}
    write_text(about_path(path), json.dumps(about, indent=2) + "\n")
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in self.rows))


def about_path(predictions: Path) -> Path:
  """Where the scores and the metrics of a file of predictions are kept."""
  return predictions.with_suffix(".scores.json")


def evaluate(
  batches: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]],
  predict: Callable[[np.ndarray, np.ndarray], np.ndarray],
  decode: Callable[[Sequence[int]], str],
  fields: Sequence[Mapping[str, Any]],
  scoring: Mapping[str, Any],
  progress: Callable[[int], None] = lambda done: None,
  modules: Sequence[str] = (),
) -> Evaluation:
  """Predicts every example, then scores all of them.

  `batches` gives example numbers (-1 on filling rows), inputs, their lengths, and targets; `predict`
  answers inputs [rows, length] of given lengths; `fields` and `scoring` come from the token cache: no seqio is needed.
  `modules`: as `score_answers`.
  """
  predictions: dict[int, str] = {}
  for numbers, inputs, lengths, _ in batches:
    answers = predict(inputs, lengths)
    predictions |= {int(n): decode(answer) for n, answer in zip(numbers, answers, strict=True) if n >= 0}
    progress(len(predictions))
  return score_answers(predictions, fields, scoring, modules=modules)


def score_answers(
  answers: Mapping[int, str],
  fields: Sequence[Mapping[str, Any]],
  scoring: Mapping[str, Any],
  more: Mapping[int, Mapping[str, Any]] | None = None,
  modules: Sequence[str] = (),
) -> Evaluation:
  """Scores the texts that a model gave to examples of these numbers; `more` goes into the rows next to them.

  `modules` are those of the user's own in which metrics and postprocessors may be found.
  """
  postprocess = find_function(scoring["postprocessor"], modules) if scoring["postprocessor"] else _as_it_is
  rows, targets, outputs = [], [], []
  for number, text in sorted(answers.items()):
    example = fields[number]
    targets.append(postprocess(example["targets_pretokenized"], example=example, is_target=True))
    outputs.append(postprocess(text, example=example, is_target=False))
    row = {"inputs": example.get("inputs_pretokenized"), "prediction": outputs[-1], "target": targets[-1]}
    rows.append(row | dict(more[number] if more else {}))
  metrics = [find_function(m, modules) for m in scoring["metrics"]]
  scores = metric_scores(metrics, targets, outputs)
  answer, chosen = "", [fields[number] for number in sorted(answers)]
  if metrics and (answer := _commonest([example["targets_pretokenized"] for example in chosen])):
    constant = [postprocess(answer, example=example, is_target=False) for example in chosen]
  baseline = metric_scores(metrics, targets, constant) if answer else {}
  return Evaluation(scores, baseline, rows, answer, list(scoring["metrics"]))


def _as_it_is(text: str, **unused) -> str:
  return text


def metric_scores(metrics: Sequence[Callable], targets: Sequence[Any], outputs: Sequence[Any]) -> dict[str, float]:
  return {name: float(value) for metric in metrics for name, value in metric(targets, outputs).items()}


def _commonest(texts: Sequence[str]) -> str:
  """The answer that is right most often; '' where targets are free text and none recurs."""
  counts = collections.Counter(texts)
  text, count = counts.most_common(1)[0] if counts else ("", 0)
  return "" if count < 2 or len(counts) > len(texts) / 2 else text


def find_function(entry: Mapping[str, Any], modules: Sequence[str] = ()) -> Callable:
  """The scoring function that a token cache or a file of predictions names, with its bound keywords.

  Such files are data, perhaps somebody else's, and a name in them must not run just any function: it is looked for in
  the modules of t5like, seqio and t5 that hold scoring functions, and in the packages of `modules`, which the user
  named.
  """
  try:
    named, keywords = str(entry["function"]), dict(entry["keywords"])
    module, name = named.split(":")
  except (KeyError, TypeError, ValueError):
    raise UserError("this names no scoring function", found=repr(entry)[:100]) from None
  packages = (*_SCORING_MODULES, *(given.partition(".")[0] for given in modules))
  if not _is_inside(module, packages):
    raise UserError(
      f"the scoring function {named} is not one of t5like, seqio or t5: it is only run if you name its module",
      try_=f"--task_modules={module} (in training: --gin.TASK_MODULES), if you know and trust it",
    )
  try:
    function = functools.reduce(getattr, name.split("."), importlib.import_module(module))
  except (ImportError, AttributeError) as error:
    raise UserError(
      f"the scoring function {named} of this task cannot be imported",
      because=error,
      try_="put its module on PYTHONPATH, or rebuild the token cache",
    ) from None
  # A module also has what it imports: `t5.evaluation.metrics:os.system` must not be reached through it.
  if not callable(function) or not _is_inside(getattr(function, "__module__", None) or "", packages):
    raise UserError(f"{named} is not a scoring function", expected="a function that the module itself defines")
  return functools.partial(function, **keywords) if keywords else function


def check_functions(scoring: Mapping[str, Any], modules: Sequence[str]) -> None:
  """Finds every scoring function of a task, so that one that is missing is known before anything is decoded."""
  for entry in (scoring["postprocessor"], *scoring["metrics"]):
    if entry:
      find_function(entry, modules)


def _is_inside(module: str, packages: Sequence[str]) -> bool:
  return any(module == package or module.startswith(f"{package}.") for package in packages)
