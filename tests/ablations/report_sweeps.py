"""Sweeps as a mini scale would leave them, made up: scores follow the paper's from afar, seeds scatter around them."""

import dataclasses
import math
import zlib
from pathlib import Path

import numpy as np

from t5like.ablations.results import Cost, Failure, Result, write_failure, write_json, write_result
from t5like.ablations.tables import TABLES, find_tables, recipes_of

TASKS = {
  "glue": {"glue_cola_v002": "matthews_corrcoef", "glue_sst2_v002": "accuracy", "glue_rte_v002": "accuracy"},
  "squad": {"squad_v010_allanswers": "em"},
}
SPREAD = {"glue": 0.6, "squad": 0.9}


def made_result(recipe: str, seed: int, scale: str = "mini", **changes) -> Result:
  """The same for the same recipe and seed, everywhere."""
  paper = next(row.paper for table in TABLES.values() for row in table.rows if row.recipe == recipe)
  draw = np.random.default_rng([zlib.crc32(recipe.encode()), seed])
  scores = {"glue": 48 + 0.9 * (paper["glue"] - 75), "squad": 22 + 0.4 * (paper["squad"] - 60)}
  scores = {group: float(score + SPREAD[group] * draw.normal()) for group, score in scores.items()}
  tasks = {
    task: {metric: scores[group] + offset, "best_step": 400}
    for group, metrics in TASKS.items()
    for offset, (task, metric) in zip((-20.0, 25.0, -5.0) if group == "glue" else (0.0,), metrics.items(), strict=True)
  }
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
  folder: Path, tables=(2, 4, 5, 6, 7), seeds=(0, 1), without=(), failed=(), scale: str = "mini"
) -> Path:
  """A sweep directory; `without` and `failed` are pairs (recipe, seed) that are not there."""
  write_json(
    folder / "sweep.json",
    {
      "tables": list(tables),
      "scale": scale,
      "seeds": list(seeds),
      "tasks": [task for tasks in TASKS.values() for task in tasks],
      "corpus": "/somewhere/texts.jsonl",
      "created": "2026-11-15T11:00:00+00:00",
    },
  )
  for recipe in recipes_of(find_tables(tables)):
    for seed in seeds:
      if (recipe, seed) in failed:
        error = "RESOURCE_EXHAUSTED: out of memory <b>& more</b>\nsecond line"
        write_failure(folder, Failure(recipe, seed, scale, error, "2026-11-15T12:00:00+00:00", "t5like train", "trace"))
      elif (recipe, seed) not in without:
        write_result(folder, made_result(recipe, seed, scale))
  return folder
