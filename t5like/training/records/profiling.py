"""Traces some steps with the JAX profiler, for TensorBoard or Perfetto."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import jax

from t5like.errors import UserError
from t5like.files import storage


class ProfilerWindow:
  """Traces the steps `first` to `last` on process 0; (0, 0) is off.

  A run that resumes within the window traces the rest of it; one that ends there keeps the trace so far.
  """

  def __init__(self, folder: Path, first: int, last: int):
    if (first, last) != (0, 0) and not 1 <= first <= last:
      raise UserError(
        f"invalid range of steps to profile: {first} to {last}",
        expected="the first and the last step, or (0, 0) for none",
      )
    self._folder, self._first, self._last = folder, first, last
    self._local = folder  # where JAX writes, which cannot write to a store
    self._done = last == 0
    self._first_traced: int | None = None  # while a trace is running
    self._last_traced = 0

  def before(self, step: int, wait: Callable[[], object]) -> None:
    """Starts the trace if due. Called before each step; `wait` waits for earlier steps, to exclude them."""
    if self._done or self._first_traced is not None or not self._first <= step <= self._last:
      return
    self._done = jax.process_index() != 0
    if self._done:
      return
    wait()
    try:
      if self._folder is not None and storage.is_remote(self._folder):
        self._local = Path(tempfile.mkdtemp(prefix="t5like-profile-"))
      jax.profiler.start_trace(self._local)
    except (RuntimeError, OSError) as error:  # another trace is running, a full disk: no reason to end the run
      self._give_up(error)
      return
    self._first_traced = step

  def after(self, step: int, wait: Callable[[], object]) -> None:
    """Ends the trace if due. Called when a step was dispatched; `wait` returns when it is done."""
    if self._first_traced is None:
      return
    self._last_traced = step
    if step >= self._last:
      wait()
      self.close()

  def close(self) -> None:
    """Writes the trace if one is running: at the end of the window or of the run."""
    if self._first_traced is None:
      return
    first, self._first_traced, self._done = self._first_traced, None, True
    try:
      jax.profiler.stop_trace()
      if storage.is_remote(self._folder):
        storage.upload_tree(self._local, self._folder)
    except (RuntimeError, OSError) as error:
      self._give_up(error)
      return
    traces = sorted(self._local.glob("plugins/profile/*/*.trace.json.gz"), key=lambda path: path.stat().st_mtime)
    print(f"\nprofile of steps {first:,} to {self._last_traced:,} in {self._folder}")
    print(f"  view it    tensorboard --logdir {self._folder}  (pip install xprof)")
    if traces:
      print(f"  or         open {traces[-1]} at https://ui.perfetto.dev", flush=True)

  def _give_up(self, error: Exception) -> None:
    self._done = True
    print(f"\nno profile: {error}", flush=True)
