"""The files of a sweep: a small JSON file for each finished run, one for each failure, and sweep.json."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from t5like.errors import UserError
from t5like.files import storage

SWEEP = "sweep.json"
RESULTS, FAILURES = "results", "failures"
CURVE_POINTS = 200
_REPEAT = "remove the file, then run the sweep's command again"


@dataclasses.dataclass(frozen=True)
class Cost:
  """Device time, FLOPs and tokens of a run; model FLOPs cover forward and backward, without rematerialization."""

  device: str
  devices: int
  device_seconds: float
  model_flops: float
  tokens: int  # of inputs and targets

  def __add__(self, other: Cost) -> Cost:
    return Cost(
      self.device or other.device,
      max(self.devices, other.devices),
      self.device_seconds + other.device_seconds,
      self.model_flops + other.model_flops,
      self.tokens + other.tokens,
    )


@dataclasses.dataclass(frozen=True)
class Result:
  """A recipe, pre-trained with one seed and scored on the tasks of the sweep."""

  recipe: str
  seed: int
  scale: str
  scores: dict[str, float]  # by group: the mean over its tasks that were run
  tasks: dict[str, dict[str, float]]  # the metrics of each task at its best checkpoint, and "best_step"
  curve: list[tuple[int, float]]  # training loss by step, at most CURVE_POINTS
  validation_loss: float | None
  cost: dict[str, Cost]  # "pretraining", "finetuning", "total"
  started: str  # ISO 8601
  finished: str
  version: str  # of t5like
  commands: list[str]
  # An example of a custom recipe's objective: "objective" (its name), "inputs" and "targets". It is recorded here
  # because a report does not run user code.
  example: dict[str, str] | None = None
  # The metrics of each task at its last evaluation: not chosen on the set that they are reported on.
  last: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
  # The lowest loss of each task's true answers (per token, teacher-forced), where the scale has it computed.
  losses: dict[str, float] = dataclasses.field(default_factory=dict)


def without_step(metrics: dict[str, float], name: str = "best_step") -> dict[str, float]:
  """Returns the metrics of a task without the number of a step among them."""
  return {metric: value for metric, value in metrics.items() if metric != name}


@dataclasses.dataclass(frozen=True)
class Failure:
  """A run that ended with an error."""

  recipe: str
  seed: int
  scale: str
  error: str
  when: str
  command: str  # of the job that failed
  traceback: str = ""


def run_name(recipe: str, seed: int) -> str:
  return f"{recipe.replace('/', '.')}-seed{seed}"


def result_path(sweep_dir: Path, recipe: str, seed: int) -> Path:
  return Path(sweep_dir) / RESULTS / f"{run_name(recipe, seed)}.json"


def has_results(sweep_dir: Path, recipe: str, seeds: int) -> bool:
  """Whether a recipe has finished with one of the seeds."""
  return any(result_path(sweep_dir, recipe, seed).is_file() for seed in range(seeds))


def failure_path(sweep_dir: Path, recipe: str, seed: int) -> Path:
  return Path(sweep_dir) / FAILURES / f"{run_name(recipe, seed)}.json"


def write_result(sweep_dir: Path, result: Result) -> Path:
  """Writes the file atomically and deletes the failure of an earlier attempt."""
  path = result_path(sweep_dir, result.recipe, result.seed)
  write_json(path, to_json(result))
  failure_path(sweep_dir, result.recipe, result.seed).unlink(missing_ok=True)
  return path


def write_failure(sweep_dir: Path, failure: Failure) -> Path:
  path = failure_path(sweep_dir, failure.recipe, failure.seed)
  write_json(path, dataclasses.asdict(failure))
  return path


def read_results(sweep_dir: Path) -> list[Result]:
  """Returns all finished runs, sorted by file name."""
  return [from_json(_read(path), path) for path in sorted((Path(sweep_dir) / RESULTS).glob("*.json"))]


def read_failures(sweep_dir: Path) -> list[Failure]:
  return [failure_from_json(_read(path), path) for path in sorted((Path(sweep_dir) / FAILURES).glob("*.json"))]


def failure_from_json(fields: dict[str, Any], source: object = "") -> Failure:
  """Returns the failure of a file; errors name `source`."""
  try:
    failure = Failure(**fields)
    check_types(failure)
    return failure
  except TypeError as error:
    raise UserError("not a failure file of a sweep", file=source, because=error) from None


def check_types(record: Any, keys: Mapping[str, str] | None = None) -> None:
  """Raises TypeError if a field of a dataclass is not of the annotated type; does not look into collections.

  keys: the names of fields that have another one in the file.
  """
  for name, kind in typing.get_type_hints(type(record)).items():
    value = getattr(record, name)
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    kinds = tuple(typing.get_origin(each) or each for each in kinds)
    if not isinstance(value, (*kinds, int) if float in kinds else kinds) or isinstance(value, bool):
      raise TypeError(f"invalid {(keys or {}).get(name, name)}: {value!r}")


def to_json(result: Result) -> dict[str, Any]:
  return dataclasses.asdict(result)


def from_json(fields: dict[str, Any], source: object = "") -> Result:
  """Returns the result that `to_json` serialized; errors name `source`."""
  try:
    cost = {part: Cost(**values) for part, values in fields["cost"].items()}
    curve = [(int(step), float(loss)) for step, loss in fields["curve"]]
    result = Result(**{**fields, "cost": cost, "curve": curve})
    for record in (result, *cost.values()):
      check_types(record)
    example = result.example
    if example is not None and not (
      set(example) == {"objective", "inputs", "targets"} and _are_texts(example.values())
    ):
      raise ValueError(f"invalid example: {example!r}")
    if not _are_texts(result.commands):
      raise ValueError(f"invalid commands: {result.commands!r}")
    tasks = (*fields["tasks"].values(), *fields.get("last", {}).values())
    for scores in (fields["scores"], fields.get("losses", {}), *tasks):
      for name, value in scores.items():
        if not isinstance(value, int | float):
          raise ValueError(f"{name} is not a number: {value!r}")
    return result
  except (KeyError, TypeError, ValueError, AttributeError) as error:
    because = f"no {error}" if isinstance(error, KeyError) else error
    raise UserError("not a result file of a sweep", file=source, because=because, try_=_REPEAT) from error


def _are_texts(values: Iterable[Any]) -> bool:
  return all(isinstance(value, str) for value in values)


def write_json(path: Path, content: Any) -> None:
  """Replaces a file atomically: readers on any machine see the old or the new content."""
  storage.write_atomic(path, json.dumps(content, indent=1) + "\n")


def _read(path: Path) -> dict[str, Any]:
  try:
    return storage.read_json(path)
  except (ValueError, OSError) as error:
    raise UserError(
      "cannot read a file of the sweep",
      file=path,
      because=error,
      try_=_REPEAT,
    ) from None
