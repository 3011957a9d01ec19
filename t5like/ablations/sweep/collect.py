"""Collects the result of a run from its model directories, whether trained by the sweep or manually."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import t5like
from t5like.ablations.benchmarks import group_scores
from t5like.ablations.report.examples import recorded_example
from t5like.ablations.sweep.plan import MIXED, PRETRAIN, SweepRun, TrainJob, job_experiment
from t5like.ablations.sweep.results import CURVE_POINTS, Cost, Result, without_step
from t5like.ablations.tables import RECIPES
from t5like.console import say
from t5like.errors import RunError
from t5like.files import storage
from t5like.tasks.metrics.benchmarks import task_score
from t5like.training.records import goodput
from t5like.training.records import model_dir as directory
from t5like.training.records.metrics import read_metrics

_NO_COST = Cost("", 0, 0.0, 0.0, 0)


def is_finished(job: TrainJob) -> bool:
  """Returns whether a job was trained to its last step and scored there."""
  attempts = goodput.read_attempts(job.model_dir / goodput.FILE)
  return any(a["ended"] == "finished" and a["last_step"] >= job.steps for a in attempts)


def collect(run: SweepRun, scale: str) -> Result:
  """Returns the result of a run whose jobs are finished."""
  pretrain_job = next((job for job in run.jobs if job.name in (PRETRAIN, MIXED)), None)
  rows = read_metrics(pretrain_job.model_dir) if pretrain_job else []
  held_out = [row["loss"] for row in rows if row["kind"].startswith("eval_loss/") and row.get("loss") is not None]
  evaluated = {task: evaluations(job, task) for job in run.jobs for task in job.evaluated}
  tasks = {task: best_scores(task, found) for task, found in evaluated.items()}
  scores = {task: task_score(task, without_step(metrics)) for task, metrics in tasks.items()}
  costs = {job.name: job_cost(job) for job in run.jobs}
  # A pre-training that several runs start from counts once, for the run that it is named after.
  own = pretrain_job is not None and pretrain_job.model_dir.parent.name == run.name
  pretraining = costs[pretrain_job.name] if own else _NO_COST
  finetuning = sum((costs[p.name] for p in run.jobs if p is not pretrain_job), _NO_COST)
  attempts = [a for job in run.jobs for a in goodput.read_attempts(job.model_dir / goodput.FILE)]
  return Result(
    recipe=run.recipe,
    seed=run.seed,
    scale=scale,
    scores=group_scores(scores),
    tasks=tasks,
    curve=loss_curve(rows),
    validation_loss=held_out[-1] if held_out else None,
    cost={"pretraining": pretraining, "finetuning": finetuning, "total": pretraining + finetuning},
    started=_iso(min(a["written"] - _active_seconds(a) for a in attempts)),
    finished=_iso(max(a["written"] for a in attempts)),
    version=t5like.__version__,
    commands=[job.command for job in run.jobs],
    example=custom_example(pretrain_job) if pretrain_job and run.recipe not in RECIPES else None,
    last={task: without_step(found[-1], "step") for task, found in evaluated.items()},
    losses={task: loss for job in run.jobs for task in job.evaluated if (loss := answer_loss(job, task)) is not None},
  )


def custom_example(job: TrainJob) -> dict[str, str] | None:
  """Returns an example of a custom recipe's objective; None if words cannot illustrate it."""
  try:
    return recorded_example(job_experiment(job).objective)
  except Exception as error:  # a bug in user code must not lose a result
    say(f"  no example of the objective for the report: {type(error).__name__}: {error}")
    return None


def evaluations(job: TrainJob, task: str) -> list[dict[str, float]]:
  """Returns a task's metrics at all its evaluations, with the step."""
  found = [
    {name: value for name, value in row.items() if name != "kind"}
    for row in read_metrics(job.model_dir)
    if row["kind"] == f"eval/{task}" and None not in row.values()
  ]
  if not found:
    raise RunError(f"no scores of {task!r} in {job.model_dir}", try_="delete the folder to train it again")
  return found


def answer_loss(job: TrainJob, task: str) -> float | None:
  """Returns the lowest loss of a task's true answers over the evaluations of a job; None if it was not computed."""
  rows = [row["loss"] for row in read_metrics(job.model_dir) if row["kind"] == f"eval_loss/{task}"]
  return min((loss for loss in rows if loss is not None), default=None)


def best_scores(task: str, found: Sequence[dict[str, float]]) -> dict[str, float]:
  """Returns a task's metrics at its best evaluation (the paper's "best checkpoint"), and the step."""
  best = max(found, key=lambda metrics: task_score(task, without_step(metrics, "step")))
  return {**without_step(best, "step"), "best_step": best["step"]}


def loss_curve(rows: Sequence[dict]) -> list[tuple[int, float]]:
  """Returns the training loss by step, evenly downsampled for plots; the last point is kept."""
  points = [(row["step"], row["loss"]) for row in rows if row["kind"] == "train" and row.get("loss") is not None]
  if len(points) <= CURVE_POINTS:
    return points
  return [points[round(i * (len(points) - 1) / (CURVE_POINTS - 1))] for i in range(CURVE_POINTS)]


def job_cost(job: TrainJob) -> Cost:
  """Returns a job's cost: FLOPs and tokens from its configuration, seconds from all attempts without start-up."""
  from t5like.experiments.compatibility import phase_flops, row_tokens
  from t5like.experiments.phases import run_phases
  from t5like.objectives import SpecialTokens
  from t5like.runs.head_choice import resolve_head
  from t5like.runs.run_card import steps_per_phase
  from t5like.vocabularies import load_vocabulary

  experiment = resolve_head(job_experiment(job))  # a head has fewer FLOPs than the model's output
  phases = run_phases(experiment, SpecialTokens.of(load_vocabulary(experiment.vocabulary)))
  steps = steps_per_phase(phases, experiment.steps)
  tokens = sum(n * p.batch_size * row_tokens(experiment.model, p.lengths) for n, p in zip(steps, phases, strict=True))
  device, devices = _devices(job.model_dir)
  attempts = goodput.read_attempts(job.model_dir / goodput.FILE)
  seconds = sum(_active_seconds(attempt) * attempt.get("device_share", 1.0) for attempt in attempts)
  flops = sum(n * phase_flops(experiment.model, p.batch_size, p.lengths) for n, p in zip(steps, phases, strict=True))
  return Cost(device, devices, seconds * devices, float(flops), tokens)


def _active_seconds(attempt: Mapping[str, Any]) -> float:
  """Returns the seconds of an attempt after start-up."""
  return sum(spent for category, spent in attempt["spent"].items() if category != goodput.STARTING)


def _devices(model_dir: Path) -> tuple[str, int]:
  """Returns kind and number of devices from the run card; earlier versions wrote it only as text."""
  card = model_dir / directory.RUN_CARD
  if card.with_suffix(".json").is_file():
    devices = storage.read_json(card.with_suffix(".json"))["devices"]
    return devices["kind"], devices["count"]
  found = re.search(r"^\s*devices\s+(\d+) x (.*) on \d+ host", card.read_text(encoding="utf-8"), re.MULTILINE)
  return (found[2], int(found[1])) if found else ("unknown", 1)


def _iso(seconds: float) -> str:
  return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
