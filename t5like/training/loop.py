"""The loop: batch, step, and hooks that act every so many steps or minutes."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from t5like.parallel.process_zero import run_on_process_zero
from t5like.training.feed import DeviceWatch
from t5like.training.guards.finiteness import FiniteCheck
from t5like.training.guards.watchdog import Watchdog
from t5like.training.records.goodput import STEPS, Goodput
from t5like.training.records.profiling import ProfilerWindow
from t5like.training.records.train_log import TrainLog
from t5like.training.state import TrainState

# Steps that Python may be ahead of the devices: enough to keep them busy, and few enough that a step that fails is
# noticed soon. The same on all hosts, which so act on it after the same step.
RUN_AHEAD = 3


class Hook:
  """`action(state)` after every `every`-th step, when `minutes` have passed since it last acted, and at the end.

  On several hosts the first one's clock counts, and is asked every `look_every` steps: agreeing costs a little.
  """

  def __init__(
    self,
    every: int,
    action: Callable[[TrainState], None],
    at_end: bool = False,
    minutes: float = 0.0,
    look_every: int = 1,
  ):
    self._every, self._action, self._at_end = every, action, at_end
    self._seconds, self._look_every = 60.0 * minutes, look_every
    self._acted = time.monotonic()

  def due(self, step: int, last: bool) -> bool:
    return (self._every > 0 and step % self._every == 0) or (last and self._at_end) or self._time_is_up(step)

  def act(self, state: TrainState) -> None:
    self._action(state)
    self._acted = time.monotonic()

  def _time_is_up(self, step: int) -> bool:
    if not self._seconds or (jax.process_count() > 1 and step % self._look_every):
      return False
    return bool(run_on_process_zero(lambda: int(time.monotonic() - self._acted >= self._seconds)))


class _Flight(NamedTuple):
  """A step that was given to the devices."""

  step: int
  metrics: Mapping[str, Any]
  batch: Mapping[str, Any]
  waited: float


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
  """Runs from state.step to `last_step`, or until `stop(step)`, asked after every step, says so.

  Steps run ahead of Python. They are settled in order: checked, logged and counted as signs of life. Hooks see a
  settled state. Raises NotFinite at a step that `finite` does not let pass.
  """
  finite, watchdog, goodput = finite or FiniteCheck(), watchdog or Watchdog(0), goodput or Goodput()
  profiler = profiler or ProfilerWindow(None, 0, 0)
  under_way: collections.deque[_Flight] = collections.deque()

  def settle(at_most: int) -> None:
    """Waits until no more than so many steps are under way."""
    while len(under_way) > at_most:
      done = under_way.popleft()
      finite.see(done.step, bool(done.metrics.get("finite", True)))
      log.add(*done)
      watchdog.beat()

  watch = DeviceWatch()
  log.restart_clock()
  watchdog.arm()
  with goodput.spent_on(STEPS), contextlib.closing(profiler):
    for step in range(int(state.step) + 1, last_step + 1):
      before = time.monotonic()
      batch = next(batches)
      waited = watch.idle_since(before)
      goodput.add("waiting for input", waited)
      profiler.before(step)
      state, metrics = step_function(state, batch)
      watch.given(metrics)
      under_way.append(_Flight(step, metrics, batch, waited))
      settle(RUN_AHEAD)
      profiler.after(step, lambda: settle(0))
      due = [hook for hook in hooks if hook.due(step, last=step == last_step)]
      if due:
        settle(0)
        before = time.monotonic()
        for hook in due:
          hook.act(state)
        log.leave_out(time.monotonic() - before)
      if stop(step):
        break
    settle(0)
  return state
