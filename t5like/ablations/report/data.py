"""What a report is made of: a sweep directory, or the one small file that it was exported to."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

from t5like.ablations.benchmarks import group_of
from t5like.ablations.report.examples import Example, examples
from t5like.ablations.sweep.results import (
  SWEEP,
  Failure,
  Result,
  from_json,
  read_failures,
  read_results,
  run_name,
  to_json,
)
from t5like.ablations.tables import RECIPES, Table, find_tables
from t5like.errors import UserError
from t5like.files import storage

_FORMAT = 1
_MEASURED = Path(__file__).parents[1] / "measured"  # sweeps of ours, as they were exported
_EXPORTED_POINTS = 50  # of a loss curve: enough for a plot, small enough to commit


@dataclasses.dataclass(frozen=True)
class ReportData:
  """The runs of one sweep. `sweep` is its sweep.json."""

  sweep: dict[str, Any]
  results: list[Result]
  failures: list[Failure]
  left_out: list[str] = dataclasses.field(default_factory=list)  # what was found and is not used, and why

  @property
  def scale(self) -> str:
    return self.sweep["scale"]

  @property
  def tables(self) -> list[Table]:
    return find_tables(self.sweep["tables"])

  def asked_for(self, recipe: str) -> bool:
    """A sweep may be of some rows of its tables only."""
    return recipe in self.sweep.get("recipes", [recipe])

  @property
  def examples(self) -> list[Example]:
    """What the objectives of the runs do to a text."""
    recorded = {result.recipe: result.example for result in self.results if result.example}
    return examples(dict.fromkeys(result.recipe for result in self.results), recorded)

  @property
  def seeds(self) -> list[int]:
    """Those asked for."""
    seeds = self.sweep.get("seeds", [])
    return list(range(seeds)) if isinstance(seeds, int) else list(seeds)


def read_sweep(sweep_dir: str | Path) -> ReportData:
  folder = Path(sweep_dir).expanduser()
  file = folder / SWEEP
  if not file.is_file():
    raise UserError(
      f"no sweep in {folder}", missing=SWEEP, try_="t5like ablate --table=7 --sweep_dir=DIR, or --from=FILE.json"
    )
  return _checked(_loaded(file), read_results(folder), read_failures(folder), file)


def read_export(file: str | Path) -> ReportData:
  """An exported sweep: a file, or the name of one that the package has."""
  file = Path(file).expanduser()
  ours = {path.stem: path for path in _MEASURED.glob("*.json")}
  if not file.is_file() and str(file) in ours:
    file = ours[str(file)]
  if not file.is_file():
    raise UserError(
      f"no file {file}",
      known=", ".join(ours),
      try_="t5like ablate --report --sweep_dir=DIR --export=FILE.json writes one",
    )
  content = _loaded(file)
  if content.get("format") != _FORMAT or not isinstance(content.get("sweep"), dict):
    raise UserError(
      f"{file} holds no exported sweep of format {_FORMAT}",
      found=", ".join(list(content)[:8]),
      expected="a file that t5like ablate --report --export wrote",
    )
  try:
    results = [from_json(fields, file) for fields in content.get("results", [])]
    failures = [Failure(**fields) for fields in content.get("failures", [])]
  except TypeError as error:
    raise UserError(f"{file} holds something else than runs", because=error) from None
  return _checked(content["sweep"], results, failures, file)


def write_export(file: str | Path, data: ReportData) -> None:
  """One file with all that a report shows. Commands, tracebacks and folders stay behind: they name this machine."""
  sweep = _without_folders(data.sweep)
  results = [
    to_json(dataclasses.replace(result, commands=[], curve=_thinned(result.curve, _EXPORTED_POINTS)))
    for result in data.results
  ]
  failures = [dataclasses.asdict(dataclasses.replace(f, command="", traceback="")) for f in data.failures]
  file = Path(file).expanduser()
  file.parent.mkdir(parents=True, exist_ok=True)
  file.write_text(
    f'{{"format": {_FORMAT},\n"sweep": {_compact(sweep)},\n"results": {_one_a_line(results)},\n'
    f'"failures": {_one_a_line(failures)}}}\n',
    encoding="utf-8",
  )


def _loaded(file: Path) -> dict[str, Any]:
  try:
    return storage.read_json(file)
  except (ValueError, OSError) as error:
    raise UserError(f"cannot read {file}", because=error) from None


def _checked(sweep: dict[str, Any], found: Sequence[Result], failures: list[Failure], source: Path) -> ReportData:
  """Only runs of the sweep's own scale are compared; a number that is none is no score."""
  for field, kind in (("scale", str), ("tables", list)):
    if not isinstance(sweep.get(field), kind):
      raise UserError(f"{source} does not say the sweep's {field}", found=", ".join(sweep))
  for result in found:
    if not (isinstance(result.scores, dict) and isinstance(result.tasks, dict) and "total" in result.cost):
      raise UserError(
        "a result is not whole", file=source, run=run_name(result.recipe, result.seed), expected="scores, tasks, cost"
      )
  twice = [name for name, times in Counter(run_name(r.recipe, r.seed) for r in found).items() if times > 1]
  if twice:
    raise UserError("a run is there twice", file=source, runs=", ".join(twice))
  left_out, kept = [], []
  usual = _usual_tasks([result for result in found if result.scale == sweep["scale"]])
  for result in found:
    name = run_name(result.recipe, result.seed)
    if result.scale != sweep["scale"]:
      left_out.append(f"{name}: of scale {result.scale}, and this report is of {sweep['scale']}")
      continue
    scores, others = {}, _tasks_by_group(result)
    for group, score in result.scores.items():
      if score is None or not math.isfinite(score):
        left_out.append(f"{name}: its {group} score is not a number")
      elif others.get(group) != usual.get(group):  # a mean over other tasks is another score
        tasks = [", ".join(sorted(side.get(group, ()))) or "no task" for side in (others, usual)]
        left_out.append(f"{name}: its {group} score is of {tasks[0]}, and that of most runs of {tasks[1]}")
      else:
        scores[group] = score
    kept.append(dataclasses.replace(result, scores=scores))
  if not kept:
    raise UserError(
      f"no finished run of scale {sweep['scale']} to report",
      file=source,
      found="\n".join(left_out),
      failed=", ".join(run_name(f.recipe, f.seed) for f in failures),
    )
  finished = {(r.recipe, r.seed) for r in kept}
  order = {recipe: number for number, recipe in enumerate(RECIPES)}
  kept.sort(key=lambda r: (order.get(r.recipe, len(order)), r.recipe, r.seed))
  return ReportData(sweep, kept, [f for f in failures if (f.recipe, f.seed) not in finished], left_out)


def _usual_tasks(results: Sequence[Result]) -> dict[str, frozenset[str]]:
  """By group, the tasks that most runs were scored on; the larger set where two are as frequent."""
  found: dict[str, Counter[frozenset[str]]] = {}
  for result in results:
    for group, tasks in _tasks_by_group(result).items():
      found.setdefault(group, Counter())[tasks] += 1
  return {group: max(sets, key=lambda tasks: (sets[tasks], len(tasks))) for group, sets in found.items()}


def _tasks_by_group(result: Result) -> dict[str, frozenset[str]]:
  groups = {group_of(task) for task in result.tasks}
  return {group: frozenset(task for task in result.tasks if group_of(task) == group) for group in groups}


def _thinned(curve: Sequence[tuple[int, float]], points: int) -> list[tuple[int, float]]:
  """Evenly spaced points of a curve with losses of five digits: more cannot be seen."""
  finite = [(step, float(f"{loss:.5g}")) for step, loss in curve if math.isfinite(loss)]
  if len(finite) <= points:
    return finite
  return [finite[round(i * (len(finite) - 1) / (points - 1))] for i in range(points)]


def _without_folders(value: Any) -> Any:
  """Absolute paths become their last part."""
  if isinstance(value, dict):
    return {key: _without_folders(part) for key, part in value.items()}
  if isinstance(value, list | tuple):
    return [_without_folders(part) for part in value]
  return PurePath(value).name if isinstance(value, str) and PurePath(value).is_absolute() else value


def _one_a_line(items: Sequence[dict[str, Any]]) -> str:
  """A run is a line: small, and a later commit shows which runs changed."""
  return "[\n" + ",\n".join(map(_compact, items)) + "\n]" if items else "[]"


def _compact(content: Any) -> str:
  return json.dumps(_without_nan(content), separators=(",", ":"), allow_nan=False)


def _without_nan(value: Any) -> Any:
  if isinstance(value, dict):
    return {key: _without_nan(part) for key, part in value.items()}
  if isinstance(value, list | tuple):
    return [_without_nan(part) for part in value]
  return None if isinstance(value, float) and not math.isfinite(value) else value
