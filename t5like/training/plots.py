"""The loss curve of a run as a picture."""

from __future__ import annotations

from pathlib import Path

from t5like.training.metrics import read_metrics

FILE = "loss.png"


def plot_loss(model_dir: Path) -> Path | None:
  """Writes `loss.png` from metrics.jsonl; None when there is nothing to draw yet."""
  rows = [r for r in read_metrics(model_dir) if r["kind"] == "train" and r["loss"] is not None]
  if not rows:
    return None
  import matplotlib

  matplotlib.use("Agg")
  from matplotlib import pyplot

  figure, axes = pyplot.subplots(figsize=(7, 4), dpi=120, layout="constrained")
  axes.plot([r["step"] for r in rows], [r["loss"] for r in rows], color="#1f6f8b", linewidth=1.8)
  axes.set(xlabel="step", ylabel="training loss (nats per target token)", title=model_dir.name)
  axes.grid(alpha=0.3)
  axes.spines[["top", "right"]].set_visible(False)
  path = model_dir / FILE
  figure.savefig(path)
  pyplot.close(figure)
  return path
