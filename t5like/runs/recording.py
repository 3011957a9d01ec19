"""Records a run in its directory: configuration, run card and data settings."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from t5like.console import say
from t5like.experiments.experiment import Experiment
from t5like.experiments.writing import config_text
from t5like.files import storage
from t5like.inference.parameters import write_base
from t5like.runs.preparing import PreparedRun
from t5like.training.records import model_dir as directory
from t5like.vocabularies import copy_vocabulary


def last_metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
  """Returns the newest training row."""
  rows = [row for row in rows if row["kind"] == "train"]
  return {name: value for name, value in rows[-1].items() if name not in ("step", "kind")} if rows else {}


def scores_of(rows: Sequence[Mapping[str, Any]], kind: str) -> dict[str, float]:
  """Returns the scores in rows of a kind of evaluation, by full name."""
  rows = [row for row in rows if row["kind"].startswith(f"{kind}/")]
  return {f"{row['kind']}/{name}": value for row in rows for name, value in row.items() if name not in ("step", "kind")}


def record_run(run: PreparedRun) -> None:
  """Writes the configuration, run card and vocabulary, so that the directory can be used elsewhere."""
  if jax.process_index() == 0:
    experiment, folder = run.experiment, run.model_dir
    settings = data_settings(experiment) | _distillation_settings(run)
    for line in changed_data(settings, folder / directory.DATA_SETTINGS, run):
      say(line)
    settings |= {directory.OWN_TARGETS: list(run.own_targets)} if run.own_targets else {}
    storage.write_atomic(folder / directory.CONFIG, config_text(experiment))  # first: it makes the folder a run's
    storage.write_atomic(folder / directory.DATA_SETTINGS, json.dumps(settings, indent=1) + "\n")
    storage.write_atomic(folder / directory.RUN_CARD, card_text(run))
    storage.write_atomic(folder / directory.RUN_CARD_DATA, run.card.as_json())
    copy_vocabulary(experiment.vocabulary, run.vocabulary, folder)
    if run.start.base:
      write_base(folder, experiment.init_from, run.start.base.digest)


def card_text(run: PreparedRun) -> str:
  optimizer = run.plan.episodes[0].optimizer
  return f"{run.card}\n\n{optimizer.variable_table(run.spec.shapes.params)}\n"


def data_settings(experiment: Experiment) -> dict[str, Any]:
  """Returns the settings that, with SEED, determine the rows of a step, and its learning rate."""
  return {
    "TASK": experiment.task,
    "SPLIT": experiment.split,
    "MIX": dict(experiment.mix),
    "MIXING_TEMPERATURE": experiment.mixing_temperature,
    "CORPUS_FILES": json.loads(json.dumps(experiment.corpus_files)),
    "PACK": experiment.packs,
    "PHASES": [dict(phase) for phase in experiment.phases],
    "UNIQUE_TOKENS": experiment.unique_tokens,
    "BATCH_SIZE": experiment.batch_size,
    "LENGTHS": dict(experiment.lengths),
    "train.loss_on_inputs": experiment.loss_on_inputs,
    "OBJECTIVE": re.sub(" at 0x[0-9a-f]+", "", repr(experiment.objective)),
    "LEARNING_RATE": _schedule_text(experiment.optimizer.learning_rate),
  }


def _distillation_settings(run: PreparedRun) -> dict[str, Any]:
  """Returns what, with these settings, determines the losses of a student."""
  if run.experiment.distillation is None or run.teacher is None:
    return {}
  losses = json.loads(json.dumps(dataclasses.asdict(run.experiment.distillation)))  # as it is read again
  del losses["teacher"]  # a folder may be moved
  return {"DISTILLATION": losses, "TEACHER": f"step {run.teacher.step}, {run.teacher.parameters.digest[:12]}"}


def _schedule_text(value: Any) -> str:
  if isinstance(value, list | tuple):
    return f"[{', '.join(map(_schedule_text, value))}]"
  if not hasattr(value, "factory_call"):
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))
  name, arguments = value.factory_call
  return f"{name}({', '.join(f'{key}={_schedule_text(given)}' for key, given in arguments.items())})"


_MEANINGS = {
  "DISTILLATION": "other losses from now on",
  "TEACHER": "another teacher from now on; TEACHER=FOLDER/checkpoints/STEP keeps one",
  "TASK": "different rows from now on",
  "SPLIT": "different rows from now on",
  "CORPUS_FILES": "rows of these files from now on; another MODEL_DIR starts over",
  "OBJECTIVE": "different inputs and targets from now on",
  "train.loss_on_inputs": "a loss of other tokens from now on",
  "LEARNING_RATE": "another rate from now on",
}
# Of settings that older runs did not have.
_FORMER_VALUES = {"train.loss_on_inputs": False}


def changed_data(now: Mapping[str, Any], path: Path, run: PreparedRun) -> list[str]:
  """Returns a line for each data setting that a resumed run changes, with its effect on the rows."""
  before = now
  with contextlib.suppress(OSError, ValueError, TypeError):
    before = _FORMER_VALUES | storage.read_json(path)
  step, lines = run.start.step, []
  for name, value in now.items():
    if not step or name not in before or before[name] == value:
      continue
    was = before[name]
    if name != "BATCH_SIZE" or not isinstance(was, int) or run.stream:
      meaning = _MEANINGS.get(name, "earlier rows may repeat")
    elif value < was:
      meaning = f"rows {step * value:,} to {step * was:,} repeat"
    else:
      meaning = f"rows {step * was:,} to {step * value:,} are skipped"
    lines.append(f"{name} = {value!r}, was {was!r} up to step {step:,}: {meaning}")
  return lines


def extra_writers(experiment: Experiment) -> list[Any]:
  if not experiment.wandb_project or jax.process_index() > 0:
    return []
  from t5like.training.records.wandb_writer import WandbWriter

  folder = storage.as_path(experiment.model_dir).absolute()
  return [WandbWriter(folder, experiment.wandb_project, folder.name, {"gin": config_text(experiment)})]


def report_files(model_dir: Path) -> None:
  names = {
    "checkpoints": "checkpoints/",
    "metrics": "metrics.jsonl, and TensorBoard events: tensorboard --logdir " + str(model_dir),
    "loss curve": "loss.png",
    "configuration": f"{directory.CONFIG}, {directory.RUN_CARD}",
  }
  if (model_dir / "predictions").is_dir():
    names["predictions"] = "predictions/"
  say(f"in {model_dir}:")
  for label, text in names.items():
    say(f"  {label:<13}  {text}")
