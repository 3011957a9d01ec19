"""Logs the metrics of steps: means to the metric files, the newest to the progress line."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from t5like.console import ProgressLine, duration
from t5like.training.records.metrics import MetricWriter, mean_metrics, named_norms


class TrainLog:
  """Collects the metrics of steps, writes their means every `period` steps and updates the progress line.

  `flops` returns the model FLOPs of a step from its batch. `peak_flops` is the peak FLOP/s of a device, or None if
  unknown (a CPU); the progress line then shows FLOP/s instead of MFU.
  """

  _SHOW_SECONDS = 5.0  # the progress line is updated at least this often, however long the period

  def __init__(
    self,
    writer: MetricWriter,
    progress: ProgressLine,
    period: int,
    last_step: int,
    flops: Callable[[Mapping[str, Any]], float] = lambda batch: 0.0,
    peak_flops: float | None = None,
    norms_period: int = 0,
  ):
    self._writer, self._progress = writer, progress
    self._period, self._norms_period, self._last_step = period, norms_period, last_step
    self._step_flops, self._peak_flops = flops, peak_flops
    self._pending: list[Mapping[str, jax.Array]] = []
    self._shown = time.monotonic()
    self.restart_clock()

  def restart_clock(self, now: float | None = None) -> None:
    self._started, self._waited, self._tokens, self._flops = time.monotonic() if now is None else now, 0.0, 0, 0.0

  def exclude(self, seconds: float) -> None:
    """Excludes time that was not training, such as a save or an evaluation, from the speed."""
    self._started += seconds

  def add(self, step: int, metrics: Mapping[str, Any], batch: Mapping[str, Any], waited: float, end: float) -> None:
    """Adds a finished step: its metrics, its batch, the seconds that the devices waited for the batch, and its end.

    Python may come here later than that, when other steps have ended, too.
    """
    metrics = dict(metrics)
    norms = metrics.pop("norms", None)
    if norms is not None and self._norms_period and step % self._norms_period == 0:
      self._writer.write(step, "norms", named_norms(jax.device_get(norms)))
    self._pending.append(metrics)
    self._tokens += _tokens(batch)
    self._flops += self._step_flops(batch)
    self._waited += waited
    due = step % self._period == 0 or step == self._last_step
    if not due and time.monotonic() - self._shown < self._SHOW_SECONDS:
      return
    values = self._means(end)
    self._show(step, values)
    if due:
      self._writer.write(step, "train", values)
      self._pending = []
      self.restart_clock(end)

  def _means(self, end: float) -> dict[str, float]:
    """Returns the means over the steps since the last row, and their speed; the last one ended at `end`."""
    self._pending = jax.device_get(self._pending)
    values = mean_metrics(self._pending)
    seconds = max(end - self._started, 1e-9)
    values["steps_per_second"] = len(self._pending) / seconds
    values["tokens_per_second"] = self._tokens / seconds
    values["model_teraflops"] = self._flops / seconds / jax.device_count() / 1e12
    if self._peak_flops:
      values["model_flops_utilization"] = 1e12 * values["model_teraflops"] / self._peak_flops
    values["input_wait"] = self._waited / seconds
    return values

  def _show(self, step: int, values: Mapping[str, float]) -> None:
    remaining = (self._last_step - step) / values["steps_per_second"]
    used = f"{values['model_teraflops'] * jax.device_count():.3g} TFLOP/s"
    if self._peak_flops:
      used = f"MFU {100 * values['model_flops_utilization']:.1f}%"
    accuracy = f"  accuracy {100 * values['accuracy']:.1f}%" if "accuracy" in values else ""
    skipped = f"  {values['skipped_steps']:.0f} skipped" if values.get("skipped_steps") else ""
    self._progress.show(
      f"step {step:,}/{self._last_step:,}  loss {values['loss']:.3f}"
      f"{accuracy}  {values['tokens_per_second']:,.0f} tokens/s  {used}"
      f"  input wait {100 * values['input_wait']:.0f}%{skipped}  ETA {duration(remaining)}",
      final=step == self._last_step,
    )
    self._shown = time.monotonic()


def _tokens(batch: Mapping[str, Any]) -> int:
  """Returns the number of input and target tokens, padding included."""
  return sum(batch[name].size for name in ("encoder_input_tokens", "decoder_input_tokens") if name in batch)
