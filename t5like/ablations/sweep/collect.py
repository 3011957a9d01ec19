"""From the model directories of a run to its result: whoever trained them, the sweep or a command given by hand."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import t5like
from t5like.ablations.benchmarks import group_scores
from t5like.ablations.report.examples import recorded_example
from t5like.ablations.sweep.plan import MIXED, PRETRAIN, Part, SweepRun, load_part
from t5like.ablations.sweep.results import CURVE_POINTS, Cost, Result
from t5like.ablations.tables import RECIPES
from t5like.console import say
from t5like.errors import RunError
from t5like.files import storage
from t5like.tasks.metrics.benchmarks import task_score
from t5like.training.records import goodput
from t5like.training.records import model_dir as directory
from t5like.training.records.metrics import read_metrics

_NOTHING = Cost("", 0, 0.0, 0.0, 0)


def is_finished(part: Part) -> bool:
  """Whether a part was trained to its last step and scored there."""
  attempts = goodput.read_attempts(part.model_dir / goodput.FILE)
  return any(a["ended"] == "finished" and a["last_step"] >= part.steps for a in attempts)


def collect(run: SweepRun, scale: str) -> Result:
  """The result of a run whose parts are finished."""
  learned = next((part for part in run.parts if part.name in (PRETRAIN, MIXED)), None)
  rows = read_metrics(learned.model_dir) if learned else []
  held_out = [row["loss"] for row in rows if row["kind"].startswith("eval_loss/") and row.get("loss") is not None]
  tasks = {task: best_scores(part, task) for part in run.parts for task in part.evaluated}
  scores = {task: task_score(task, without_step(metrics)) for task, metrics in tasks.items()}
  costs = {part.name: part_cost(part) for part in run.parts}
  pretraining = sum((costs[p.name] for p in run.parts if p is learned), _NOTHING)
  finetuning = sum((costs[p.name] for p in run.parts if p is not learned), _NOTHING)
  attempts = [a for part in run.parts for a in goodput.read_attempts(part.model_dir / goodput.FILE)]
  return Result(
    recipe=run.recipe,
    seed=run.seed,
    scale=scale,
    scores=group_scores(scores),
    tasks=tasks,
    curve=loss_curve(rows),
    validation_loss=held_out[-1] if held_out else None,
    cost={"pretraining": pretraining, "finetuning": finetuning, "total": pretraining + finetuning},
    started=_iso(min(a["written"] - _seconds_at_work(a) for a in attempts)),
    finished=_iso(max(a["written"] for a in attempts)),
    version=t5like.__version__,
    commands=[part.command for part in run.parts],
    example=custom_example(learned) if learned and run.recipe not in RECIPES else None,
  )


def custom_example(part: Part) -> dict[str, str] | None:
  """What the objective of a custom recipe makes of a text; None where words cannot show it."""
  try:
    return recorded_example(load_part(part).objective)
  except Exception as error:  # code of the user's: no reason to lose a result
    say(f"  the report cannot show the objective: {type(error).__name__}: {error}")
    return None


def best_scores(part: Part, task: str) -> dict[str, float]:
  """The metrics of a task at the evaluation it did best in, the paper's "best checkpoint", and its step."""
  evaluations = [
    {name: value for name, value in row.items() if name != "kind"}
    for row in read_metrics(part.model_dir)
    if row["kind"] == f"eval/{task}" and None not in row.values()
  ]
  if not evaluations:
    raise RunError(f"{part.model_dir} has no scores of {task!r}", try_="its folder deleted, it is trained again")
  best = max(evaluations, key=lambda metrics: task_score(task, without_step(metrics, "step")))
  return {**without_step(best, "step"), "best_step": best["step"]}


def without_step(metrics: dict[str, float], name: str = "best_step") -> dict[str, float]:
  return {metric: value for metric, value in metrics.items() if metric != name}


def loss_curve(rows: Sequence[dict]) -> list[tuple[int, float]]:
  """Training loss by step, thinned evenly to what a plot can show; the last point is kept."""
  points = [(row["step"], row["loss"]) for row in rows if row["kind"] == "train" and row.get("loss") is not None]
  if len(points) <= CURVE_POINTS:
    return points
  return [points[round(i * (len(points) - 1) / (CURVE_POINTS - 1))] for i in range(CURVE_POINTS)]


def part_cost(part: Part) -> Cost:
  """Model FLOPs and tokens follow from the configuration; the seconds are those of all attempts, start-up left out."""
  from t5like.experiments.compatibility import phase_flops, stack_lengths
  from t5like.experiments.phases import run_phases
  from t5like.objectives import SpecialTokens
  from t5like.vocabularies import load_vocabulary

  experiment = load_part(part)
  (phase,) = run_phases(experiment, SpecialTokens.of(load_vocabulary(experiment.vocabulary)))
  tokens = phase.batch_size * sum(stack_lengths(experiment.model, phase.lengths).values())
  device, devices = _devices(part.model_dir)
  attempts = goodput.read_attempts(part.model_dir / goodput.FILE)
  seconds = sum(_seconds_at_work(attempt) * attempt.get("device_share", 1.0) for attempt in attempts)
  flops = phase_flops(experiment.model, phase.batch_size, phase.lengths)
  steps = experiment.steps
  return Cost(device, devices, seconds * devices, float(flops) * steps, tokens * steps)


def _seconds_at_work(attempt: Mapping[str, Any]) -> float:
  """Of one attempt, once its process was there."""
  return sum(spent for category, spent in attempt["spent"].items() if category != goodput.STARTING)


def _devices(model_dir: Path) -> tuple[str, int]:
  """The kind and the number of devices it ran on, from its run card; earlier versions wrote that as text alone."""
  card = model_dir / directory.RUN_CARD
  if card.with_suffix(".json").is_file():
    devices = storage.read_json(card.with_suffix(".json"))["devices"]
    return devices["kind"], devices["count"]
  found = re.search(r"^\s*devices\s+(\d+) x (.*) on \d+ host", card.read_text(encoding="utf-8"), re.MULTILINE)
  return (found[2], int(found[1])) if found else ("unknown", 1)


def _iso(seconds: float) -> str:
  return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
