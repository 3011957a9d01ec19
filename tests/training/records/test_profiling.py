"""Profiler traces: written for the right steps, wherever a run starts and ends."""

import functools
import gzip
import json

import jax
import jax.numpy as jnp
import pytest

from t5like.errors import UserError
from t5like.training.records.profiling import ProfilerWindow


@jax.jit
def train_step(x):
  return jnp.tanh(x @ x)


def run(window, first, last):
  """Runs the steps of a loop and returns those that were traced."""
  x = jnp.ones((32, 32))
  traced = []
  for step in range(first, last + 1):
    window.before(step, functools.partial(jax.block_until_ready, x))
    traced += [step] * (window._first_traced is not None)
    with jax.profiler.StepTraceAnnotation("step", step_num=step):
      x = train_step(x)
    window.after(step, functools.partial(jax.block_until_ready, x))
  window.close()
  return traced


def test_a_window_is_traced_and_prints_how_to_view_it(tmp_path, capsys):
  assert run(ProfilerWindow(tmp_path, 3, 4), 1, 6) == [3, 4]
  (trace,) = tmp_path.rglob("*.trace.json.gz")
  events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
  numbers = {e["args"]["step_num"] for e in events if e.get("name") == "step" and "step_num" in e.get("args", {})}
  assert numbers == {"3", "4"}
  assert any("train_step" in e.get("name", "") for e in events)
  out = capsys.readouterr().out
  assert "steps 3 to 4" in out and f"tensorboard --logdir {tmp_path}" in out and str(trace) in out


def test_a_run_may_resume_and_end_within_the_window(tmp_path, capsys):
  assert run(ProfilerWindow(tmp_path, 3, 100), 50, 51) == [50, 51]
  assert "steps 50 to 51" in capsys.readouterr().out and len(list(tmp_path.rglob("*.trace.json.gz"))) == 1


def test_no_window_no_trace(tmp_path, monkeypatch):
  for window in (ProfilerWindow(tmp_path, 0, 0), ProfilerWindow(tmp_path, 8, 9)):
    assert run(window, 1, 6) == []
  monkeypatch.setattr(jax, "process_index", lambda: 1)  # another host
  assert run(ProfilerWindow(tmp_path, 1, 2), 1, 3) == []
  assert not list(tmp_path.iterdir())


def test_a_trace_that_cannot_start_does_not_end_the_run(tmp_path, capsys):
  jax.profiler.start_trace(tmp_path / "other")
  try:
    assert run(ProfilerWindow(tmp_path / "ours", 1, 2), 1, 3) == []
  finally:
    jax.profiler.stop_trace()
  assert "no profile: " in capsys.readouterr().out


@pytest.mark.parametrize("first, last", [(5, 4), (0, 3), (-1, 1), (3, 0)])
def test_invalid_windows_are_refused(tmp_path, first, last):
  with pytest.raises(UserError, match="invalid range of steps to profile"):
    ProfilerWindow(tmp_path, first, last)
