"""Two sets of answers to the same questions: is one better, or is it chance?

The paired bootstrap (Koehn 2004, Berg-Kirkpatrick et al. 2012): rows are drawn with replacement, the same for both
sides, and the difference of scores is taken again and again.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5like.console import table
from t5like.errors import UserError
from t5like.evaluation.scoring import about_path, find_function, is_right, metric_scores
from t5like.files import storage

RESAMPLES = 10_000
_RECOMPUTED_SHARE = 10  # metrics that are no mean over rows are taken again for one in so many resamples
_CHUNK = 1 << 22  # counts in memory at a time
_SAME = 0.3  # points between a metric and the mean of its rows: ROUGE reports the median of a bootstrap of its own
_PREDICTIONS = re.compile(r"(?P<what>.+?)-(?P<step>\d+)(?P<rest>(-.*)?)\.jsonl")
EXACT_MATCH = {"function": "t5like.tasks.metrics:accuracy", "keywords": {}}


@dataclasses.dataclass(frozen=True)
class PairedAnswers:
  """A file of predictions, as an evaluation writes it."""

  path: Path
  rows: list[dict[str, Any]]
  metrics: list[Mapping[str, Any]]

  @property
  def predictions(self) -> list[Any]:
    return [row["prediction"] for row in self.rows]

  @property
  def targets(self) -> list[Any]:
    return [row["target"] for row in self.rows]


@dataclasses.dataclass(frozen=True)
class ScoreDifference:
  """B against A in one metric."""

  metric: str
  a: float
  b: float
  low: float  # of b - a, 95 % of resamples lie between low and high
  high: float
  better: float  # the share of resamples in which B scores more, ties counting half
  resamples: int

  @property
  def certain(self) -> bool:
    """The interval does not hold 0."""
    return self.low > 0 or self.high < 0


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Two files of answers to the same questions."""

  name: str  # task, split and settings
  a: PairedAnswers
  b: PairedAnswers
  differences: list[ScoreDifference]  # one a metric
  rows: list[dict[str, Any]]  # those that are answered differently, with their numbers from 1

  def only_right(self) -> dict[str, int]:
    """How many of the rows only one side answers right."""
    right = [(is_right(row["a"], row["target"]), is_right(row["b"], row["target"])) for row in self.rows]
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
  """Compares two files of predictions, or all that two model directories both have, as `compare` does."""
  for name, one, other in selection.pairs(a, b):
    first, second = read_answers(one), read_answers(other)
    found = compare(first, second, resamples, seed, progress, modules)
    yield Comparison(name, first, second, found, differing_rows(first, second))


@dataclasses.dataclass(frozen=True)
class Selection:
  """Which files of predictions of two model directories are compared; None: all, of the newest step."""

  tasks: tuple[str, ...] | None = None
  split: str | None = None
  step: int | None = None

  def pairs(self, a: Path, b: Path) -> list[tuple[str, Path, Path]]:
    """Two files, or the tasks, splits and settings that both directories have answers of."""
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
        "the two directories have no answers to the same task, split and settings",
        a=f"{a}: {', '.join(sides[0]) or 'none'}",
        b=f"{b}: {', '.join(sides[1]) or 'none'}",
        try_=f"t5like eval --model_dir={b} --task=TASK",
      )
    return [(name, sides[0][name], sides[1][name]) for name in shared]

  def _newest(self, folder: Path) -> dict[str, Path]:
    """By task, split and settings: the file of the newest step, or of the given one."""
    found: dict[str, tuple[int, Path]] = {}
    for path in sorted((folder / "predictions").glob("*.jsonl")):
      if not (match := _PREDICTIONS.fullmatch(path.name)):
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
    lines = path.read_text(encoding="utf-8").splitlines()
  except (OSError, UnicodeDecodeError) as error:
    raise UserError(f"cannot read the predictions {path}", because=error) from None
  for number, line in enumerate(lines, 1):
    try:
      row = storage.parse_json(line)
      rows.append({"prediction": row["prediction"], "target": row["target"], **row})
    except (ValueError, KeyError, TypeError):
      raise UserError(
        f"line {number} of {path} is no prediction",
        found=line[:100],
        expected='a JSON object with "prediction" and "target", as t5like eval writes them',
      ) from None
  if not rows:
    raise UserError(f"{path} is empty: there is nothing to compare")
  about = about_path(path)
  try:
    metrics = storage.read_json(about)["metrics"] if about.is_file() else [EXACT_MATCH]
  except (ValueError, KeyError) as error:
    raise UserError(f"cannot read the metrics of {path}", file=about, because=error, try_="move it away") from None
  return PairedAnswers(path, rows, metrics or [EXACT_MATCH])


def check_same_questions(a: PairedAnswers, b: PairedAnswers) -> None:
  if len(a.rows) != len(b.rows):
    raise UserError(
      f"{len(a.rows):,} answers cannot be compared with {len(b.rows):,}: they are of other questions",
      a=a.path, b=b.path, try_="evaluate both on the same split, with the same --examples",
    )  # fmt: skip
  for number, (one, other) in enumerate(zip(a.rows, b.rows, strict=True), 1):
    if one["target"] != other["target"] or one.get("inputs") != other.get("inputs"):
      raise UserError(
        f"row {number} is another question in each file",
        a=f"{a.path}: {str(one.get('inputs', one['target']))[:80]!r}",
        b=f"{b.path}: {str(other.get('inputs', other['target']))[:80]!r}",
      )


def compare(
  a: PairedAnswers,
  b: PairedAnswers,
  resamples: int = RESAMPLES,
  seed: int = 0,
  progress: Callable[[str], None] = lambda text: None,
  modules: Sequence[str] = (),
) -> list[ScoreDifference]:
  """The difference in every metric, with its 95 % interval. The same seed gives the same numbers.

  `modules` are those of the user's own in which metrics may be found.
  """
  check_same_questions(a, b)
  found = []
  for entry in a.metrics:
    metric = find_function(entry, modules)
    sides = [_Side(metric, a.targets, answers.predictions) for answers in (a, b)]
    shared = [name for name in sides[0].scores if name in sides[1].scores]
    means = [name for name in shared if all(side.is_mean(name) for side in sides)]
    rest = [name for name in shared if name not in means]
    drawn = {}
    if means:
      rows = np.stack([sides[1].rows[name] - sides[0].rows[name] for name in means], axis=1)
      drawn = dict(zip(means, bootstrap_means(rows, resamples, seed).T, strict=True))
    if rest:
      progress(f"scoring resamples for {', '.join(rest)} ...")
      drawn |= _recomputed(sides, rest, max(resamples // _RECOMPUTED_SHARE, 1), seed)
    found += [_difference(name, sides, drawn[name]) for name in shared if np.isfinite(drawn[name]).all()]
  return found


def bootstrap_means(rows: np.ndarray, resamples: int, seed: int) -> np.ndarray:
  """Means [resamples, metrics] of rows [n, metrics] drawn with replacement: by how often each was drawn."""
  draw, count = np.random.default_rng(seed), len(rows)
  at_once = max(_CHUNK // count, 1)
  means = []
  for start in range(0, resamples, at_once):
    size = min(at_once, resamples - start)
    times = draw.multinomial(count, np.full(count, 1.0 / count), size=size)  # [size, n]
    means.append(times @ rows / count)
  return np.concatenate(means)


class _Side:
  """One side's scores under a metric, of all rows and of each alone."""

  def __init__(self, metric: Callable, targets: Sequence[Any], predictions: Sequence[Any]):
    self._metric, self._targets, self._predictions = metric, targets, predictions
    self.scores = metric_scores([metric], targets, predictions)
    self.rows = self._of_rows()

  def of(self, numbers: Sequence[int]) -> dict[str, float]:
    targets, predictions = ([side[n] for n in numbers] for side in (self._targets, self._predictions))
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # a correlation of few rows
      return metric_scores([self._metric], targets, predictions)

  def _of_rows(self) -> dict[str, np.ndarray]:
    """By metric, the score of each row on its own; none where a row alone cannot be scored."""
    try:
      each = [self.of([number]) for number in range(len(self._targets))]
    except (ValueError, ZeroDivisionError, IndexError):
      return {}
    return {name: np.array([row.get(name, np.nan) for row in each]) for name in self.scores}

  def is_mean(self, name: str) -> bool:
    """Whether the metric is the mean over its rows: of all of them, and of three samples."""
    rows, count = self.rows.get(name), len(self._targets)
    if rows is None or not np.isfinite(rows).all():
      return False
    draw = np.random.default_rng(0)
    samples = [np.arange(count), *(draw.integers(0, count, count) for _ in range(3))]
    return all(abs(self.of(sample).get(name, np.nan) - rows[sample].mean()) < _SAME for sample in samples)


def _recomputed(sides: Sequence[_Side], names: Sequence[str], resamples: int, seed: int) -> dict[str, np.ndarray]:
  draw, count = np.random.default_rng(seed), len(sides[0]._targets)
  drawn = {name: np.empty(resamples) for name in names}
  for number in range(resamples):
    rows = draw.integers(0, count, count)
    one, other = (side.of(rows) for side in sides)
    for name in names:
      drawn[name][number] = other.get(name, np.nan) - one.get(name, np.nan)
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
    verdict = ("B is better" if d.low > 0 else "A is better") if d.certain else "may be chance"
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
  """The rows that are answered differently, with their numbers from 1."""
  check_same_questions(a, b)
  return [
    {"row": n, "inputs": one.get("inputs"), "target": one["target"], "a": one["prediction"], "b": other["prediction"]}
    for n, (one, other) in enumerate(zip(a.rows, b.rows, strict=True), 1)
    if one["prediction"] != other["prediction"]
  ]
