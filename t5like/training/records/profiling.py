"""A trace of some steps, for TensorBoard or Perfetto."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import jax

from t5like.errors import UserError
from t5like.files import storage


class ProfilerWindow:
  """Traces the steps `first` to `last`, on the first host; (0, 0) is off.

  A run that resumes inside of the window traces what is left of it; one that ends there keeps what it has.
  """

  def __init__(self, folder: Path, first: int, last: int):
    if (first, last) != (0, 0) and not 1 <= first <= last:
      raise UserError(
        f"the profiler cannot trace the steps {first} to {last}",
        expected="the first and the last step, or (0, 0) for none",
      )
    self._folder, self._first, self._last = folder, first, last
    self._local = folder  # where JAX writes it, which knows no store
    self._over = last == 0
    self._began: int | None = None  # the first step of the trace, while it runs
    self._ended = 0  # the last step that was traced

  def before(self, step: int, wait: Callable[[], object] | None = None) -> None:
    """To be called ahead of each step; `wait` lets the steps before end, which the trace would show otherwise."""
    if self._over or self._began is not None or not self._first <= step <= self._last:
      return
    self._over = jax.process_index() != 0
    if self._over:
      return
    if wait is not None:
      wait()
    try:
      if self._folder is not None and storage.is_remote(self._folder):
        self._local = Path(tempfile.mkdtemp(prefix="t5like-profile-"))
      jax.profiler.start_trace(self._local)
    except (RuntimeError, OSError) as error:  # another trace is running, a full disk: no reason to end a run
      self._give_up(error)
      return
    self._began = step

  def after(self, step: int, wait: Callable[[], object]) -> None:
    """To be called when a step was given to the devices; `wait` returns when they are done with it."""
    if self._began is None:
      return
    self._ended = step
    if step >= self._last:
      wait()
      self.close()

  def close(self) -> None:
    """Writes the trace, if one is running: at the end of the window, or of the run."""
    if self._began is None:
      return
    began, self._began, self._over = self._began, None, True
    try:
      jax.profiler.stop_trace()
      if storage.is_remote(self._folder):
        storage.upload_tree(self._local, self._folder)
    except (RuntimeError, OSError) as error:
      self._give_up(error)
      return
    traces = sorted(self._local.glob("plugins/profile/*/*.trace.json.gz"), key=lambda path: path.stat().st_mtime)
    print(f"\nprofile of the steps {began:,} to {self._ended:,} in {self._folder}")
    print(f"  to see it  tensorboard --logdir {self._folder}  (pip install xprof)")
    if traces:
      print(f"  or         open {traces[-1]} at https://ui.perfetto.dev", flush=True)

  def _give_up(self, error: Exception) -> None:
    self._over = True
    print(f"\nno profile: {error}", flush=True)

  def __enter__(self) -> ProfilerWindow:
    return self

  def __exit__(self, *unused) -> None:
    self.close()
