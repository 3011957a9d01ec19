"""Synthetic sweeps at mini scale: scores loosely follow the paper's, with noise over seeds."""

import dataclasses
import math
import zlib
from pathlib import Path

import numpy as np

from t5like.ablations.sweep.results import Cost, Failure, Result, write_failure, write_json, write_result
from t5like.ablations.tables import BASELINE, TABLES, find_tables, recipes_of

TASKS = {
  "glue": {"glue_cola": "matthews_corrcoef", "glue_sst2": "accuracy", "glue_rte": "accuracy"},
  "squad": {"squad": "em"},
  "cnndm": {"cnn_dailymail": "rouge2"},
  "superglue": {"super_glue_copa": "accuracy"},
}
# The standard deviation of one run; our baseline score, and the factor on the paper's differences.
SPREAD = {"glue": 0.6, "squad": 0.9, "cnndm": 0.1, "superglue": 1.2}
_LEVELS = {"glue": (55.0, 0.9), "squad": (30.0, 0.4), "cnndm": (9.0, 0.5), "superglue": (50.0, 0.5)}
_OFFSETS = {"glue_cola": -20.0, "glue_sst2": 25.0, "glue_rte": -5.0}  # their mean is 0


def synthetic_result(recipe: str, seed: int, scale: str = "mini", groups=("glue", "squad"), **changes) -> Result:
  """Returns a result that depends only on recipe and seed."""
  paper = next((row.paper for table in TABLES.values() for row in table.rows if row.recipe == recipe), BASELINE)
  draw = np.random.default_rng([zlib.crc32(recipe.encode()), seed])
  scores, tasks = {}, {}
  for group in groups:
    level, share = _LEVELS[group]
    scores[group] = float(level + share * (paper[group] - BASELINE[group]) + SPREAD[group] * draw.normal())
    for task, metric in TASKS[group].items():
      tasks[task] = {metric: scores[group] + _OFFSETS.get(task, 0.0), "best_step": 400}
  floor = 3.0 + (zlib.crc32(recipe.encode()) % 100) / 100
  curve = [(s, floor + 6 * math.exp(-s / 300) + 0.04 * float(draw.normal())) for s in range(0, 2001, 25)]
  pretraining = Cost("NVIDIA H200", 1, 42.0 + 3 * draw.random(), 9.1e15, 65_536_000)
  finetuning = Cost("NVIDIA H200", 1, 21.0 + draw.random(), 2.2e15, 9_000_000)
  return dataclasses.replace(
    Result(
      recipe=recipe,
      seed=seed,
      scale=scale,
      scores=scores,
      tasks=tasks,
      curve=curve,
      validation_loss=floor,
      cost={"pretraining": pretraining, "finetuning": finetuning, "total": pretraining + finetuning},
      started="2026-11-15T12:00:00+00:00",
      finished="2026-11-15T12:01:10+00:00",
      version="0.1.0",
      commands=[f"t5like train --gin_file=ablations/recipes/{recipe}.gin --gin.SEED={seed}"],
    ),
    **changes,
  )


def write_sweep(
  folder: Path, tables=(2, 4, 5, 6, 7), seeds=2, without=(), failed=(), scale: str = "mini", groups=("glue", "squad")
) -> Path:
  """Writes a sweep directory; `without` and `failed` are pairs (recipe, seed) that have no result."""
  recipes = recipes_of(find_tables(tables))
  sweep = {
    "tables": list(tables),
    "recipes": recipes,
    "scale": scale,
    "seeds": seeds,
    "tasks": [task for group in groups for task in TASKS[group]],
    "corpus": {"train": "/somewhere/texts.jsonl"},
    "created": "2026-11-15T11:00:00+00:00",
  }
  write_json(folder / "sweep.json", sweep)
  for recipe in recipes:
    for seed in range(seeds):
      if (recipe, seed) in failed:
        error = "RESOURCE_EXHAUSTED: out of memory <b>& more</b>\nsecond line"
        when = "2026-11-15T12:00:00+00:00"
        write_failure(folder, Failure(recipe, seed, scale, error, when, "t5like train", "File one.py"))
      elif (recipe, seed) not in without:
        write_result(folder, synthetic_result(recipe, seed, scale, groups))
  return folder
