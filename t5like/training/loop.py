"""The train loop: batch, step, and hooks that run every N steps or minutes."""

from __future__ import annotations

import collections
import contextlib
import numbers
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import jax
import numpy as np

from t5like.errors import UserError
from t5like.parallel.process_zero import run_on_process_zero
from t5like.training.feed import DeviceIdleTimer
from t5like.training.guards.finiteness import FiniteCheck
from t5like.training.guards.watchdog import Watchdog
from t5like.training.records.goodput import STEPS, Goodput
from t5like.training.records.profiling import ProfilerWindow
from t5like.training.records.train_log import TrainLog
from t5like.training.state import TrainState

# Steps that Python may be ahead of the devices: enough to keep them busy, few enough to notice a failing step soon.
# The same on all hosts, so that all of them react after the same step.
RUN_AHEAD = 3


class Hook:
  """Calls `action(state)` every `every` steps, every `minutes` minutes and, with `at_end`, after the last step.

  With several hosts, the clock of process 0 decides. It is read every `check_every` steps, because agreeing on it costs
  a broadcast.

  The next step reuses the memory of the state: an action that keeps parameters copies them, with `jax.device_get`.
  """

  def __init__(
    self,
    every: int,
    action: Callable[[TrainState], None],
    at_end: bool = False,
    minutes: float = 0.0,
    check_every: int = 1,
  ):
    if not callable(action):
      raise UserError(f"invalid Hook.action: {action!r}", expected="a function of the train state")
    if not isinstance(every, numbers.Integral) or every < 0:
      raise UserError(f"invalid Hook.every: {every!r}", expected="a number of steps; 0: never")
    if not isinstance(minutes, numbers.Real) or minutes < 0:
      raise UserError(f"invalid Hook.minutes: {minutes!r}", expected="a number of minutes; 0: never")
    self._every, self._action, self._at_end = every, action, at_end
    self._seconds, self._check_every = 60.0 * minutes, check_every
    self._last_run = time.monotonic()

  def due(self, step: int, last: bool) -> bool:
    return (self._every > 0 and step % self._every == 0) or (last and self._at_end) or self._time_is_up(step)

  def run(self, state: TrainState) -> None:
    self._action(state)
    self._last_run = time.monotonic()

  def _time_is_up(self, step: int) -> bool:
    if not self._seconds or (jax.process_count() > 1 and step % self._check_every):
      return False
    return bool(run_on_process_zero(lambda: time.monotonic() - self._last_run >= self._seconds))


class _PendingStep(NamedTuple):
  """A step that was dispatched to the devices."""

  step: int
  metrics: Mapping[str, Any]
  batch: Mapping[str, Any]
  waited: float
  end: Future[float]


def train_loop(
  state: TrainState,
  step_function: Callable[[TrainState, Any], tuple[TrainState, Mapping[str, Any]]],
  batches: Iterator[Any],
  last_step: int,
  log: TrainLog,
  hooks: Sequence[Hook] = (),
  stop: Callable[[int], bool] = lambda step: False,
  finite: FiniteCheck | None = None,
  watchdog: Watchdog | None = None,
  profiler: ProfilerWindow | None = None,
  goodput: Goodput | None = None,
) -> TrainState:
  """Trains from state.step to `last_step`, or until `stop(step)`, called after every step, returns True.

  Python runs ahead of the devices. Finished steps are settled in order: checked, logged and counted as heartbeats.
  Hooks see a settled state. Raises NotFinite at a step that `finite` rejects.
  """
  finite, watchdog, goodput = finite or FiniteCheck(), watchdog or Watchdog(0), goodput or Goodput()
  profiler = profiler or ProfilerWindow(None, 0, 0)
  pending: collections.deque[_PendingStep] = collections.deque()

  def settle(at_most: int) -> None:
    """Waits until at most `at_most` steps are pending."""
    while len(pending) > at_most:
      done = pending.popleft()
      finite.check(done.step, bool(np.all(done.metrics.get("finite", True))))
      log.add(done.step, done.metrics, done.batch, done.waited, done.end.result())
      watchdog.heartbeat()

  idle_timer = DeviceIdleTimer()
  log.restart_clock()
  watchdog.arm()
  with goodput.spent_on(STEPS), contextlib.closing(profiler):
    for step in range(int(state.step) + 1, last_step + 1):
      before = time.monotonic()
      batch = next(batches)
      waited = idle_timer.idle_since(before)
      goodput.add("waiting for input", waited)
      profiler.before(step, lambda: settle(0))
      state, metrics = step_function(state, batch)
      pending.append(_PendingStep(step, metrics, batch, waited, idle_timer.dispatched(metrics)))
      settle(RUN_AHEAD)
      profiler.after(step, lambda: settle(0))
      due = [hook for hook in hooks if hook.due(step, last=step == last_step)]
      if due:
        settle(0)
        before = time.monotonic()
        for hook in due:
          hook.run(state)
        log.exclude(time.monotonic() - before)
      if stop(step):
        break
    settle(0)
  return state
