"""The overhead of the train loop and of checkpoints.

The loop's overhead is the time of a step in it, with the log and a hook, minus that of the same compiled step called
directly. The overhead of a checkpoint is the extra time of a stretch of steps with one save in it.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from t5like.experiments.experiment import Experiment

_EMPTY_STEPS = 2_000
_PERIOD = 600.0  # seconds between checkpoints, the default of CHECKPOINT_MINUTES


@dataclasses.dataclass(frozen=True)
class LoopBench:
  """Settings of the benchmark: the model whose checkpoints are saved, and the number of steps."""

  gin_files: Sequence[str]
  overrides: Sequence[tuple[str, str]] = ()
  search_paths: Sequence[str] = ()
  steps: int = 10  # of the model, in each stretch
  repeats: int = 3  # stretches with and without a save


@dataclasses.dataclass(frozen=True)
class LoopOverhead:
  """Milliseconds of a step that does nothing."""

  bare: float
  in_loop: float

  def __str__(self) -> str:
    return (
      f"an empty step, called directly      {self.bare:8.3f} ms\n"
      f"an empty step, in the train loop    {self.in_loop:8.3f} ms\n"
      f"overhead of the loop per step       {self.in_loop - self.bare:8.3f} ms\n"
    )


@dataclasses.dataclass(frozen=True)
class CheckpointOverhead:
  """Seconds that a checkpoint costs a run."""

  size: int  # bytes
  steps: int  # during which it is saved
  step_seconds: float
  blocked: float  # while steps wait
  longer: float  # extra time with the save

  def __str__(self) -> str:
    return (
      f"a checkpoint of {self.size / 1e6:,.1f} MB, saved during {self.steps} steps of "
      f"{1e3 * self.step_seconds:,.1f} ms\n"
      f"steps are blocked for               {self.blocked:8.3f} s\n"
      f"extra time with the save            {self.longer:8.3f} s\n"
      f"share of a {_PERIOD / 60:.0f}-minute period          {100 * self.longer / _PERIOD:8.3f} %"
    )


def measure_loop(settings: LoopBench) -> Iterator[LoopOverhead | CheckpointOverhead]:
  """Yields the overhead of the loop, then that of checkpoints."""
  from t5like.experiments.reading import read_experiment

  with tempfile.TemporaryDirectory(prefix="t5like-bench-") as folder:
    files = [*settings.gin_files, "objectives/span_corruption.gin", "runs/pretrain.gin"]
    overrides = [
      ("TRAIN_STEPS", "1000000000"), *settings.overrides, ("MODEL_DIR", folder), ("CACHE_DIR", f"{folder}/tokens"),
    ]  # fmt: skip
    experiment = read_experiment(files, overrides, settings.search_paths)
    yield _loop_overhead(Path(folder))
    yield _checkpoint_overhead(experiment, Path(folder) / "run", settings.steps, settings.repeats)


def _loop_overhead(folder: Path) -> LoopOverhead:
  """Measures the loop with empty steps, which cannot hide its overhead."""
  import jax
  import jax.numpy as jnp

  metrics = {name: jnp.float32(1.0) for name in ("loss", "z_loss", "accuracy", "target_tokens", "finite")}
  step = jax.jit(lambda state, batch: (state + 1, metrics))
  batch = {"decoder_input_tokens": jnp.ones((8, 128), jnp.int32)}
  bare = min(_seconds(lambda: _bare(step, jnp.int32(0), batch, _EMPTY_STEPS)) for _ in range(3))
  in_loop = min(_seconds(lambda: _looped(folder, step, batch, _EMPTY_STEPS)) for _ in range(3))
  return LoopOverhead(1e3 * bare / _EMPTY_STEPS, 1e3 * in_loop / _EMPTY_STEPS)


def _bare(step: Callable[..., Any], state: Any, batch: Any, steps: int) -> Any:
  import jax

  for _ in range(steps):
    state, metrics = step(state, batch)
  return jax.block_until_ready((state, metrics))


class _Counter:
  """The part of a train state that the loop uses."""

  def __init__(self, step: Any):
    self.step = step


def _looped(folder: Path, step: Callable[..., Any], batch: Any, steps: int) -> None:
  from t5like.console import ProgressLine
  from t5like.training.loop import Hook, train_loop
  from t5like.training.records.metrics import MetricWriter
  from t5like.training.records.train_log import TrainLog

  def counting_step(state: _Counter, batch: Any) -> tuple[_Counter, Any]:
    number, metrics = step(state.step, batch)
    return _Counter(number), metrics

  shutil.rmtree(folder / "loop", ignore_errors=True)
  writer = MetricWriter(folder / "loop", 0)
  log = TrainLog(writer, ProgressLine(io.StringIO()), period=100, last_step=steps)
  train_loop(_Counter(0), counting_step, itertools.repeat(batch), steps, log, [Hook(steps, lambda state: None)])
  writer.close()


def _checkpoint_overhead(experiment: Experiment, folder: Path, steps: int, repeats: int) -> CheckpointOverhead:
  import jax

  from t5like import parallel
  from t5like.experiments.phases import blank_batch, run_phases
  from t5like.objectives import SpecialTokens
  from t5like.training.checkpoints import Checkpoints, checkpoint_bytes
  from t5like.training.state import create_state, state_spec
  from t5like.training.step import LossSettings, compile_train_step
  from t5like.vocabularies import load_vocabulary

  mesh = parallel.make_mesh(experiment.mesh)
  phase = run_phases(experiment, SpecialTokens.of(load_vocabulary(experiment.vocabulary)))[-1]
  blank = blank_batch(experiment, phase)
  spec = state_spec(experiment.model, experiment.optimizer, blank, mesh)
  state = create_state(experiment.model, experiment.optimizer, blank, experiment.seed, spec)
  step = compile_train_step(experiment.model, experiment.optimizer, LossSettings(), spec, blank, mesh)
  batch = parallel.to_global_arrays(blank, mesh)
  state, _ = _bare(step, state, batch, 3)

  plain, saving, blocked = [], [], []
  with Checkpoints(folder, retention=1) as checkpoints:
    for _ in range(repeats):
      started = time.monotonic()
      state, _ = _bare(step, state, batch, steps)
      plain.append(time.monotonic() - started)

      started = time.monotonic()
      checkpoints.save(state, {})
      blocked.append(time.monotonic() - started)
      state, _ = _bare(step, state, batch, steps)
      checkpoints.wait()
      jax.block_until_ready(state)
      saving.append(time.monotonic() - started)
  bare = statistics.median(plain)
  return CheckpointOverhead(
    size=checkpoint_bytes(spec.shapes),
    steps=steps,
    step_seconds=bare / steps,
    blocked=statistics.median(blocked),
    longer=max(statistics.median(saving) - bare, 0.0),
  )


def _seconds(function: Callable[[], object]) -> float:
  started = time.perf_counter()
  function()
  return time.perf_counter() - started
