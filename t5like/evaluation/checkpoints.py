"""Evaluates checkpoints in turn; each result is computed once and stored in the model directory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from t5like.console import say
from t5like.evaluation.following import NEVER, CheckpointSelection, Stopped, load_next
from t5like.evaluation.scoring import Evaluation
from t5like.evaluation.settings import description
from t5like.evaluation.tables import Record, Results, checkpoint_identity
from t5like.evaluation.task_evaluation import EvaluationStopped, TaskEvaluation, write_predictions
from t5like.inference import Model
from t5like.parallel.process_zero import run_on_process_zero, true_on_all_processes
from t5like.training.checkpoints.folders import checkpoints_folder

Report = Callable[[Record, Evaluation], None]


@dataclasses.dataclass(frozen=True)
class Measurement:
  """One or more numbers to compute for a checkpoint."""

  blank: Record  # a record without step and scores
  measure: Callable[[Any, Record], Record]  # (parameters, blank record) -> complete record


def task_measurements(tasks: TaskEvaluation, out: Path, report: Report, stopped: Stopped = NEVER) -> list[Measurement]:
  """Returns measurements of task scores, which write answers to `out` and pass every new evaluation to `report`."""

  def measurement(evaluation_set: Any) -> Measurement:
    def measure(params: Any, blank: Record) -> Record:
      result = tasks(params, evaluation_set, stopped)
      path = write_predictions(result, out, evaluation_set, blank.step, tasks.identity)
      predictions = str(path.relative_to(out))
      record = dataclasses.replace(blank, scores=result.scores, majority=result.majority, predictions=predictions)
      report(record, result)
      return record

    settings, count = description(tasks.identity), len(evaluation_set.fields)
    blank = Record(
      None,
      "",
      evaluation_set.task,
      evaluation_set.split,
      settings,
      count,
      {},
      data=evaluation_set.data,
      identity=tasks.identity,
    )
    return Measurement(blank, measure)

  return [measurement(evaluation_set) for evaluation_set in tasks.sets]


def measure_checkpoints(
  model: Model,
  measurements: Sequence[Measurement],
  checkpoints: CheckpointSelection,
  results: Results,
  average: bool = False,
  again: bool = False,
  stopped: Stopped = NEVER,
) -> Iterator[list[Record]]:
  """Yields the records of each checkpoint; reuses those of earlier evaluations unless `again`.

  If several checkpoints are selected, unreadable ones are reported and skipped. Ends early when `stopped`.
  """
  for step in checkpoints.select(model, stopped):
    identity = _identity(model, step)
    if not true_on_all_processes(identity is not None):
      say(f"step {step:,} was deleted before it could be evaluated")
      continue
    params, records = None, []
    for wanted in measurements:
      blank = dataclasses.replace(wanted.blank, step=step, checkpoint=identity)
      if not again and (known := _known(results, blank)):
        records.append(known)
        continue
      if params is None and (params := load_next(model, step, average, checkpoints.several)) is None:
        break
      try:
        records.append(wanted.measure(params, blank))
      except EvaluationStopped:
        return
      if jax.process_index() == 0:
        results.add(records[-1])
    else:
      yield records


def _identity(model: Model, step: int | None) -> str | None:
  try:
    return "" if step is None else checkpoint_identity(checkpoints_folder(model.folder) / str(step))
  except FileNotFoundError:
    return None


def _known(results: Results, blank: Record) -> Record | None:
  """Returns the record of an earlier evaluation; process 0 looks it up for all."""
  if not run_on_process_zero(lambda: results.find(blank) is not None):
    return None
  known = (results.find(blank) if jax.process_index() == 0 else None) or blank
  scores = ", ".join(f"{name} {value:.2f}" for name, value in known.scores.items())
  say(f"{blank.task} was already evaluated at {at_step(blank.step)}: {scores}  (--again repeats it)")
  return known


def at_step(step: int | None) -> str:
  return "the model" if step is None else f"step {step:,}"
