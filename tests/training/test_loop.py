"""The train loop: cadence of hooks and rows, stopping, and steps that are not finite."""

import io
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from t5like import parallel
from t5like.console import ProgressLine
from t5like.errors import UserError
from t5like.training.feed import to_devices
from t5like.training.guards.finiteness import FILE, MOST_SKIPS, FiniteCheck, NotFinite, SkippedBatches, UnskippedBatches
from t5like.training.loop import RUN_AHEAD, Hook, train_loop
from t5like.training.records.goodput import STEPS, Goodput
from t5like.training.records.metrics import MetricWriter, read_metrics
from t5like.training.records.train_log import TrainLog


class State(struct.PyTreeNode):
  step: jnp.ndarray


def count(state, batch):
  state = state.replace(step=state.step + 1)
  loss = 2.0 * float(batch["decoder_input_tokens"][0, 0])
  return state, {"loss": loss, "z_loss": 0.0, "accuracy": 1.0, "target_tokens": 2.0}


def run(tmp_path, hooks=(), first=0, last=10, period=4, step=count, **options):
  writer, out = MetricWriter(tmp_path, first), io.StringIO()
  log = TrainLog(writer, ProgressLine(out, log_every=0), period, last, lambda batch: 5e12)
  state = State(jnp.int32(first))
  batches = iter({"decoder_input_tokens": np.full((2, 3), step)} for step in range(first + 1, last + 1))
  try:
    state = train_loop(state, step, batches, last, log, hooks, **options)
  finally:
    writer.close()
  return state, out.getvalue()


def test_rows_are_means_since_the_previous_row_and_the_last_step_has_one(tmp_path):
  state, shown = run(tmp_path)
  rows = read_metrics(tmp_path)
  assert int(state.step) == 10 and [row["step"] for row in rows] == [4, 8, 10]
  # The loss of step n is n: means of 1..4, 5..8 and 9..10.
  assert [row["loss"] for row in rows] == [2.5, 6.5, 9.5]
  assert shown.splitlines()[-1].startswith("step 10/10  loss 9.500  accuracy 50.0%")


@pytest.mark.parametrize("period", [1, 4])
def test_the_speed_of_a_row_is_that_of_its_steps(tmp_path, period):
  """Rows are written when later steps have ended, too, the last ones all at once."""

  def step(state, batch):
    time.sleep(0.02)
    return count(state, batch)

  _, shown = run(tmp_path, step=step, period=period)
  assert all(row["steps_per_second"] <= 500 for row in read_metrics(tmp_path))
  assert all(float(line.split(" tokens/s")[0].split()[-1].replace(",", "")) <= 500 * 6 for line in shown.splitlines())


def test_the_progress_line_does_not_wait_for_the_period(tmp_path, monkeypatch):
  monkeypatch.setattr(TrainLog, "_SHOW_SECONDS", 0.0)
  _, shown = run(tmp_path, period=100)
  assert [line.split("  ")[0] for line in shown.splitlines()] == [f"step {n}/10" for n in range(1, 11)]
  assert [row["step"] for row in read_metrics(tmp_path)] == [10]
  assert read_metrics(tmp_path)[0]["loss"] == 5.5  # the progress line does not affect the mean


@pytest.mark.parametrize(
  ("every", "at_end", "expected"),
  [(3, False, [3, 6, 9]), (3, True, [3, 6, 9, 10]), (0, True, [10]), (5, True, [5, 10])],
)
def test_hooks_run_at_their_cadence(tmp_path, every, at_end, expected):
  seen = []
  run(tmp_path, [Hook(every, lambda state: seen.append(int(state.step)), at_end)])
  assert seen == expected


def test_a_resumed_loop_runs_only_the_remaining_steps(tmp_path):
  seen = []
  state, _ = run(tmp_path, [Hook(1, lambda state: seen.append(int(state.step)))], first=7)
  assert seen == [8, 9, 10] and int(state.step) == 10


def test_the_loop_stops_after_the_step_at_which_stop_returns_true(tmp_path):
  seen = []
  state, _ = run(tmp_path, stop=lambda step: seen.append(step) or step == 6)
  assert int(state.step) == 6 and seen == [1, 2, 3, 4, 5, 6]
  assert read_metrics(tmp_path)[-1]["step"] == 4  # all rows that were due are written


def test_hooks_run_by_the_clock_since_their_last_run(tmp_path, monkeypatch):
  now = [0.0]
  monkeypatch.setattr(time, "monotonic", lambda: now[0])
  seen = []

  def step(state, batch):
    now[0] += 20.0
    return count(state, batch)

  run(tmp_path, [Hook(5, lambda state: seen.append(int(state.step)), minutes=1.0)], last=13, step=step)
  assert seen == [3, 5, 8, 10, 13]  # every minute (three steps) and every fifth step


def failing_at(*steps):
  """A step function whose loss is not a number at some steps."""

  def step(state, batch):
    state, metrics = count(state, batch)
    good = int(state.step) not in steps
    return state, metrics | {"finite": float(good), "loss": metrics["loss"] if good else float("nan")}

  return step


@pytest.mark.parametrize("policy", ["stop", "rollback"])
def test_a_step_that_is_not_finite_ends_the_loop_before_any_hook_sees_what_follows(tmp_path, policy):
  seen, dispatched = [], []

  def step(state, batch):
    dispatched.append(int(state.step) + 1)
    return failing_at(6)(state, batch)

  with pytest.raises(NotFinite) as failure:
    run(tmp_path, [Hook(9, lambda state: seen.append(int(state.step)))], step=step, finite=FiniteCheck(policy))
  assert failure.value.step == 6 and not seen
  assert dispatched[-1] <= 6 + RUN_AHEAD


def test_skipped_steps_are_counted_and_excluded_from_means(tmp_path):
  state, shown = run(tmp_path, step=failing_at(2, 3), finite=FiniteCheck("skip"))
  rows = read_metrics(tmp_path)
  assert int(state.step) == 10 and [row["skipped_steps"] for row in rows] == [2, 0, 0]
  assert rows[0]["loss"] == 2.5  # of steps 1 and 4
  assert "2 skipped" in shown.splitlines()[0] and "skipped" not in shown.splitlines()[-1]


def test_consecutive_skips_are_limited(tmp_path):
  with pytest.raises(NotFinite) as failure:
    run(tmp_path, last=200, step=failing_at(5, *range(8, 200)), finite=FiniteCheck("skip"))
  assert failure.value.step == 7 + MOST_SKIPS


def test_batches_that_were_skipped_stay_skipped(tmp_path):
  # Step 8 failed after the checkpoint of step 5: batches 5, 6 and 7 (from 0) are skipped. Then step 12, which trained
  # on batch 14, fails after the checkpoint of step 10.
  skipped = SkippedBatches().skip(after=5, failed=8).skip(after=10, failed=12)
  skipped.write(tmp_path)
  skipped = SkippedBatches.read(tmp_path)
  batches = UnskippedBatches(list(range(30)), skipped)
  assert [batches[step] for step in range(14)] == [0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 15, 16, 17, 18]
  assert SkippedBatches.read(tmp_path / "elsewhere").batch_index(7) == 7
  for damaged in ("[[5, 3], [1", "[5]", '{"a": 1}', '[["x", 1]]'):
    (tmp_path / FILE).write_text(damaged)
    with pytest.raises(UserError, match="cannot be read"):
      SkippedBatches.read(tmp_path)
  with pytest.raises(UserError, match="still not finite"):
    skipped.skip(10, 11).skip(10, 13).skip(10, 11)


def test_the_progress_line_and_the_rows_have_flops(tmp_path):
  _, shown = run(tmp_path, period=10)
  row = read_metrics(tmp_path)[0]
  assert row["model_teraflops"] == pytest.approx(5 * row["steps_per_second"] / jax.device_count())
  assert "TFLOP/s" in shown and "MFU" not in shown
  writer, out = MetricWriter(tmp_path / "gpu", 0), io.StringIO()
  log = TrainLog(writer, ProgressLine(out, log_every=0), 1, 1, lambda batch: 5e12, peak_flops=1e12)
  log.add(1, count(State(jnp.int32(0)), {"decoder_input_tokens": np.ones((2, 3))})[1],
          {"decoder_input_tokens": np.ones((2, 3))}, 0.0, time.monotonic() + 1.0)  # fmt: skip
  writer.close()
  row = read_metrics(tmp_path / "gpu")[0]
  assert row["model_flops_utilization"] == pytest.approx(row["model_teraflops"] / 1.0)
  assert f"MFU {100 * row['model_flops_utilization']:.1f}%" in out.getvalue()


def test_layer_norms_are_written_at_their_own_period(tmp_path):
  def step(state, batch):
    state, metrics = count(state, batch)
    return state, metrics | {"norms": {"gradient/mlp": np.full((2,), float(state.step))}}

  writer = MetricWriter(tmp_path, 0)
  log = TrainLog(writer, ProgressLine(io.StringIO()), 4, 10, norms_period=3)
  batches = iter({"decoder_input_tokens": np.ones((2, 3))} for _ in range(10))
  train_loop(State(jnp.int32(0)), step, batches, 10, log)
  writer.close()
  norms = [row for row in read_metrics(tmp_path) if row["kind"] == "norms"]
  assert [(row["step"], row["gradient/mlp[1]"]) for row in norms] == [(3, 3.0), (6, 6.0), (9, 9.0)]
  assert not any("gradient/mlp[1]" in row for row in read_metrics(tmp_path) if row["kind"] == "train")


def test_time_in_hooks_is_not_time_in_steps(tmp_path, monkeypatch):
  now = [time.monotonic()]
  monkeypatch.setattr(time, "monotonic", lambda: now[0])
  goodput = Goodput()

  def step(state, batch):
    now[0] += 3.0
    return count(state, batch)

  def hook(state):
    with goodput.spent_on("evaluating"):
      now[0] += 20.0

  run(tmp_path, [Hook(5, hook)], step=step, goodput=goodput)
  spent = goodput.as_dict()["spent"]
  assert spent["evaluating"] == pytest.approx(40.0) and spent[STEPS] == pytest.approx(30.0)


class Late:
  """A value that a device computes until `moment`."""

  def __init__(self, value, moment):
    self.value, self.moment = value, moment

  def block_until_ready(self):
    time.sleep(max(0.0, self.moment - time.monotonic()))
    return self

  def __array__(self, dtype=None, copy=None):
    return np.asarray(self.block_until_ready().value)


@pytest.mark.parametrize(
  ("steps", "step_seconds", "batch_seconds"),
  [
    (12, 0.06, 0.01),  # the device is idle only before the first step: for 0.01 of the 0.12 s
    (5, 0.01, 0.2),  # each batch arrives 0.19 s after the previous step has ended
  ],
)
def test_waiting_for_a_batch_counts_only_while_the_device_has_nothing_to_do(
  tmp_path, steps, step_seconds, batch_seconds
):
  """Sleeps take longer on a busy machine, so that the idle time is measured here, too."""
  free = idle = 0.0

  def step(state, batch):
    nonlocal free
    free = max(free, time.monotonic()) + step_seconds  # the device runs steps in sequence, Python runs ahead
    metrics = {"loss": 1.0, "z_loss": 0.0, "accuracy": 1.0, "target_tokens": 1.0}
    return state, {name: Late(value, free) for name, value in metrics.items()}

  def batches():
    nonlocal idle
    while True:
      before = time.monotonic()
      time.sleep(batch_seconds)
      idle += max(0.0, time.monotonic() - max(before, free))
      yield {"decoder_input_tokens": np.zeros((2, 3), np.int32)}

  writer = MetricWriter(tmp_path, 0)
  log = TrainLog(writer, ProgressLine(io.StringIO(), log_every=0), period=steps, last_step=steps)
  train_loop(State(jnp.int32(0)), step, batches(), steps, log)
  writer.close()
  (row,) = read_metrics(tmp_path)
  waited = row["input_wait"] * steps / row["steps_per_second"]
  assert waited < idle + 0.06
  if batch_seconds > step_seconds:
    assert waited > idle / 2  # a thread records the ends of steps a little late


ONE_DEVICE = parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:1])


def test_devices_get_every_batch_in_order():
  feed = to_devices(({"tokens": np.full((2, 3), n, np.int32)} for n in range(5)), ONE_DEVICE)
  placed = [batch["tokens"] for batch in feed]
  assert all(isinstance(array, jax.Array) and array.devices() == set(ONE_DEVICE.devices.flat) for array in placed)
  assert [int(array[1, 2]) for array in placed] == [0, 1, 2, 3, 4]


def test_the_next_batch_is_built_during_a_step():
  built = []

  def batches():
    for n in range(3):
      built.append(n)
      yield {"tokens": np.full((2, 3), n, np.int32)}

  feed = to_devices(batches(), ONE_DEVICE)
  next(feed)
  deadline = time.monotonic() + 60
  while built == [0] and time.monotonic() < deadline:
    time.sleep(0.001)
  assert built == [0, 1]  # one ahead, no more: a batch takes up device memory
  next(feed)
  feed.close()


def test_an_error_in_a_batch_is_raised_at_its_step():
  def batches():
    yield {"tokens": np.zeros((2, 3), np.int32)}
    raise OSError("disk gone")

  feed = to_devices(batches(), ONE_DEVICE)
  assert next(feed)["tokens"].shape == (2, 3)
  with pytest.raises(OSError, match="disk gone"):
    next(feed)
