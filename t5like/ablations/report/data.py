"""The input of a report: a sweep directory, or the small file that it was exported to."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import Any

from t5like.ablations.benchmarks import group_of
from t5like.ablations.report.examples import Example, examples
from t5like.ablations.sweep.results import (
  SWEEP,
  Failure,
  Result,
  failure_from_json,
  from_json,
  read_failures,
  read_results,
  run_name,
  to_json,
)
from t5like.ablations.tables import RECIPES, TABLES, Table, find_tables
from t5like.errors import UserError
from t5like.files import storage

_FORMAT = 1
_MEASURED = Path(__file__).parents[1] / "measured"  # exports of our own sweeps
# In exports of one sweep from several machines.
_DIFFERS_IN_PARTS = ("tables", "recipes", "seeds", "created", "own", "recipe_digests")
_EXPORTED_POINTS = 50  # of a loss curve: enough for a plot, small enough to commit


@dataclasses.dataclass(frozen=True)
class ReportData:
  """The runs of one sweep. `sweep` is its sweep.json."""

  sweep: dict[str, Any]
  results: list[Result]
  failures: list[Failure]
  left_out: list[str] = dataclasses.field(default_factory=list)  # excluded results, with reasons

  @property
  def scale(self) -> str:
    return self.sweep["scale"]

  @property
  def tables(self) -> list[Table]:
    return find_tables(self.sweep["tables"])

  def requested(self, recipe: str) -> bool:
    """Returns whether the sweep includes a recipe: it may cover only some rows of its tables."""
    return recipe in self.sweep.get("recipes", [recipe])

  @property
  def examples(self) -> list[Example]:
    """Examples of the runs' objectives."""
    recorded = {result.recipe: result.example for result in self.results if result.example}
    return examples(dict.fromkeys(result.recipe for result in self.results), recorded)

  @property
  def seeds(self) -> list[int]:
    """The requested seeds."""
    seeds = self.sweep.get("seeds", [])
    return list(range(seeds)) if isinstance(seeds, int) else list(seeds)


def read_sweep(sweep_dir: str | Path) -> ReportData:
  folder = Path(sweep_dir).expanduser()
  file = folder / SWEEP
  if not file.is_file():
    raise UserError(
      f"no sweep in {folder}", missing=SWEEP, try_="t5like ablate --table=7 --sweep_dir=DIR, or --from=FILE.json"
    )
  return _validate(_load_json(file), read_results(folder), read_failures(folder), file)


def read_export(file: str | Path) -> ReportData:
  """Reads an exported sweep: a file, or the name of one in the package."""
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
  content = _load_json(file)
  if content.get("format") != _FORMAT or not isinstance(content.get("sweep"), dict):
    raise UserError(
      f"not an exported sweep of format {_FORMAT}: {file}",
      found=", ".join(list(content)[:8]),
      expected="a file that t5like ablate --report --export wrote",
    )
  try:
    results = [from_json(fields, file) for fields in content.get("results", [])]
    failures = [failure_from_json(fields, file) for fields in content.get("failures", [])]
  except TypeError as error:
    raise UserError(f"invalid runs in {file}", because=error) from None
  return _validate(content["sweep"], results, failures, file)


def read_exports(files: Sequence[str | Path]) -> ReportData:
  """Reads exported parts of one sweep, such as those of several machines: same settings, other runs."""
  first, *others = parts = [read_export(file) for file in files]
  if not others:
    return first
  settings = _settings(first)
  for file, part in zip(files[1:], others, strict=True):
    theirs = _settings(part)
    different = [name for name in {**settings, **theirs} if settings.get(name) != theirs.get(name)]
    if different:
      raise UserError(
        "not parts of one sweep",
        files=f"{files[0]}, {file}",
        different="; ".join(f"{name}: {settings.get(name)}, {theirs.get(name)}" for name in different),
      )
  orders = {"tables": list(TABLES), "recipes": list(RECIPES)}
  names = [name for name in orders if all(name in part.sweep for part in parts)]
  joined = {name: _in_order(_joined(part.sweep[name] for part in parts), orders[name]) for name in names}
  joined["seeds"] = _joined(part.seeds for part in parts)
  joined |= _own_recipes(parts, files)
  results, failures = ([each for part in parts for each in getattr(part, kind)] for kind in ("results", "failures"))
  data = _validate(settings | joined, results, failures, Path(files[0]))
  return dataclasses.replace(data, left_out=_joined([*(part.left_out for part in parts), data.left_out]))


def _own_recipes(parts: Sequence[ReportData], files: Sequence[str | Path]) -> dict[str, dict[str, str]]:
  """Joins what parts say of the user's own recipes, of which each machine may have trained others."""
  joined: dict[str, dict[str, str]] = {"own": {}, "recipe_digests": {}}
  for file, part in zip(files, parts, strict=True):
    for name, digest in (part.sweep.get("recipe_digests") or {}).items():
      if joined["recipe_digests"].get(name, digest) != digest:
        raise UserError("not parts of one sweep", file=file, different=f"the recipe {name}")
    for field, known in joined.items():
      joined[field] = (part.sweep.get(field) or {}) | known
  return joined


def _settings(part: ReportData) -> dict[str, Any]:
  """Returns what parts of one sweep have in common."""
  return {name: value for name, value in part.sweep.items() if name not in _DIFFERS_IN_PARTS}


def _in_order(names: Iterable[Any], known: Sequence[Any]) -> list[Any]:
  """Sorts names as a catalogue has them; others come last."""
  return sorted(names, key=lambda name: known.index(name) if name in known else len(known))


def _joined(lists: Iterable[Sequence[Any]]) -> list[Any]:
  return list(dict.fromkeys(each for items in lists for each in items))


def write_export(file: str | Path, data: ReportData) -> None:
  """Writes all that a report needs into one file, without commands, tracebacks and folders of this machine."""
  sweep = _without_folders(data.sweep)
  results = [
    to_json(dataclasses.replace(result, commands=[], curve=_downsample(result.curve, _EXPORTED_POINTS)))
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


def _load_json(file: Path) -> dict[str, Any]:
  try:
    return storage.read_json(file)
  except (ValueError, OSError) as error:
    raise UserError(f"cannot read {file}", because=error) from None


def _validate(sweep: dict[str, Any], found: Sequence[Result], failures: list[Failure], source: Path) -> ReportData:
  """Returns the data of a report; leaves out runs of other scales and scores that are not finite."""
  for field, kind in (("scale", str), ("tables", list)):
    if not isinstance(sweep.get(field), kind):
      raise UserError(f"no {field!r} of the sweep in {source}", found=", ".join(sweep))
  for field, kinds in (("tables", int | str), ("recipes", str), ("seeds", int)):
    value = sweep.get(field, [])
    value = [value] if field == "seeds" and isinstance(value, int) else value  # their number
    if not (isinstance(value, list) and all(isinstance(each, kinds) for each in value)):
      raise UserError(f"invalid {field!r} of the sweep in {source}", found=value)
  for result in found:
    if not (isinstance(result.scores, dict) and isinstance(result.tasks, dict) and "total" in result.cost):
      raise UserError(
        "incomplete result", file=source, run=run_name(result.recipe, result.seed), expected="scores, tasks, cost"
      )
  twice = [name for name, times in Counter(run_name(r.recipe, r.seed) for r in found).items() if times > 1]
  if twice:
    raise UserError("duplicate runs", file=source, runs=", ".join(twice))
  left_out, kept = [], []
  usual = _usual_tasks([result for result in found if result.scale == sweep["scale"]])
  for result in found:
    name = run_name(result.recipe, result.seed)
    if result.scale != sweep["scale"]:
      left_out.append(f"{name}: run at {result.scale} scale, but this report is for {sweep['scale']}")
      continue
    tasks, result = result.tasks, _finite(result)
    left_out += [f"{name}: a metric of {task} is not a number" for task in tasks if task not in result.tasks]
    scores, others = {}, _tasks_by_group(result)
    for group, score in result.scores.items():
      if score is None or not math.isfinite(score):
        left_out.append(f"{name}: its {group} score is not a number")
      elif others.get(group) != usual.get(group):  # means over different tasks are not comparable
        tasks = [", ".join(sorted(side.get(group, ()))) or "no task" for side in (others, usual)]
        left_out.append(f"{name}: its {group} score is over {tasks[0]}, that of most runs over {tasks[1]}")
      else:
        scores[group] = score
    kept.append(dataclasses.replace(result, scores=scores))
  if not kept:
    raise UserError(
      f"no finished runs at {sweep['scale']} scale",
      file=source,
      found="\n".join(left_out),
      failed=", ".join(run_name(f.recipe, f.seed) for f in failures),
    )
  finished = {(r.recipe, r.seed) for r in kept}
  order = {recipe: number for number, recipe in enumerate(RECIPES)}
  kept.sort(key=lambda r: (order.get(r.recipe, len(order)), r.recipe, r.seed))
  return ReportData(sweep, kept, [f for f in failures if (f.recipe, f.seed) not in finished], left_out)


def _finite(result: Result) -> Result:
  """Returns a result without tasks and losses that are not finite."""
  tasks, last = (
    {task: metrics for task, metrics in side.items() if all(map(math.isfinite, metrics.values()))}
    for side in (result.tasks, result.last)
  )
  losses = {task: loss for task, loss in result.losses.items() if math.isfinite(loss)}
  return dataclasses.replace(result, tasks=tasks, last=last, losses=losses)


def _usual_tasks(results: Sequence[Result]) -> dict[str, frozenset[str]]:
  """Returns, by group, the tasks that most runs were scored on; the larger set in a draw."""
  found: dict[str, Counter[frozenset[str]]] = {}
  for result in results:
    for group, tasks in _tasks_by_group(result).items():
      found.setdefault(group, Counter())[tasks] += 1
  return {group: max(sets, key=lambda tasks: (sets[tasks], len(tasks))) for group, sets in found.items()}


def _tasks_by_group(result: Result) -> dict[str, frozenset[str]]:
  groups = {group_of(task) for task in result.tasks}
  return {group: frozenset(task for task in result.tasks if group_of(task) == group) for group in groups}


def _downsample(curve: Sequence[tuple[int, float]], points: int) -> list[tuple[int, float]]:
  """Returns evenly spaced points of a curve, with losses of five digits: more is not visible."""
  finite = [(step, float(f"{loss:.5g}")) for step, loss in curve if math.isfinite(loss)]
  if len(finite) <= points:
    return finite
  return [finite[round(i * (len(finite) - 1) / (points - 1))] for i in range(points)]


def _without_folders(value: Any) -> Any:
  """Replaces absolute paths by their last component."""
  if isinstance(value, dict):
    return {key: _without_folders(part) for key, part in value.items()}
  if isinstance(value, list | tuple):
    return [_without_folders(part) for part in value]
  return PurePath(value).name if isinstance(value, str) and PurePath(value).is_absolute() else value


def _one_a_line(items: Sequence[dict[str, Any]]) -> str:
  """Formats one run per line, so that diffs of commits show which runs changed."""
  return "[\n" + ",\n".join(map(_compact, items)) + "\n]" if items else "[]"


def _compact(content: Any) -> str:
  return json.dumps(_without_nan(content), separators=(",", ":"), allow_nan=False)


def _without_nan(value: Any) -> Any:
  if isinstance(value, dict):
    return {key: _without_nan(part) for key, part in value.items()}
  if isinstance(value, list | tuple):
    return [_without_nan(part) for part in value]
  return None if isinstance(value, float) and not math.isfinite(value) else value
