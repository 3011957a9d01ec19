"""Where checkpoints lie and what each says of itself.

`MODEL_DIR/checkpoints/<step>/` holds three items: `params`, `training` (step, optimizer state, seed; absent from
converted models) and `metadata` (fingerprint of the model and vocabulary, the optimizer's kind, metrics). Other
names beside the steps: `damaged-<step>` (set aside, never deleted), `removing-<step>` and Orbax's temporary folders
(what a killed process left; the next run clears them), `scores.json` (what evaluations after the saves said).

On gs:// nothing can be renamed in one step. Orbax writes there under the final name and marks a whole checkpoint with
`commit_success.txt`: a folder without it is what a killed save or removal left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from t5like.errors import UserError
from t5like.files import storage

FOLDER = "checkpoints"
PARAMS, TRAINING, METADATA = "params", "training", "metadata"
_TEMPORARY = ".orbax-checkpoint-tmp"
_REMOVING = "removing-"
_DAMAGED = "damaged-"
SCORES = "scores.json"  # beside the checkpoints
COMMITTED = "commit_success.txt"


def checkpoints_folder(model_dir: str | Path) -> Path:
  return storage.as_path(model_dir).absolute() / FOLDER


def checkpoint_steps(model_dir: str | Path) -> list[int]:
  """The steps of a model directory's finished checkpoints, oldest first."""
  found = [path for path in checkpoints_folder(model_dir).glob("*") if _is_step(path.name)]
  if found and storage.is_remote(found[0]):
    with ThreadPoolExecutor(16, "committed") as pool:
      found = [path for path, there in zip(found, pool.map(is_finished, found), strict=True) if there]
  return sorted(int(path.name) for path in found)


def _is_step(name: str) -> bool:
  """Whether Orbax names a checkpoint so: "007" and other scripts' digits are numbers to Python, too."""
  return name.isascii() and name.isdecimal() and str(int(name)) == name


def is_finished(checkpoint: Path) -> bool:
  """Whether it is there, and not half of it."""
  return (checkpoint / COMMITTED).is_file() if storage.is_remote(checkpoint) else checkpoint.is_dir()


def has_training_state(checkpoint: Path) -> bool:
  """False for converted models, which have parameters only."""
  return (checkpoint / TRAINING).is_dir()


def find_checkpoint(source: str | Path, step: int | None = None) -> Path:
  """The folder of one checkpoint, given it or the model directory above it."""
  path = storage.as_path(source).absolute()
  if (path / PARAMS).is_dir():
    return path
  steps = checkpoint_steps(path)
  if not steps:
    raise UserError(
      "no checkpoint here", looked=path / FOLDER, expected="a model directory, or its checkpoints/<step> folder"
    )
  if step is not None and step not in steps:
    raise UserError(f"no checkpoint of step {step}", looked=path / FOLDER, known=", ".join(map(str, steps)))
  return path / FOLDER / str(steps[-1] if step is None else step)


def read_description(checkpoint: Path) -> dict[str, Any]:
  """What the checkpoint says of itself: `fingerprint`, and `optimizer` and `metrics` where it was told them."""
  try:
    described = storage.read_json(checkpoint / METADATA / METADATA)
    if not isinstance(described["fingerprint"], dict):
      raise ValueError("it holds no fingerprint")
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise UserError(
      f"the checkpoint is damaged: its {METADATA}/{METADATA} cannot be read", checkpoint=checkpoint, because=error
    ) from error
  return described


def read_fingerprint(checkpoint: Path) -> dict[str, Any]:
  return read_description(checkpoint)["fingerprint"]


def checkpoint_metrics(model_dir: str | Path) -> dict[int, dict[str, float]]:
  """The metrics of each checkpoint, saved with it or noted since; none for one that does not tell."""
  folder, metrics = checkpoints_folder(model_dir), {}
  noted = read_scores(folder)
  for step in checkpoint_steps(model_dir):
    try:
      saved = read_description(folder / str(step)).get("metrics") or {}
    except UserError:  # it is for those who read it to complain
      saved = {}
    metrics[step] = {**saved, **noted.get(step, {})}
  return metrics


def read_scores(folder: Path) -> dict[int, dict[str, float]]:
  """What evaluations after the saves said, by step."""
  try:
    found = storage.read_json(folder / SCORES)
    return {int(step): {str(k): float(v) for k, v in scores.items()} for step, scores in found.items()}
  except (OSError, ValueError, TypeError, AttributeError):
    return {}


def write_scores(folder: Path, scores: Mapping[int, Mapping[str, float]]) -> None:
  text = json.dumps({str(step): dict(values) for step, values in sorted(scores.items())}, indent=1)
  storage.write_atomic(folder / SCORES, text + "\n")


def fingerprint_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
  """A line for every field that differs. A converted checkpoint may not know its vocabulary (None): any is taken."""
  unknown = {"vocabulary"} if saved.get("vocabulary", "") is None else set()
  differing = [k for k in sorted({*saved, *current} - unknown) if saved.get(k) != current.get(k)]
  width = max(map(len, differing), default=0)
  return [f"{k:<{width}}  saved {saved.get(k)!r}, now {current.get(k)!r}" for k in differing]


def check_fingerprint(saved: Mapping[str, Any], current: Mapping[str, Any], folder: Path) -> None:
  """Refuses a checkpoint of another model or vocabulary, naming every field that differs."""
  if differing := fingerprint_differences(saved, current):
    raise UserError(
      "this checkpoint belongs to another model or vocabulary",
      checkpoint=folder,
      differs="\n".join(differing),
      try_="another MODEL_DIR, or the gin files the checkpoint was made with (its config.gin)",
    )


def remove_checkpoint(checkpoint: Path) -> None:
  """Under another name first: a killed removal must not leave what looks like a checkpoint."""
  if storage.is_remote(checkpoint):
    (checkpoint / COMMITTED).unlink(missing_ok=True)
    storage.remove_tree(checkpoint)
    return
  doomed = checkpoint.with_name(_REMOVING + checkpoint.name)
  checkpoint.rename(doomed)
  storage.remove_tree(doomed)


def set_aside(checkpoint: Path) -> Path:
  """Renames a damaged checkpoint, so that its step is free again and nothing is lost. Returns the new path."""
  names = [f"{_DAMAGED}{checkpoint.name}", *(f"{_DAMAGED}{checkpoint.name}-{n}" for n in range(2, 1000))]
  free = next(path for name in names if not (path := checkpoint.with_name(name)).exists())
  return checkpoint.rename(free)


def clear_leftovers(folder: Path) -> None:
  """Removes what killed saves and removals left. Only for the one trainer of the directory."""
  for path in folder.glob("*"):
    unfinished = _is_step(path.name) and not is_finished(path)
    if _TEMPORARY in path.name or path.name.startswith(_REMOVING) or unfinished:
      storage.remove_tree(path)
