"""Compiles the train step for each batch shape of a run's phases and length buckets, in threads of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from t5like.console import duration, say
from t5like.experiments.compatibility import phase_flops
from t5like.experiments.phases import blank_batch, shapes_left
from t5like.files import storage
from t5like.models.stack import frozen_layers
from t5like.runs.preparing import PreparedRun
from t5like.training.custom_step import checked_step
from t5like.training.state import TrainState
from t5like.training.step import LossSettings, StepFunction, lower_train_step, train_step

_THREADS = 4  # a compilation of a large model needs gigabytes


def compiled_folder(cache_dir: str) -> Path:
  """Returns the folder of the compilation cache: next to the token caches, on this machine."""
  return storage.local_counterpart(storage.as_path(cache_dir)) / "compiled"


class CompiledSteps:
  """The train steps of a run, one per batch shape; or of stacked runs, by the shape of one run's batch.

  They compile while the caller does something else, such as to restore a checkpoint. `wait` before the first call.
  """

  def __init__(self, stacked: bool = False):
    self._axes = 1 if stacked else 0  # before those of a batch
    self._compiling: dict[tuple, Future[jax.stages.Compiled]] = {}
    self._compiled: dict[tuple, jax.stages.Compiled] = {}
    self._flops: dict[tuple, int] = {}
    self._threads = ThreadPoolExecutor(_THREADS, "compile")
    self._started = self._ended = time.monotonic()

  def add(self, batch: Mapping[str, Any], compile_step: Callable[[], jax.stages.Compiled], flops: int) -> None:
    def compile_and_note() -> jax.stages.Compiled:
      compiled = compile_step()
      self._ended = time.monotonic()
      return compiled

    self._compiling[_shapes(batch)] = self._threads.submit(compile_and_note)
    self._flops[_shapes(batch)] = flops

  def wait(self) -> CompiledSteps:
    """Waits until everything is compiled; raises the first error."""
    if self._compiling:
      self._threads.shutdown(wait=True)
      self._compiled |= {shapes: future.result() for shapes, future in self._compiling.items()}
      self._compiling.clear()
      say(f"train step compiled in {duration(self._ended - self._started)}")
    return self

  def __call__(self, state: TrainState, batch: Mapping[str, Any]) -> tuple[TrainState, Mapping[str, Any]]:
    return self._compiled[_shapes(batch, self._axes)](state, batch)

  def flops(self, batch: Mapping[str, Any]) -> int:
    return self._flops[_shapes(batch)]


def compile_steps(
  run: PreparedRun, first_step: int, step: StepFunction, episode: int = 0, runs: int | None = None
) -> CompiledSteps:
  """Traces the steps of the phases that are left, and of their buckets, for one episode of the plan; starts to compile.

  With `runs`, for that many runs like this one in one program. Only tracing depends on settings of JAX that are local
  to a thread, such as `jax.default_matmul_precision`.
  """
  planned, spec, experiment = run.plan.episodes[episode], run.specs[episode], run.experiment
  settings = LossSettings(
    experiment.z_loss,
    experiment.label_smoothing,
    normalizer=experiment.loss_normalizer,
    microbatches=experiment.microbatches,
    layer_norms=experiment.norms_period > 0,
  )
  step = step if step is train_step else checked_step(step, spec.shapes)
  steps = CompiledSteps(stacked=runs is not None)
  for phase in shapes_left(run.phases, run.batches, first_step):
    batch = blank_batch(experiment, phase)
    with frozen_layers(planned.frozen_layers):
      compile_step = lower_train_step(
        run.model, planned.optimizer, settings, spec, batch, run.mesh, experiment.deterministic, step, runs
      )
    flops = phase_flops(run.model, phase.batch_size, phase.lengths)
    steps.add(batch, compile_step, round(run.flops_shares[episode] * flops))
  return steps


def _shapes(batch: Mapping[str, Any], skipped: int = 0) -> tuple:
  return tuple((name, batch[name].shape[skipped:]) for name in sorted(batch))
