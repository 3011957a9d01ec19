"""The layout of a checkpoints folder, and the metadata of a checkpoint.

`MODEL_DIR/checkpoints/<step>/` holds three items: `params`, `training` (step, optimizer state, seed; absent from
converted models) and `metadata` (fingerprint of the model and vocabulary, the optimizer's kind, metrics). Next to the
steps there may be `damaged-<step>` (set aside, never deleted), `removing-<step>` and Orbax's temporary folders (left by
a killed process, removed by the next run) and `scores.json` (scores of evaluations after the save).

On gs:// a folder cannot be renamed atomically. Orbax writes under the final name and marks a complete checkpoint with
`commit_success.txt`: a folder without it was left by a killed save or removal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from t5like.errors import UserError
from t5like.files import storage
from t5like.training.records.model_dir import CHECKPOINTS as FOLDER

PARAMS, TRAINING, METADATA = "params", "training", "metadata"
_TEMPORARY = ".orbax-checkpoint-tmp"
_REMOVING = "removing-"
_DAMAGED = "damaged-"
SCORES = "scores.json"
COMMITTED = "commit_success.txt"


def checkpoints_folder(model_dir: str | Path) -> Path:
  return storage.as_path(model_dir).absolute() / FOLDER


def checkpoint_steps(model_dir: str | Path) -> list[int]:
  """Returns the steps of the finished checkpoints in a model directory, oldest first."""
  found = [path for path in checkpoints_folder(model_dir).glob("*") if _is_step(path.name)]
  if found and storage.is_remote(found[0]):
    with ThreadPoolExecutor(16, "committed") as pool:
      found = [path for path, there in zip(found, pool.map(is_finished, found), strict=True) if there]
  return sorted(int(path.name) for path in found)


def _is_step(name: str) -> bool:
  """Returns whether Orbax would write this name: int() also accepts "007" and digits of other scripts."""
  return name.isascii() and name.isdecimal() and str(int(name)) == name


def is_finished(checkpoint: Path) -> bool:
  """Returns whether the checkpoint exists and is complete."""
  return (checkpoint / COMMITTED).is_file() if storage.is_remote(checkpoint) else checkpoint.is_dir()


def has_training_state(checkpoint: Path) -> bool:
  """Returns False for converted models, which have parameters only."""
  return (checkpoint / TRAINING).is_dir()


def find_checkpoint(source: str | Path, step: int | None = None) -> Path:
  """Returns the folder of a checkpoint, given that folder or its model directory."""
  path = storage.as_path(source).absolute()
  if (path / PARAMS).is_dir():
    return path
  steps = checkpoint_steps(path)
  if not steps:
    raise UserError(
      "no checkpoint found", looked=path / FOLDER, expected="a model directory, or its checkpoints/<step> folder"
    )
  if step is not None and step not in steps:
    raise UserError(f"no checkpoint of step {step}", looked=path / FOLDER, known=", ".join(map(str, steps)))
  return path / FOLDER / str(steps[-1] if step is None else step)


def read_description(checkpoint: Path) -> dict[str, Any]:
  """Returns the checkpoint's metadata: `fingerprint`, and `optimizer` and `metrics` if they were saved."""
  try:
    described = storage.read_json(checkpoint / METADATA / METADATA)
    if not isinstance(described["fingerprint"], dict):
      raise ValueError("it has no fingerprint")
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise UserError(
      f"the checkpoint is damaged: its {METADATA}/{METADATA} cannot be read", checkpoint=checkpoint, because=error
    ) from error
  return described


def read_fingerprint(checkpoint: Path) -> dict[str, Any]:
  return read_description(checkpoint)["fingerprint"]


def checkpoint_metrics(model_dir: str | Path) -> dict[int, dict[str, float]]:
  """Returns the metrics of each checkpoint, saved with it or recorded later; {} where there are none."""
  folder, metrics = checkpoints_folder(model_dir), {}
  scores = read_scores(folder)
  for step in checkpoint_steps(model_dir):
    try:
      saved = read_description(folder / str(step)).get("metrics") or {}
    except UserError:  # reported when it is restored
      saved = {}
    metrics[step] = {**saved, **scores.get(step, {})}
  return metrics


def read_scores(folder: Path) -> dict[int, dict[str, float]]:
  """Returns the scores of evaluations after the save, by step."""
  try:
    found = storage.read_json(folder / SCORES)
    return {int(step): {str(k): float(v) for k, v in scores.items()} for step, scores in found.items()}
  except (OSError, ValueError, TypeError, AttributeError):
    return {}


def write_scores(folder: Path, scores: Mapping[int, Mapping[str, float]]) -> None:
  text = json.dumps({str(step): dict(values) for step, values in sorted(scores.items())}, indent=1)
  storage.write_atomic(folder / SCORES, text + "\n")


def fingerprint_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
  """Returns a line for every field that differs. A saved vocabulary of None (converted checkpoint) matches any."""
  unknown = {"vocabulary"} if saved.get("vocabulary", "") is None else set()
  differing = [k for k in sorted({*saved, *current} - unknown) if saved.get(k) != current.get(k)]
  width = max(map(len, differing), default=0)
  return [f"{k:<{width}}  saved {saved.get(k)!r}, now {current.get(k)!r}" for k in differing]


def check_fingerprint(saved: Mapping[str, Any], current: Mapping[str, Any], folder: Path) -> None:
  """Raises UserError for a checkpoint of another model or vocabulary, with every field that differs."""
  if differing := fingerprint_differences(saved, current):
    raise UserError(
      "this checkpoint belongs to another model or vocabulary",
      checkpoint=folder,
      differs="\n".join(differing),
      try_="another MODEL_DIR, or the gin files of the checkpoint (its config.gin)",
    )


def remove_checkpoint(checkpoint: Path) -> None:
  """Deletes a checkpoint; renames it first, so that a killed removal does not leave half a checkpoint."""
  if storage.is_remote(checkpoint):
    (checkpoint / COMMITTED).unlink(missing_ok=True)
    storage.remove_tree(checkpoint)
    return
  doomed = checkpoint.with_name(_REMOVING + checkpoint.name)
  checkpoint.rename(doomed)
  storage.remove_tree(doomed)


def set_aside(checkpoint: Path) -> Path:
  """Renames a damaged checkpoint, so that its step can be saved again, and returns the new path."""
  names = [f"{_DAMAGED}{checkpoint.name}", *(f"{_DAMAGED}{checkpoint.name}-{n}" for n in range(2, 1000))]
  free = next(path for name in names if not (path := checkpoint.with_name(name)).exists())
  return checkpoint.rename(free)


def clear_leftovers(folder: Path) -> None:
  """Removes leftovers of killed saves and removals. Only for the sole trainer of the directory."""
  for path in folder.glob("*"):
    unfinished = _is_step(path.name) and not is_finished(path)
    if _TEMPORARY in path.name or path.name.startswith(_REMOVING) or unfinished:
      storage.remove_tree(path)
