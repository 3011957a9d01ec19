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
) -> Evaluation:
  """Predicts every example, then scores all of them.

  `batches` gives example numbers (-1 on filling rows), inputs, their lengths, and targets; `predict`
  answers inputs [rows, length] of given lengths; `fields` and `scoring` come from the token cache: no seqio is needed.
  """
  predictions: dict[int, str] = {}
  for numbers, inputs, lengths, _ in batches:
    answers = predict(inputs, lengths)
    predictions |= {int(n): decode(answer) for n, answer in zip(numbers, answers, strict=True) if n >= 0}
    progress(len(predictions))
  return score_answers(predictions, fields, scoring)


def score_answers(
  answers: Mapping[int, str],
  fields: Sequence[Mapping[str, Any]],
  scoring: Mapping[str, Any],
  more: Mapping[int, Mapping[str, Any]] | None = None,
) -> Evaluation:
  """Scores the texts that a model gave to examples of these numbers; `more` goes into the rows beside them."""
  postprocess = find_function(scoring["postprocessor"]) if scoring["postprocessor"] else _as_it_is
  rows, targets, outputs = [], [], []
  for number, text in sorted(answers.items()):
    example = fields[number]
    targets.append(postprocess(example["targets_pretokenized"], example=example, is_target=True))
    outputs.append(postprocess(text, example=example, is_target=False))
    row = {"inputs": example.get("inputs_pretokenized"), "prediction": outputs[-1], "target": targets[-1]}
    rows.append(row | dict(more[number] if more else {}))
  metrics = [find_function(m) for m in scoring["metrics"]]
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


def find_function(entry: Mapping[str, Any]) -> Callable:
  """The function that the token cache names, with its bound keywords."""
  module, name = entry["function"].split(":")
  try:
    function = functools.reduce(getattr, name.split("."), importlib.import_module(module))
  except (ImportError, AttributeError) as error:
    raise UserError(
      f"the scoring function {entry['function']} of this task cannot be imported",
      because=error,
      try_="put its module on PYTHONPATH, or rebuild the token cache",
    ) from None
  return functools.partial(function, **entry["keywords"]) if entry["keywords"] else function
