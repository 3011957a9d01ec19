"""Learning rate schedules: functions of the step, where step 0 is the first update."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp

from t5like.errors import UserError, is_integer

Schedule = Callable[[jax.Array], jax.Array]
Factory = TypeVar("Factory", bound=Callable)


def record_factory_call(factory: Factory) -> Factory:
  """Stores the name and arguments of a call in `factory_call` of its result, for writing a configuration."""
  signature = inspect.signature(factory)

  @functools.wraps(factory)
  def build(*args, **kwargs):
    built, given = factory(*args, **kwargs), signature.bind(*args, **kwargs)
    given.apply_defaults()
    object.__setattr__(built, "factory_call", (factory.__name__, dict(given.arguments)))
    return built

  build.__signature__ = signature  # gin reads the parameters' defaults there
  return build


@record_factory_call
def constant_rate(value: float = 1e-3) -> Schedule:
  """Constant rate: T5's fine-tuning."""
  return lambda step: jnp.full((), value, jnp.float32)


@record_factory_call
def inverse_square_root(scale: float = 1.0, warmup_steps: int = 10_000) -> Schedule:
  """scale / sqrt(max(step, warmup_steps)): T5's pre-training, constant at first."""
  _check_steps(warmup_steps=warmup_steps)
  return lambda step: scale * jax.lax.rsqrt(jnp.maximum(step, warmup_steps).astype(jnp.float32))


@record_factory_call
def linear(start: float = 1e-3, end: float = 0.0, steps: int = 100_000) -> Schedule:
  """Linear from `start` at step 0 to `end` at step `steps`, then constant."""
  _check_steps(steps=steps)
  return lambda step: start + (end - start) * _progress(step, steps)


@record_factory_call
def cosine(peak: float = 1e-3, final: float = 0.0, steps: int = 100_000) -> Schedule:
  """Cosine decay from `peak` at step 0 to `final` at step `steps` (Loshchilov and Hutter 2016)."""
  _check_steps(steps=steps)
  return lambda step: final + (peak - final) * 0.5 * (1.0 + jnp.cos(math.pi * _progress(step, steps)))


@record_factory_call
def warmup(schedule: Schedule, steps: int = 1_000) -> Schedule:
  """Multiplies the first `steps` rates of a schedule by a linear warmup: 1/steps, 2/steps, ... 1.

  The schedule is not shifted. The first rate is above 0, so that no step is wasted.
  """
  _check_schedules("warmup.schedule", [schedule])
  _check_steps(steps=steps)
  return lambda step: schedule(step) * jnp.minimum((step.astype(jnp.float32) + 1.0) / steps, 1.0)


@record_factory_call
def warmup_linear(peak: float = 1e-3, warmup_steps: int = 1_000, total_steps: int = 100_000) -> Schedule:
  """Linear warmup over `warmup_steps`, then linear decay to 0 at `total_steps`: BERT's."""
  _check_steps(0, warmup_steps=warmup_steps)

  def rate(step):
    step = step.astype(jnp.float32)
    up = (step + 1) / max(warmup_steps, 1)
    down = (total_steps - step) / max(total_steps - warmup_steps, 1)
    return peak * jnp.clip(jnp.minimum(up, down), 0.0, 1.0)

  return rate


@record_factory_call
def warmup_cosine(
  peak: float = 1e-3,
  warmup_steps: int = 1_000,
  total_steps: int = 100_000,
  start: float = 0.0,
  final: float = 0.0,
) -> Schedule:
  """Linear warmup from `start` to `peak` over `warmup_steps`, then cosine decay to `final` at `total_steps`.

  nanoT5's is start = peak / 2, final = 1e-5. A run shorter than its warmup ends during it.
  """
  _check_steps(0, warmup_steps=warmup_steps)
  down = cosine(peak, final, max(total_steps - warmup_steps, 1))
  return chain([linear(start, peak, warmup_steps), down], [warmup_steps]) if warmup_steps else down


@record_factory_call
def slanted_triangular(
  peak: float = 1e-2, total_steps: int = 10_000, cut_fraction: float = 0.1, ratio: float = 32.0
) -> Schedule:
  """Short linear increase, long linear decay (ULMFiT, Howard and Ruder 2018, equation 3).

  cut_fraction  share of the steps in the increase
  ratio         peak divided by the lowest rate
  """
  _check_steps(total_steps=total_steps)
  if not 0.0 < cut_fraction < 1.0 or ratio < 1.0:
    raise UserError(
      f"invalid slanted_triangular(cut_fraction={cut_fraction}, ratio={ratio})",
      expected="cut_fraction between 0 and 1, ratio of at least 1",
    )
  # In a very short run the fraction may be less than one step.
  cut = max(math.floor(total_steps * cut_fraction), 1)

  def rate(step):
    step = step.astype(jnp.float32)
    height = jnp.minimum(step / cut, 1.0 - (step - cut) / (cut * (1.0 / cut_fraction - 1.0)))
    return peak * (1.0 + jnp.clip(height, 0.0, 1.0) * (ratio - 1.0)) / ratio

  return rate


@record_factory_call
def chain(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
  """Concatenates schedules: the first up to step boundaries[0], the second from there on, and so forth.

  Each counts from its own start: step boundaries[0] is step 0 of the second one.
  """
  _check_schedules("chain.schedules", schedules)
  boundaries = tuple(boundaries)
  starts = (0, *boundaries)
  if len(starts) != len(schedules) or any(a >= b for a, b in itertools.pairwise(starts)):
    raise UserError(
      f"invalid boundaries of {len(schedules)} chained schedules: {list(boundaries)}",
      expected=f"{max(len(schedules) - 1, 0)} increasing steps above 0",
    )

  def rate(step):
    current = schedules[0](step)
    for start, schedule in zip(starts[1:], schedules[1:], strict=True):
      # A schedule that has not started yet must not see negative steps.
      current = jnp.where(step < start, current, schedule(jnp.maximum(step - start, 0)))
    return current

  return rate


def _progress(step: jax.Array, steps: int) -> jax.Array:
  """Returns the share of `steps` that is done, from 0 to 1."""
  return jnp.clip(step.astype(jnp.float32) / steps, 0.0, 1.0)


def _check_steps(least: int = 1, **given: int) -> None:
  for name, steps in given.items():
    if not is_integer(steps) or steps < least:
      raise UserError(f"invalid {name} of the schedule: {steps!r}", expected=f"an integer of at least {least}")


def _check_schedules(name: str, schedules: Sequence[Schedule]) -> None:
  if not schedules or not all(callable(schedule) for schedule in schedules):
    raise UserError(
      f"invalid {name}: {schedules!r}", expected="schedules with parentheses, as in @cosine()", try_="[@linear()]"
    )
