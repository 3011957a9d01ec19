"""Where numbers go: `metrics.jsonl`, TensorBoard, and what each of them means."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5like.training.model_dir import write_text
from t5like.training.tensorboard import EventWriter

FILE = "metrics.jsonl"

GLOSSARY = {
  "loss": "mean cross entropy of a target token, z-loss included (nats)",
  "z_loss": "the part of loss that keeps the softmax normaliser near 1",
  "accuracy": "share of target tokens whose likeliest prediction is right, given the true tokens before",
  "sentence_loss": "mean cross entropy of next-sentence prediction (nats)",
  "sentence_accuracy": "share of rows whose second part is rightly told to follow the first or not",
  "gradient_norm": "global L2 norm of the gradients, before the optimizer",
  "parameter_norm": "global L2 norm of the parameters",
  "learning_rate": "the schedule's value at the step",
  "tokens_per_second": "input and target tokens, padding included, per second of wall time",
  "input_wait": "share of wall time the devices stood still for want of a batch",
}


def mean_metrics(steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
  """Means over several steps: sums over target tokens weighed by them, the rest step by step."""
  tokens = sum(float(m["target_tokens"]) for m in steps)
  result = {}
  for name in steps[0]:
    total = sum(float(m[name]) for m in steps)
    if name in ("loss", "z_loss", "accuracy"):
      result[name] = total / max(tokens, 1.0)
    elif name != "target_tokens":
      result[name] = total / len(steps)
  return result


class MetricWriter:
  """Writes each row of numbers to `metrics.jsonl` and to TensorBoard."""

  def __init__(self, model_dir: Path, first_step: int):
    self._path = model_dir / FILE
    _drop_rows_after(self._path, first_step)
    self._file = self._path.open("a", encoding="utf-8")
    self._events = EventWriter(model_dir)

  def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
    """`kind` is "train" or "eval/<task>": TensorBoard groups by it."""
    # JSON knows no NaN; null keeps the row readable by every parser.
    finite = {k: (v if math.isfinite(v) else None) for k, v in values.items()}
    self._file.write(json.dumps({"step": step, "kind": kind, **finite}) + "\n")
    self._file.flush()
    self._events.scalars(step, {f"{kind}/{k}": v for k, v in values.items()})

  def close(self) -> None:
    self._file.close()
    self._events.close()


def read_metrics(model_dir: str | Path) -> list[dict[str, Any]]:
  """All rows written so far; a line that a killed run left unfinished is passed over."""
  path = Path(model_dir).expanduser() / FILE
  rows = []
  if path.exists():
    for line in path.read_text(encoding="utf-8").splitlines():
      try:
        rows.append(json.loads(line))
      except json.JSONDecodeError:
        continue
  return rows


def _drop_rows_after(path: Path, step: int) -> None:
  """Forgets rows of steps that a resumed run will do again, so that each step stands once."""
  if not path.exists():
    return
  rows = [row for row in read_metrics(path.parent) if row["step"] <= step]
  write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
