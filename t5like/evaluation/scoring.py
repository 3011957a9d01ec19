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
  majority: dict[str, float]  # the same metrics if every answer were the commonest target
  rows: list[dict[str, Any]]  # inputs, prediction and target of every example

  def summary(self) -> str:
    return "   ".join(
      f"{name} {score:.2f}"
      + (f"  (always {self.majority_answer!r}: {self.majority[name]:.2f})" if name in self.majority else "")
      for name, score in self.scores.items()
    )

  @property
  def majority_answer(self) -> str:
    return collections.Counter(str(row["target"]) for row in self.rows).most_common(1)[0][0]

  def write(self, path: Path) -> None:
    """One JSON object a row, replaced in one step."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in self.rows))


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
  postprocess = find_function(scoring["postprocessor"]) if scoring["postprocessor"] else _as_it_is
  predictions: dict[int, str] = {}
  for numbers, inputs, lengths, _ in batches:
    answers = predict(inputs, lengths)
    predictions |= {int(n): decode(answer) for n, answer in zip(numbers, answers, strict=True) if n >= 0}
    progress(len(predictions))

  rows, targets, outputs = [], [], []
  for number, text in sorted(predictions.items()):
    example = fields[number]
    targets.append(postprocess(example["targets_pretokenized"], example=example, is_target=True))
    outputs.append(postprocess(text, example=example, is_target=False))
    rows.append({"inputs": example.get("inputs_pretokenized"), "prediction": outputs[-1], "target": targets[-1]})
  metrics = [find_function(m) for m in scoring["metrics"]]
  return Evaluation(_scores(metrics, targets, outputs), _majority(metrics, targets), rows)


def _as_it_is(text: str, **unused) -> str:
  return text


def _scores(metrics: Sequence[Callable], targets: Sequence[Any], outputs: Sequence[Any]) -> dict[str, float]:
  return {name: float(value) for metric in metrics for name, value in metric(targets, outputs).items()}


def _majority(metrics: Sequence[Callable], targets: Sequence[Any]) -> dict[str, float]:
  """Scores of the constant commonest answer; none where targets are free text and no answer recurs."""
  counts = collections.Counter(map(repr, targets))
  commonest, count = counts.most_common(1)[0]
  if count < 2 or len(counts) > len(targets) / 2:
    return {}
  answer = next(t for t in targets if repr(t) == commonest)
  return _scores(metrics, targets, [answer] * len(targets))


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
