"""The table of a suite of probes: a line per layer, with its weight in the learned mix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import jax
import numpy as np

from t5like.ablations.suites.plan import probe_name
from t5like.ablations.suites.table import NOTE, mean_and_spread, metrics_text, scores_by_task
from t5like.ablations.sweep.results import Result, run_name
from t5like.console import table
from t5like.inference import load
from t5like.interop.layouts import flatten
from t5like.models.heads.probe import MIX

_WEIGHTS = "head/mix/weights"


def learned_mixes(folder: Path, results: Sequence[Result]) -> list[np.ndarray]:
  """Returns the weights of layers, [layers + 1], that each run on the mix has learned; embeddings first."""
  mixes = []
  for result in results:
    if result.recipe == probe_name(MIX):
      source = load(folder / "runs" / run_name(result.recipe, result.seed)).source
      weights = flatten(source.read(source.step(None), False, None))[_WEIGHTS]
      mixes.append(np.asarray(jax.nn.softmax(np.asarray(weights, np.float32))))
  return mixes


def probe_table(results: Sequence[Result], mixes: Sequence[np.ndarray]) -> str:
  """Returns a table per task, a line per layer in the order of the results; '' without results."""
  tasks = dict.fromkeys(task for result in results for task in result.tasks)
  parts = [_table(task, [result for result in results if task in result.tasks], mixes) for task in tasks]
  return "\n\n".join([*parts, NOTE]) if parts else ""


def _table(task: str, results: Sequence[Result], mixes: Sequence[np.ndarray]) -> str:
  by_layer: dict[str, list[Result]] = {}
  for result in results:
    by_layer.setdefault(result.recipe, []).append(result)
  rows = [["layer", "score", "", "last", "", "seeds", "in the mix", "metrics"]]
  for recipe, runs in by_layer.items():
    layer = recipe.rpartition("/")[2]
    shown = [_shown(task, runs, last) for last in (False, True)]
    weight = "" if layer == MIX or not mixes else f"{fmean(float(mix[int(layer)]) for mix in mixes):.3f}"
    name = "0, embeddings" if layer == "0" else layer
    rows.append([name, *shown[0], *shown[1], str(len(runs)), weight, metrics_text(task, runs)])
  return f"{task}\n{table(rows, right=(1, 3, 5, 6))}"


def _shown(task: str, runs: Sequence[Result], last: bool) -> tuple[str, str]:
  scores: Mapping[int, float] = scores_by_task(runs, last).get(task, {})
  return mean_and_spread(list(scores.values()))
