"""What a run costs besides its steps: the loop itself, and checkpoints.

t5like bench loop
t5like bench loop --gin_file=models/t5/small.gin --gin.BATCH_SIZE=8

The loop's share is the time of a step in it, with the log and a hook, less that of the same compiled step called
bare; checkpoints' share is how much longer a stretch of steps takes with one save in it.
"""

from __future__ import annotations

import argparse
import io
import itertools
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t5like.cli.options import add_gin_arguments, read_experiment

if TYPE_CHECKING:
  from t5like.experiments.experiment import Experiment

_EMPTY_STEPS = 2_000
_PERIOD = 600.0  # seconds between checkpoints, as CHECKPOINT_MINUTES has it


def configure(parser: argparse.ArgumentParser) -> None:
  add_gin_arguments(parser)
  parser.add_argument("--steps", type=int, default=10, help="of the model, in each stretch (default: 10)")
  parser.add_argument("--repeats", type=int, default=3, help="stretches with and without a save (default: 3)")


def run(args: argparse.Namespace) -> int:
  with tempfile.TemporaryDirectory(prefix="t5like-bench-") as folder:
    files = args.gin_file or ["models/t5/tiny.gin"]
    args.gin_file = [*files, "objectives/span_corruption.gin", "runs/pretrain.gin"]
    args.gin_overrides = [
      ("TRAIN_STEPS", "1000000000"), *args.gin_overrides, ("MODEL_DIR", folder), ("CACHE_DIR", f"{folder}/tokens"),
    ]  # fmt: skip
    experiment = read_experiment(args)
    _loop_overhead(Path(folder))
    _checkpoint_overhead(experiment, Path(folder) / "run", args.steps, args.repeats)
  return 0


def _loop_overhead(folder: Path) -> None:
  """Of steps that do nothing, which the loop cannot hide behind."""
  import jax
  import jax.numpy as jnp

  metrics = {name: jnp.float32(1.0) for name in ("loss", "z_loss", "accuracy", "target_tokens", "finite")}
  step = jax.jit(lambda state, batch: (state + 1, metrics))
  batch = {"decoder_input_tokens": jnp.ones((8, 128), jnp.int32)}
  bare = min(_seconds(lambda: _bare(step, jnp.int32(0), batch, _EMPTY_STEPS)) for _ in range(3))
  whole = min(_seconds(lambda: _looped(folder, step, batch, _EMPTY_STEPS)) for _ in range(3))
  print(f"an empty step, called bare          {1e3 * bare / _EMPTY_STEPS:8.3f} ms")
  print(f"an empty step, in the train loop    {1e3 * whole / _EMPTY_STEPS:8.3f} ms")
  print(f"the loop's own share of a step      {1e3 * (whole - bare) / _EMPTY_STEPS:8.3f} ms\n", flush=True)


def _bare(step: Callable[..., Any], state: Any, batch: Any, steps: int) -> Any:
  import jax

  for _ in range(steps):
    state, metrics = step(state, batch)
  return jax.block_until_ready((state, metrics))


class _Counter:
  """As much of a train state as the loop looks at."""

  def __init__(self, step: Any):
    self.step = step


def _looped(folder: Path, step: Callable[..., Any], batch: Any, steps: int) -> None:
  from t5like.console import ProgressLine
  from t5like.training.loop import Hook, train_loop
  from t5like.training.records.metrics import MetricWriter
  from t5like.training.records.train_log import TrainLog

  def counted(state: _Counter, batch: Any) -> tuple[_Counter, Any]:
    number, metrics = step(state.step, batch)
    return _Counter(number), metrics

  shutil.rmtree(folder / "loop", ignore_errors=True)
  writer = MetricWriter(folder / "loop", 0)
  log = TrainLog(writer, ProgressLine(io.StringIO()), period=100, last_step=steps)
  train_loop(_Counter(0), counted, itertools.repeat(batch), steps, log, [Hook(steps, lambda state: None)])
  writer.close()


def _checkpoint_overhead(experiment: Experiment, folder: Path, steps: int, repeats: int) -> None:
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
  with Checkpoints(folder, keep=1) as checkpoints:
    for _ in range(repeats):
      began = time.monotonic()
      state, _ = _bare(step, state, batch, steps)
      plain.append(time.monotonic() - began)

      began = time.monotonic()
      checkpoints.save(state, {})
      blocked.append(time.monotonic() - began)
      state, _ = _bare(step, state, batch, steps)
      checkpoints.wait()
      jax.block_until_ready(state)
      saving.append(time.monotonic() - began)
  cost = max(statistics.median(saving) - statistics.median(plain), 0.0)
  print(f"a checkpoint of {checkpoint_bytes(spec.shapes) / 1e6:,.1f} MB, saved during {steps} steps of "
        f"{1e3 * statistics.median(plain) / steps:,.1f} ms")  # fmt: skip
  print(f"steps stand still for               {statistics.median(blocked):8.3f} s")
  print(f"longer with the save than without   {cost:8.3f} s")
  print(f"share of a {_PERIOD / 60:.0f}-minute period          {100 * cost / _PERIOD:8.3f} %", flush=True)


def _seconds(function: Callable[[], object]) -> float:
  began = time.perf_counter()
  function()
  return time.perf_counter() - began
