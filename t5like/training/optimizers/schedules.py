"""Learning rates as functions of the step: step 0 is the first update."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp

from t5like.errors import UserError

Schedule = Callable[[jax.Array], jax.Array]
Factory = TypeVar("Factory", bound=Callable)


def recorded(factory: Factory) -> Factory:
  """Makes what `factory` returns carry `made_by`, its name and arguments, from which a configuration can be written."""
  signature = inspect.signature(factory)

  @functools.wraps(factory)
  def make(*args, **kwargs):
    made, given = factory(*args, **kwargs), signature.bind(*args, **kwargs)
    given.apply_defaults()
    object.__setattr__(made, "made_by", (factory.__name__, dict(given.arguments)))
    return made

  make.__signature__ = signature  # gin reads the parameters' defaults there
  return make


@recorded
def constant_rate(value: float = 1e-3) -> Schedule:
  """The same rate at every step: T5's fine-tuning."""
  return lambda step: jnp.full((), value, jnp.float32)


@recorded
def inverse_square_root(scale: float = 1.0, warmup_steps: int = 10_000) -> Schedule:
  """scale / sqrt(max(step, warmup_steps)): T5's pre-training, flat at first and then falling."""
  _check_steps(warmup_steps=warmup_steps)
  return lambda step: scale * jax.lax.rsqrt(jnp.maximum(step, warmup_steps).astype(jnp.float32))


@recorded
def linear(start: float = 1e-3, end: float = 0.0, steps: int = 100_000) -> Schedule:
  """A straight line from `start` at step 0 to `end` at step `steps`, and `end` from then on."""
  _check_steps(steps=steps)
  return lambda step: start + (end - start) * _progress(step, steps)


@recorded
def cosine(peak: float = 1e-3, final: float = 0.0, steps: int = 100_000) -> Schedule:
  """Half a cosine wave from `peak` at step 0 down to `final` at step `steps` (Loshchilov and Hutter 2016)."""
  _check_steps(steps=steps)
  return lambda step: final + (peak - final) * 0.5 * (1.0 + jnp.cos(math.pi * _progress(step, steps)))


@recorded
def warmup(schedule: Schedule, steps: int = 1_000) -> Schedule:
  """Any schedule, its first `steps` rates scaled up in a straight line: 1/steps, 2/steps, ... 1.

  The schedule under it is not shifted. The first update has a rate above 0, so that no step is lost.
  """
  _check_schedules("warmup.schedule", [schedule])
  _check_steps(steps=steps)
  return lambda step: schedule(step) * jnp.minimum((step.astype(jnp.float32) + 1.0) / steps, 1.0)


@recorded
def warmup_linear(peak: float = 1e-3, warmup_steps: int = 1_000, total_steps: int = 100_000) -> Schedule:
  """Up from 0 over `warmup_steps`, then down in a straight line to 0 at `total_steps`: BERT's."""

  def rate(step):
    step = step.astype(jnp.float32)
    up = (step + 1) / max(warmup_steps, 1)
    down = (total_steps - step) / max(total_steps - warmup_steps, 1)
    return peak * jnp.clip(jnp.minimum(up, down), 0.0, 1.0)

  return rate


@recorded
def warmup_cosine(
  peak: float = 1e-3,
  warmup_steps: int = 1_000,
  total_steps: int = 100_000,
  start: float = 0.0,
  final: float = 0.0,
) -> Schedule:
  """A straight line from `start` to `peak` over `warmup_steps`, then half a cosine down to `final` at `total_steps`.

  nanoT5's is start = peak / 2, final = 1e-5. A run shorter than its warm-up ends on the way up.
  """
  down = cosine(peak, final, max(total_steps - warmup_steps, 1))
  return chain([linear(start, peak, warmup_steps), down], [warmup_steps]) if warmup_steps else down


@recorded
def slanted_triangular(
  peak: float = 1e-2, total_steps: int = 10_000, cut_fraction: float = 0.1, ratio: float = 32.0
) -> Schedule:
  """A short rise and a long fall (ULMFiT, Howard and Ruder 2018, equation 3).

  cut_fraction  share of the steps that the rise takes
  ratio         how many times smaller the lowest rate is than the peak
  """
  _check_steps(total_steps=total_steps)
  if not 0.0 < cut_fraction < 1.0 or ratio < 1.0:
    raise UserError(
      f"slanted_triangular(cut_fraction={cut_fraction}, ratio={ratio}) cannot work",
      expected="cut_fraction between 0 and 1, ratio of at least 1",
    )
  # Of a handful of steps the fraction may be less than one.
  cut = max(math.floor(total_steps * cut_fraction), 1)

  def rate(step):
    step = step.astype(jnp.float32)
    height = jnp.minimum(step / cut, 1.0 - (step - cut) / (cut * (1.0 / cut_fraction - 1.0)))
    return peak * (1.0 + jnp.clip(height, 0.0, 1.0) * (ratio - 1.0)) / ratio

  return rate


@recorded
def chain(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
  """One schedule after another: the first up to step boundaries[0], the second from there on, and so forth.

  Each counts from its own start: at step boundaries[0] the second one is asked for its step 0.
  """
  _check_schedules("chain.schedules", schedules)
  boundaries = tuple(boundaries)
  starts = (0, *boundaries)
  if len(starts) != len(schedules) or any(a >= b for a, b in itertools.pairwise(starts)):
    raise UserError(
      f"{len(schedules)} schedules cannot be chained at the steps {list(boundaries)}",
      expected=f"{max(len(schedules) - 1, 0)} steps above 0, each above the one before",
    )

  def rate(step):
    current = schedules[0](step)
    for start, schedule in zip(starts[1:], schedules[1:], strict=True):
      # A schedule whose turn has not come sees step 0, never a negative one.
      current = jnp.where(step < start, current, schedule(jnp.maximum(step - start, 0)))
    return current

  return rate


def _progress(step: jax.Array, steps: int) -> jax.Array:
  """The share of `steps` that is done, from 0 to 1."""
  return jnp.clip(step.astype(jnp.float32) / steps, 0.0, 1.0)


def _check_steps(**given: int) -> None:
  for name, steps in given.items():
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
      raise UserError(f"a schedule's {name} = {steps!r} cannot work", expected="a whole number of at least 1")


def _check_schedules(name: str, schedules: Sequence[Schedule]) -> None:
  if not schedules or not all(callable(schedule) for schedule in schedules):
    raise UserError(
      f"{name} = {schedules!r} cannot work", expected="schedules with parentheses, as in @cosine()", try_="[@linear()]"
    )
