"""Plots the loss curve of a run."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5like.training.records.metrics import write_error

FILE = "loss.png"


def plot_loss(model_dir: Path, rows: Sequence[Mapping[str, Any]]) -> Path | None:
  """Writes `loss.png` from the rows of metrics.jsonl, evaluations as points; None where there is nothing to draw."""
  curves: dict[str, list[tuple[int, float]]] = {}
  for row in rows:
    if row.get("loss") is not None:
      curves.setdefault(row["kind"], []).append((row["step"], row["loss"]))
  if "train" not in curves:
    return None
  from matplotlib.figure import Figure  # without pyplot, which loads slowly and has a state that notebooks use

  figure = Figure(figsize=(7, 4), dpi=120)
  axes = figure.subplots(gridspec_kw={"left": 0.11, "right": 0.97, "bottom": 0.12, "top": 0.92})
  axes.plot(*zip(*curves.pop("train"), strict=True), color="#1f6f8b", linewidth=1.8, label="training")
  for kind, points in curves.items():
    axes.plot(*zip(*points, strict=True), "o--", markersize=4, linewidth=0.8, label=kind)
  if curves:
    axes.legend(frameon=False)
  axes.set(xlabel="step", ylabel="loss (nats per target token)", title=model_dir.name)
  axes.grid(alpha=0.3)
  axes.spines[["top", "right"]].set_visible(False)
  path = model_dir / FILE
  try:
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    path.write_bytes(picture.getvalue())
  except OSError as error:
    raise write_error(path, error) from None
  return path
