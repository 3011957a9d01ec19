"""Significance of the difference between two sets of answers to the same examples.

Uses the paired bootstrap (Koehn 2004, Berg-Kirkpatrick et al. 2012): rows are drawn with replacement, the same for both
sides, and the difference of scores is computed for each resample.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5like.console import table
from t5like.errors import UserError
from t5like.evaluation.scoring import (
  SCORE_FIELDS,
  about_path,
  find_metric,
  is_correct,
  metric_scores,
)
from t5like.files import storage
from t5like.tasks.metrics.values import PREDICTIONS, Answers, Metric, call_metric

RESAMPLES = 10_000
_RECOMPUTED_SHARE = 10  # metrics other than means over rows use 1/10 of the resamples: they are recomputed for each
_CHUNK = 1 << 22  # draws in memory at once
_MEAN_TOLERANCE = 0.3  # tolerance, in points, for a mean over rows: ROUGE reports the median of its own bootstrap
_FILE_NAME = re.compile(r"(?P<what>.+?)-(?P<step>\d+)(?P<rest>(-first\d+)?(-[\w.]+-[0-9a-f]{8})?)\.jsonl")
EXACT_MATCH = {"function": "t5like.tasks.metrics:accuracy", "keywords": {}}


@dataclasses.dataclass(frozen=True)
class PairedAnswers:
  """A file of predictions, as written by an evaluation."""

  path: Path
  rows: list[dict[str, Any]]
  metrics: list[Mapping[str, Any]]

  @property
  def predictions(self) -> list[Any]:
    return [row["prediction"] for row in self.rows]

  @property
  def targets(self) -> list[Any]:
    return [row["target"] for row in self.rows]

  def outputs(self, takes: str) -> list[Any] | None:
    """Returns predictions, or for a metric that takes log-likelihoods pairs with them; None if the file has none."""
    if takes == PREDICTIONS:
      return self.predictions
    field = SCORE_FIELDS[takes]
    if not all(field in row for row in self.rows):
      return None
    scores = [math.nan if row[field] is None else row[field] for row in self.rows]
    return list(zip(self.predictions, scores, strict=True))


@dataclasses.dataclass(frozen=True)
class ScoreDifference:
  """The difference between B and A in one metric."""

  metric: str
  a: float
  b: float
  low: float  # the 95 % interval of b - a
  high: float
  better: float  # fraction of resamples in which B scores higher; ties count half
  resamples: int

  @property
  def significant(self) -> bool:
    """Whether the interval excludes 0."""
    return self.low > 0 or self.high < 0


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The comparison of two files of answers to the same examples."""

  name: str  # task, split and settings
  a: PairedAnswers
  b: PairedAnswers
  differences: list[ScoreDifference]  # per metric
  rows: list[dict[str, Any]]  # those with different answers, numbered from 1

  def only_right(self) -> dict[str, int]:
    """Returns the number of rows that only one side answers correctly."""
    right = [(is_correct(row["a"], row["target"]), is_correct(row["b"], row["target"])) for row in self.rows]
    return {"A": right.count((True, False)), "B": right.count((False, True))}


def compare_paths(
  a: Path,
  b: Path,
  selection: Selection,
  resamples: int = RESAMPLES,
  seed: int = 0,
  modules: Sequence[str] = (),
  progress: Callable[[str], None] = lambda text: None,
) -> Iterator[Comparison]:
  """Compares two files of predictions, or all those that two model directories have in common."""
  for name, path_a, path_b in selection.pairs(a, b):
    first, second = read_answers(path_a), read_answers(path_b)
    found = compare(first, second, resamples, seed, progress, modules)
    yield Comparison(name, first, second, found, differing_rows(first, second))


@dataclasses.dataclass(frozen=True)
class Selection:
  """The prediction files to compare; None: all, of the newest step."""

  tasks: tuple[str, ...] | None = None
  split: str | None = None
  step: int | None = None

  def pairs(self, a: Path, b: Path) -> list[tuple[str, Path, Path]]:
    """Returns (name, file of A, file of B) for each task, split and settings that both have; or the two files."""
    if a.is_file() and b.is_file():
      return [(",".join(self.tasks or ()) or a.stem, a, b)]
    for path in (a, b):
      if not path.is_dir():
        raise UserError(
          f"nothing to compare in {path}", expected="two model directories, or two files of predictions (.jsonl)"
        )
    sides = [self._newest(path) for path in (a, b)]
    shared = [name for name in sides[0] if name in sides[1]]
    if not shared:
      raise UserError(
        "the two directories share no task, split and settings",
        a=f"{a}: {', '.join(sides[0]) or 'none'}",
        b=f"{b}: {', '.join(sides[1]) or 'none'}",
        try_=f"t5like eval --model_dir={b} --task=TASK",
      )
    return [(name, sides[0][name], sides[1][name]) for name in shared]

  def _newest(self, folder: Path) -> dict[str, Path]:
    """Returns the file of the newest step, or of the given one, by task, split and settings."""
    found: dict[str, tuple[int, Path]] = {}
    for path in sorted((folder / "predictions").glob("*.jsonl")):
      if not (match := _FILE_NAME.fullmatch(path.name)):
        continue
      name, step = match["what"] + match["rest"], int(match["step"])
      if self.step is not None and step != self.step:
        continue
      if self.tasks and not any(match["what"].startswith(f"{task}-") for task in self.tasks):
        continue
      if self.split and not match["what"].endswith(f"-{self.split}"):
        continue
      if name not in found or step > found[name][0]:
        found[name] = (step, path)
    return {name: path for name, (_, path) in found.items()}


def read_answers(path: Path) -> PairedAnswers:
  rows = []
  try:
    lines = storage.read_lines(path)
  except (OSError, UnicodeDecodeError) as error:
    raise UserError(f"cannot read the predictions {path}", because=error) from None
  for number, line in enumerate(lines, 1):
    try:
      row = storage.parse_json(line)
      rows.append({"prediction": row["prediction"], "target": row["target"], **row})
    except (ValueError, KeyError, TypeError):
      raise UserError(
        f"line {number} of {path} is not a prediction",
        found=line[:100],
        expected='a JSON object with "prediction" and "target", as t5like eval writes them',
      ) from None
  if not rows:
    raise UserError(f"{path} is empty")
  about = about_path(path)
  try:
    metrics = storage.read_json(about)["metrics"] if about.is_file() else [EXACT_MATCH]
  except (ValueError, KeyError) as error:
    raise UserError(f"cannot read the metrics of {path}", file=about, because=error, try_="move it away") from None
  return PairedAnswers(path, rows, metrics or [EXACT_MATCH])


def check_same_examples(a: PairedAnswers, b: PairedAnswers) -> None:
  if len(a.rows) != len(b.rows):
    raise UserError(
      f"the files have different numbers of rows: {len(a.rows):,} and {len(b.rows):,}",
      a=a.path, b=b.path, try_="evaluate both on the same split, with the same --examples",
    )  # fmt: skip
  for number, (row_a, row_b) in enumerate(zip(a.rows, b.rows, strict=True), 1):
    if row_a["target"] != row_b["target"] or row_a.get("inputs") != row_b.get("inputs"):
      raise UserError(
        f"row {number} differs in inputs or target between the files",
        a=f"{a.path}: {str(row_a.get('inputs', row_a['target']))[:80]!r}",
        b=f"{b.path}: {str(row_b.get('inputs', row_b['target']))[:80]!r}",
      )


def compare(
  a: PairedAnswers,
  b: PairedAnswers,
  resamples: int = RESAMPLES,
  seed: int = 0,
  progress: Callable[[str], None] = lambda text: None,
  modules: Sequence[str] = (),
) -> list[ScoreDifference]:
  """Returns the difference in every metric, with its 95 % interval; deterministic for a seed.

  modules: the user's modules in which metrics may be found.
  """
  check_same_examples(a, b)
  found = []
  for entry in a.metrics:
    metric = find_metric(entry, modules)
    outputs = [answers.outputs(metric.takes) for answers in (a, b)]
    if None in outputs:
      progress(f"the metric {metric.name} is left out: the answers were written without log-likelihoods")
      continue
    function = metric.function if metric.takes == PREDICTIONS else functools.partial(_call_with_pairs, metric)
    sides = [_Side(function, a.targets, given) for given in outputs]
    shared = [name for name in sides[0].scores if name in sides[1].scores]
    means = [name for name in shared if all(side.is_mean(name) for side in sides)]
    rest = [name for name in shared if name not in means]
    drawn = {}
    if means:
      rows = np.stack([sides[1].rows[name] - sides[0].rows[name] for name in means], axis=1)
      drawn = dict(zip(means, bootstrap_means(rows, resamples, seed).T, strict=True))
    if rest:
      progress(f"scoring resamples for {', '.join(rest)} ...")
      drawn |= _bootstrap_recomputed(sides, rest, max(resamples // _RECOMPUTED_SHARE, 1), seed)
    found += [_difference(name, sides, drawn[name]) for name in shared if np.isfinite(drawn[name]).all()]
  return found


def _call_with_pairs(metric: Metric, targets: Sequence[Any], pairs: Sequence[tuple[Any, float]]) -> Mapping[str, Any]:
  predictions, scores = map(list, zip(*pairs, strict=True))
  return call_metric(metric, Answers(targets, predictions, scores, scores))


def bootstrap_means(rows: np.ndarray, resamples: int, seed: int) -> np.ndarray:
  """Returns means [resamples, metrics] of rows [n, metrics] drawn with replacement, from multinomial counts."""
  draw, count = np.random.default_rng(seed), len(rows)
  at_once = max(_CHUNK // count, 1)
  means = []
  for start in range(0, resamples, at_once):
    size = min(at_once, resamples - start)
    draw_counts = draw.multinomial(count, np.full(count, 1.0 / count), size=size)  # [size, n]
    means.append(draw_counts @ rows / count)
  return np.concatenate(means)


class _Side:
  """One side's scores in a metric, over all rows and per row."""

  def __init__(self, metric: Callable, targets: Sequence[Any], predictions: Sequence[Any]):
    self._metric, self._targets, self._predictions = metric, targets, predictions
    self.scores = metric_scores([metric], targets, predictions)
    self.rows = self._score_each_row()

  def score_rows(self, numbers: Sequence[int]) -> dict[str, float]:
    targets, predictions = ([side[n] for n in numbers] for side in (self._targets, self._predictions))
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # from correlations of few rows
      return metric_scores([self._metric], targets, predictions)

  def _score_each_row(self) -> dict[str, np.ndarray]:
    """Returns the scores of single rows by metric; {} if the metric needs several rows."""
    try:
      each = [self.score_rows([number]) for number in range(len(self._targets))]
    except (ValueError, ZeroDivisionError, IndexError):
      return {}
    return {name: np.array([row.get(name, np.nan) for row in each]) for name in self.scores}

  def is_mean(self, name: str) -> bool:
    """Whether the metric is a mean over rows, checked on all rows and on three samples."""
    rows, count = self.rows.get(name), len(self._targets)
    if rows is None or not np.isfinite(rows).all():
      return False
    draw = np.random.default_rng(0)
    samples = [np.arange(count), *(draw.integers(0, count, count) for _ in range(3))]
    return all(
      abs(self.score_rows(sample).get(name, np.nan) - rows[sample].mean()) < _MEAN_TOLERANCE for sample in samples
    )


def _bootstrap_recomputed(
  sides: Sequence[_Side], names: Sequence[str], resamples: int, seed: int
) -> dict[str, np.ndarray]:
  draw, count = np.random.default_rng(seed), len(sides[0]._targets)
  drawn = {name: np.empty(resamples) for name in names}
  for number in range(resamples):
    rows = draw.integers(0, count, count)
    scores_a, scores_b = (side.score_rows(rows) for side in sides)
    for name in names:
      drawn[name][number] = scores_b.get(name, np.nan) - scores_a.get(name, np.nan)
  return drawn


def _difference(name: str, sides: Sequence[_Side], drawn: np.ndarray) -> ScoreDifference:
  low, high = np.percentile(drawn, (2.5, 97.5))
  better = float(np.mean(drawn > 0) + 0.5 * np.mean(drawn == 0))
  a, b = (side.scores[name] for side in sides)
  return ScoreDifference(name, a, b, float(low), float(high), better, len(drawn))


def differences_table(found: Sequence[ScoreDifference], a: str = "A", b: str = "B") -> str:
  rows = [("metric", a, b, "B - A", "95 % interval", "B better in", "resamples", "")]
  for d in found:
    interval = f"{d.low:+.2f} to {d.high:+.2f}"
    verdict = ("B is better" if d.low > 0 else "A is better") if d.significant else "not significant"
    rows.append(
      (
        d.metric,
        f"{d.a:.2f}",
        f"{d.b:.2f}",
        f"{d.b - d.a:+.2f}",
        interval,
        f"{d.better:.1%}",
        f"{d.resamples:,}",
        verdict,
      )
    )
  return table(rows, right=(1, 2, 3, 4, 5, 6), indent="  ")


def differing_rows(a: PairedAnswers, b: PairedAnswers) -> list[dict[str, Any]]:
  """Returns the rows with different answers, numbered from 1."""
  check_same_examples(a, b)
  return [
    {
      "row": n,
      "inputs": row_a.get("inputs"),
      "target": row_a["target"],
      "a": row_a["prediction"],
      "b": row_b["prediction"],
    }
    for n, (row_a, row_b) in enumerate(zip(a.rows, b.rows, strict=True), 1)
    if row_a["prediction"] != row_b["prediction"]
  ]
