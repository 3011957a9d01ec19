"""Measures train steps, their memory, and the machine's matrix-product ceiling.

Subjects are measured in turns, a window of steps each, so that load from other processes affects all of them alike.
A subject that fails reports an error and does not affect the others.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from t5like.bench.kernels import profile
from t5like.errors import RunError

if TYPE_CHECKING:  # help must not wait for jax
  import flax.linen as nn

  from t5like.finetuning import Trainable
  from t5like.training.optimizers import Optimizer

WINDOWS = 3


class Subject(Protocol):
  """A benchmarked train step: ours, or a peer's in a subprocess."""

  name: str

  def start(self) -> dict[str, Any]:
    """Builds, compiles and runs the first step; returns {"device", "optimizer", "compile_seconds", ...}."""

  def run(self, steps: int) -> float:
    """Returns the seconds that `steps` steps take."""

  def close(self) -> dict[str, Any]:
    """Frees everything and returns facts known at the end, such as {"memory_bytes"}."""


def measure_in_turns(
  subjects: Sequence[Subject], steps: int, seconds: float, say: Callable[[str], None]
) -> list[dict[str, Any]]:
  """Returns a result per subject: {"name", "step_seconds", "spread", ...}, or {"name", "error"}.

  Each runs `steps` timed steps in three windows, or fewer if they would take longer than `seconds`.
  """
  results: dict[str, dict[str, Any]] = {}
  times: dict[str, list[float]] = {}
  counts: dict[str, int] = {}

  def attempt(subject: Subject, action: Callable[[], None]) -> None:
    try:
      action()
    except RunError as error:
      results[subject.name] = {"name": subject.name, "error": error.what}
      say(f"{subject.name}: {error.what}")

  def start(subject: Subject) -> None:
    results[subject.name] = {"name": subject.name} | subject.start()
    say(f"{subject.name}: first step after {results[subject.name]['compile_seconds']:.1f} s")
    one = subject.run(1)
    if one < 1.0:
      one = subject.run(2) / 2
    counts[subject.name] = max(1, min(steps // WINDOWS, int(seconds / WINDOWS / one)))
    times[subject.name] = []

  def window(subject: Subject) -> None:
    count = counts[subject.name]
    times[subject.name].append(subject.run(count) / count)
    say(f"{subject.name}: {1e3 * times[subject.name][-1]:,.1f} ms per step over {count}")

  for subject in subjects:
    attempt(subject, lambda subject=subject: start(subject))
  for _ in range(WINDOWS):
    for subject in subjects:
      if "error" not in results[subject.name]:
        attempt(subject, lambda subject=subject: window(subject))
  for subject in subjects:
    known, measured = results[subject.name], times.get(subject.name)
    at_end = subject.close()
    if "error" not in known:
      known |= {"step_seconds": statistics.median(measured), "spread": max(measured) / min(measured) - 1.0} | at_end
  return [results[subject.name] for subject in subjects]


def model_settings(dtype: str, backend: str) -> list[tuple[str, str]]:
  """Returns the macros of a dtype of the computation and of an attention back end; "auto" is that of the model."""
  return [("COMPUTE_DTYPE", dtype), *([("ATTENTION_BACKEND", backend)] if backend != "auto" else [])]


class OurStep:
  """The step that `t5like train` compiles, on all local devices, with random parameters."""

  name = "t5like"

  def __init__(
    self,
    model: nn.Module,
    optimizer: Optimizer,
    batch: Mapping[str, np.ndarray],
    profiled: bool = False,
    deterministic: bool = True,
    trainable: Trainable | None = None,
    microbatches: int = 1,
  ):
    """profiled: run the last steps under JAX's profiler. trainable: what trains; None: everything."""
    self._model, self._optimizer, self._batch, self._profiled = model, optimizer, batch, profiled
    self._deterministic, self._trainable = deterministic, trainable
    self._microbatches = microbatches

  def start(self) -> dict[str, Any]:
    import jax

    from t5like import parallel
    from t5like.bench.tuned import plan_tuned
    from t5like.finetuning import Everything
    from t5like.models import TransformerConfig
    from t5like.models.attention import describe_backend
    from t5like.models.stack import describe_layer_loop, frozen_layers
    from t5like.training.state import create_state
    from t5like.training.step import LossSettings, compile_train_step

    model, optimizer, batch = self._model, self._optimizer, self._batch
    mesh = parallel.make_mesh(parallel.MeshAxes())
    parallel.check_batch(len(next(iter(batch.values()))), mesh, "--batch_size")
    plan = plan_tuned(model, self._trainable or Everything(), optimizer, batch, mesh)
    model, optimizer, spec = plan.model, plan.optimizer, plan.spec
    settings = LossSettings(microbatches=self._microbatches)
    started = time.perf_counter()
    try:
      with frozen_layers(plan.frozen_layers):
        self._step = compile_train_step(model, optimizer, settings, spec, batch, mesh, self._deterministic)
      seconds = time.perf_counter() - started
      self._state = create_state(model, optimizer, batch, 0, spec, plan.stored)
    except jax.errors.JaxRuntimeError as error:
      raise RunError(_first_line(error)) from error
    self._batch = jax.device_put(batch, parallel.batch_sharding(mesh))
    self._losses: list[float] = []
    self.run(1)
    facts = {"device": f"{jax.device_count()} x {jax.devices()[0].device_kind}"}
    if isinstance(model.config, TransformerConfig):
      lengths = {f"{side}_length": batch[f"{side}_input_tokens"].shape[1] for side in _sides(batch)}
      packed = any("segment_ids" in name for name in batch)
      facts["attention"] = describe_backend(model.config, **lengths, packed=packed, deterministic=self._deterministic)
      facts["layers"] = describe_layer_loop(model.config)
    return facts | {"optimizer": optimizer.description, "compile_seconds": seconds} | plan.facts()

  def run(self, steps: int) -> float:
    import jax

    started = time.perf_counter()
    try:
      for _ in range(steps):
        self._state, metrics = self._step(self._state, self._batch)
      jax.block_until_ready((self._state, metrics))
    except jax.errors.JaxRuntimeError as error:
      raise RunError(_first_line(error)) from error
    seconds = time.perf_counter() - started
    self._losses.append(float(metrics["loss"] / metrics["target_tokens"]))
    return seconds

  def close(self) -> dict[str, Any]:
    if not hasattr(self, "_step"):
      return {}
    known = {"memory_bytes": _memory(self._step), "losses": getattr(self, "_losses", [])}
    if self._profiled:
      known["kernels"] = profile(self.run)
    self._state = self._step = self._batch = None
    return known


def _first_line(error: Exception) -> str:
  return str(error).strip().splitlines()[0][:200]


def _sides(batch: Mapping[str, Any]) -> list[str]:
  return [side for side in ("encoder", "decoder") if f"{side}_input_tokens" in batch]


def _memory(step: Any) -> int | None:
  """Returns the bytes of arguments, unaliased results and temporaries of the compiled step on one device."""
  analysis = step.memory_analysis()
  if analysis is None:
    return None
  results = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
  return analysis.argument_size_in_bytes + results + analysis.temp_size_in_bytes


def matrix_ceiling(dtype: str) -> float:
  """Returns the FLOP/s of a large product of random matrices, over all devices."""
  import jax
  import jax.numpy as jnp

  size = 1024 if jax.default_backend() == "cpu" else 8192
  keys = jax.random.split(jax.random.key(0))
  x, y = (jax.random.normal(k, (size, size), jnp.dtype(dtype)) for k in keys)
  multiply = jax.jit(lambda x, y: x @ y)
  multiply(x, y).block_until_ready()
  repeats, times = 20, []
  for _ in range(WINDOWS):
    started = time.perf_counter()
    for _ in range(repeats):
      out = multiply(x, y)
    out.block_until_ready()
    times.append((time.perf_counter() - started) / repeats)
  devices = 1 if jax.default_backend() == "cpu" else jax.device_count()
  return devices * 2 * size**3 / min(times)
