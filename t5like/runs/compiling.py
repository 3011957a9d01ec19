"""Compiles the train step for each batch shape of a run's phases and length buckets."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from t5like.console import duration, say
from t5like.experiments.compatibility import phase_flops
from t5like.experiments.phases import blank_batch, shapes_left
from t5like.files import storage
from t5like.models.stack import frozen_layers
from t5like.runs.preparing import PreparedRun
from t5like.training.state import TrainState
from t5like.training.step import LossSettings, StepFunction, compile_train_step


def compiled_folder(cache_dir: str) -> Path:
  """Returns the folder of the compilation cache: next to the token caches, on this machine."""
  root = storage.as_path(cache_dir)
  return (storage.mirror_folder(root) if storage.is_remote(root) else root) / "compiled"


class CompiledSteps:
  """The compiled train steps of a run, one per batch shape; or of stacked runs, by the shape of one run's batch."""

  def __init__(self, stacked: bool = False):
    self._axes = 1 if stacked else 0  # before those of a batch
    self._compiled: dict[tuple, jax.stages.Compiled] = {}
    self._flops: dict[tuple, int] = {}

  def add(self, batch: Mapping[str, Any], compiled: jax.stages.Compiled, flops: int) -> None:
    self._compiled[_shapes(batch)], self._flops[_shapes(batch)] = compiled, flops

  def __call__(self, state: TrainState, batch: Mapping[str, Any]) -> tuple[TrainState, Mapping[str, Any]]:
    return self._compiled[_shapes(batch, self._axes)](state, batch)

  def flops(self, batch: Mapping[str, Any]) -> int:
    return self._flops[_shapes(batch)]


def compile_steps(
  run: PreparedRun, first_step: int, step: StepFunction, episode: int = 0, runs: int | None = None
) -> CompiledSteps:
  """Compiles the steps of the phases that are left, and of their buckets, for one episode of the training plan.

  With `runs`, for that many runs like this one in one program.
  """
  planned, spec = run.plan.episodes[episode], run.specs[episode]
  experiment, started = run.experiment, time.monotonic()
  settings = LossSettings(
    experiment.z_loss,
    experiment.label_smoothing,
    normalizer=experiment.loss_normalizer,
    microbatches=experiment.microbatches,
    layer_norms=experiment.norms_period > 0,
  )
  steps = CompiledSteps(stacked=runs is not None)
  for phase in shapes_left(run.phases, run.batches, first_step):
    batch = blank_batch(experiment, phase)
    with frozen_layers(planned.frozen_layers):
      compiled = compile_train_step(
        run.model, planned.optimizer, settings, spec, batch, run.mesh, experiment.deterministic, step, runs
      )
    flops = phase_flops(run.model, phase.batch_size, phase.lengths)
    steps.add(batch, compiled, round(run.flops_shares[episode] * flops))
  say(f"train step compiled in {duration(time.monotonic() - started)}")
  return steps


def _shapes(batch: Mapping[str, Any], skipped: int = 0) -> tuple:
  return tuple((name, batch[name].shape[skipped:]) for name in sorted(batch))
