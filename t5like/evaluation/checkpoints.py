"""Checkpoints, one after the other: each measurement is made once and remembered in the model directory."""

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
from t5like.parallel.process_zero import run_on_process_zero
from t5like.training.checkpoints.folders import checkpoints_folder

Report = Callable[[Record, Evaluation], None]


@dataclasses.dataclass(frozen=True)
class Measurement:
  """One number or more of a checkpoint."""

  blank: Record  # what is measured, without step and scores
  measure: Callable[[Any, Record], Record]  # (parameters, the blank of a checkpoint) -> its record


def task_measurements(tasks: TaskEvaluation, out: Path, report: Report, stopped: Stopped = NEVER) -> list[Measurement]:
  """The scores of tasks; answers are written to `out`, and `report` receives every new evaluation."""

  def measurement(asked: Any) -> Measurement:
    def measure(params: Any, blank: Record) -> Record:
      result = tasks(params, asked, stopped)
      path = write_predictions(result, out, asked, blank.step, tasks.identity)
      predictions = str(path.relative_to(out))
      record = dataclasses.replace(blank, scores=result.scores, majority=result.majority, predictions=predictions)
      report(record, result)
      return record

    settings, count = description(tasks.identity), len(asked.fields)
    blank = Record(None, "", asked.task, asked.split, settings, count, {}, data=asked.data, identity=tasks.identity)
    return Measurement(blank, measure)

  return [measurement(asked) for asked in tasks.sets]


def measure_checkpoints(
  model: Model,
  measurements: Sequence[Measurement],
  checkpoints: CheckpointSelection,
  results: Results,
  average: bool = False,
  again: bool = False,
  stopped: Stopped = NEVER,
) -> Iterator[list[Record]]:
  """Yields the records of one checkpoint after the other; those of earlier evaluations too, unless `again`.

  A checkpoint that cannot be read is reported and left out where others follow. Ends early when `stopped`.
  """
  for step in checkpoints.of(model, stopped):
    identity = _identity(model, step)
    if identity is None:
      say(f"step {step:,} was removed before its turn")
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
  """What was measured before: process 0 looks it up, all go by what it finds."""
  if not run_on_process_zero(lambda: int(results.find(blank) is not None)):
    return None
  known = (results.find(blank) if jax.process_index() == 0 else None) or blank
  scores = ", ".join(f"{name} {value:.2f}" for name, value in known.scores.items())
  say(f"{blank.task} was evaluated at {at_step(blank.step)} already: {scores}  (--again does it anew)")
  return known


def at_step(step: int | None) -> str:
  return "the model" if step is None else f"step {step:,}"
