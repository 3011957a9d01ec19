"""The loop: batch, step, and hooks that act every so many steps."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from t5like.training.interruption import Interruption
from t5like.training.metrics import MetricWriter, mean_metrics
from t5like.training.progress import ProgressLine, duration
from t5like.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class Hook:
  """`action(state)` after every `every`-th step; also after the last one where `at_end` is set."""

  every: int
  action: Callable[[TrainState], None]
  at_end: bool = False

  def due(self, step: int, last: bool) -> bool:
    return (self.every > 0 and step % self.every == 0) or (last and self.at_end)


def to_devices(batches: Iterable[Mapping[str, Any]], sharding: jax.sharding.Sharding) -> Iterator[Mapping[str, Any]]:
  """Hands batches over one ahead, in a thread, so that fetching and copying overlap with the step before."""
  source = iter(batches)

  def place() -> Mapping[str, Any] | None:
    batch = next(source, None)
    if batch is None:
      return None
    return {name: jax.make_array_from_process_local_data(sharding, array) for name, array in batch.items()}

  with ThreadPoolExecutor(1, "to-devices") as thread:
    ahead = thread.submit(place)
    while (batch := ahead.result()) is not None:
      ahead = thread.submit(place)
      yield batch


class DeviceWatch:
  """Notes when the devices run out of steps.

  Python runs many steps ahead of the devices. What it waits for a batch meanwhile costs nothing: only
  the wait that outlasts the last step counts. A thread notes when that step ends.
  """

  def __init__(self):
    self._thread = ThreadPoolExecutor(1, "device-watch")
    self._end: Future[float] | None = None  # of the last step

  def given(self, metrics: Mapping[str, jax.Array]) -> None:
    """A step was given to the devices, and these will come out."""
    self._end = self._thread.submit(_time_of_end, metrics)

  def idle_since(self, moment: float) -> float:
    """Seconds since `moment` in which the devices had nothing to do."""
    if self._end is None:
      return time.monotonic() - moment
    return time.monotonic() - max(moment, self._end.result()) if self._end.done() else 0.0


def _time_of_end(metrics: Mapping[str, jax.Array]) -> float:
  jax.block_until_ready(metrics)
  return time.monotonic()


class TrainLog:
  """Collects the metrics of steps, writes their means every `period` steps, and keeps the live line alive."""

  _SHOW_SECONDS = 5.0  # the live line is renewed at least so often, however long the period

  def __init__(self, writer: MetricWriter, progress: ProgressLine, period: int, last_step: int):
    self._writer, self._progress = writer, progress
    self._period, self._last_step = period, last_step
    self._pending: list[Mapping[str, jax.Array]] = []
    self._shown = time.monotonic()
    self.restart_clock()

  def restart_clock(self) -> None:
    self._started, self._waited, self._tokens = time.monotonic(), 0.0, 0

  def leave_out(self, seconds: float) -> None:
    """Takes out of the speed what was not training: a save, an evaluation."""
    self._started += seconds

  def add(self, step: int, metrics: Mapping[str, jax.Array], tokens: int, waited: float) -> None:
    """The metrics of a step, the tokens of its batch, and how long the devices waited for them."""
    self._pending.append(metrics)
    self._tokens += tokens
    self._waited += waited
    due = step % self._period == 0 or step == self._last_step
    if not due and time.monotonic() - self._shown < self._SHOW_SECONDS:
      return
    values = self._means()
    self._show(step, values)
    if due:
      self._writer.write(step, "train", values)
      self._pending = []
      self.restart_clock()

  def _means(self) -> dict[str, float]:
    """Over the steps since the last row; waits for them to end."""
    self._pending = jax.device_get(self._pending)
    values = mean_metrics(self._pending)
    seconds = max(time.monotonic() - self._started, 1e-9)
    values["tokens_per_second"] = self._tokens / seconds
    self._steps_per_second = len(self._pending) / seconds
    values["input_wait"] = self._waited / seconds
    return values

  def _show(self, step: int, values: Mapping[str, float]) -> None:
    remaining = (self._last_step - step) / self._steps_per_second
    self._progress.show(
      f"step {step:,}/{self._last_step:,}  loss {values['loss']:.3f}"
      f"  token accuracy {100 * values['accuracy']:.1f}%  {values['tokens_per_second']:,.0f} tokens/s"
      f"  input wait {100 * values['input_wait']:.0f}%  ETA {duration(remaining)}",
      final=step == self._last_step,
    )
    self._shown = time.monotonic()


def _tokens(batch: Mapping[str, Any]) -> int:
  """Positions that a model goes through, padding included."""
  return sum(batch[name].size for name in ("encoder_input_tokens", "decoder_input_tokens") if name in batch)


def train_loop(
  state: TrainState,
  step_function: Callable[[TrainState, Any], tuple[TrainState, Mapping[str, jax.Array]]],
  batches: Iterator[Any],
  last_step: int,
  log: TrainLog,
  hooks: Sequence[Hook],
  interruption: Interruption,
) -> TrainState:
  """Runs from state.step to `last_step`, or until interrupted; hooks then see a settled state."""
  watch = DeviceWatch()
  log.restart_clock()
  for step in range(int(state.step) + 1, last_step + 1):
    before = time.monotonic()
    batch = next(batches)
    waited = watch.idle_since(before)
    state, metrics = step_function(state, batch)
    watch.given(metrics)
    log.add(step, metrics, _tokens(batch), waited)
    due = [hook for hook in hooks if hook.due(step, last=step == last_step)]
    if due:
      jax.block_until_ready(state)  # steps run ahead of Python; let them end on their own time
      before = time.monotonic()
      for hook in due:
        hook.action(state)
      log.leave_out(time.monotonic() - before)
    if interruption.requested:
      break
  return state
