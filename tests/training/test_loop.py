"""The loop: hooks at their cadence, rows at theirs, and a stop when asked."""

import io
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from t5like.training.interruption import Interruption
from t5like.training.loop import Hook, TrainLog, to_devices, train_loop
from t5like.training.metrics import MetricWriter, read_metrics
from t5like.training.progress import ProgressLine


class State(struct.PyTreeNode):
  step: jnp.ndarray


def count(state, batch):
  state = state.replace(step=state.step + 1)
  loss = 2.0 * float(batch["decoder_input_tokens"][0, 0])
  return state, {"loss": loss, "z_loss": 0.0, "accuracy": 1.0, "target_tokens": 2.0}


def run(tmp_path, hooks=(), first=0, last=10, period=4, interruption=None):
  writer, out = MetricWriter(tmp_path, first), io.StringIO()
  log = TrainLog(writer, ProgressLine(out, log_every=0), period, last)
  state = State(jnp.int32(first))
  batches = iter({"decoder_input_tokens": np.full((2, 3), step)} for step in range(first + 1, last + 1))
  state = train_loop(state, count, batches, last, log, hooks, interruption or Interruption())
  writer.close()
  return state, out.getvalue()


def test_rows_are_means_since_the_row_before_and_the_last_step_has_one(tmp_path):
  state, shown = run(tmp_path)
  rows = read_metrics(tmp_path)
  assert int(state.step) == 10 and [row["step"] for row in rows] == [4, 8, 10]
  # The loss of step n is n: means of 1..4, 5..8 and 9..10.
  assert [row["loss"] for row in rows] == [2.5, 6.5, 9.5]
  assert shown.splitlines()[-1].startswith("step 10/10  loss 9.500  token accuracy 50.0%")


def test_the_live_line_does_not_wait_for_the_period(tmp_path, monkeypatch):
  monkeypatch.setattr(TrainLog, "_SHOW_SECONDS", 0.0)
  _, shown = run(tmp_path, period=100)
  assert [line.split("  ")[0] for line in shown.splitlines()] == [f"step {n}/10" for n in range(1, 11)]
  assert [row["step"] for row in read_metrics(tmp_path)] == [10]
  assert read_metrics(tmp_path)[0]["loss"] == 5.5  # showing took nothing away from the mean


@pytest.mark.parametrize(
  ("every", "at_end", "expected"),
  [(3, False, [3, 6, 9]), (3, True, [3, 6, 9, 10]), (0, True, [10]), (5, True, [5, 10])],
)
def test_hooks_act_at_their_cadence(tmp_path, every, at_end, expected):
  seen = []
  run(tmp_path, [Hook(every, lambda state: seen.append(int(state.step)), at_end)])
  assert seen == expected


def test_a_resumed_loop_does_only_what_is_left(tmp_path):
  seen = []
  state, _ = run(tmp_path, [Hook(1, lambda state: seen.append(int(state.step)))], first=7)
  assert seen == [8, 9, 10] and int(state.step) == 10


def test_the_loop_ends_after_the_step_in_which_it_was_asked_to(tmp_path):
  interruption = Interruption()

  def ask(state):
    if int(state.step) == 6:
      interruption.signal = 15

  state, _ = run(tmp_path, [Hook(1, ask)], interruption=interruption)
  assert int(state.step) == 6


class Late:
  """A number that a device will have at some moment."""

  def __init__(self, value, moment):
    self.value, self.moment = value, moment

  def block_until_ready(self):
    time.sleep(max(0.0, self.moment - time.monotonic()))
    return self

  def __array__(self, dtype=None, copy=None):
    return np.asarray(self.block_until_ready().value)


@pytest.mark.parametrize(
  ("step_seconds", "batch_seconds", "share"),
  [
    (0.06, 0.01, 0.01 / 0.73),  # the device stands still only before the first of 12 steps
    (0.01, 0.04, (12 * 0.04 - 11 * 0.01) / 0.49),  # each batch comes 0.03 s after the step before has ended
  ],
)
def test_waiting_for_a_batch_counts_only_while_the_device_has_nothing_to_do(
  tmp_path, step_seconds, batch_seconds, share
):
  free = 0.0

  def step(state, batch):
    nonlocal free
    free = max(free, time.monotonic()) + step_seconds  # the device does one step after the other, Python goes on
    metrics = {"loss": 1.0, "z_loss": 0.0, "accuracy": 1.0, "target_tokens": 1.0}
    return state, {name: Late(value, free) for name, value in metrics.items()}

  def batches():
    while True:
      time.sleep(batch_seconds)
      yield {"decoder_input_tokens": np.zeros((2, 3), np.int32)}

  writer = MetricWriter(tmp_path, 0)
  log = TrainLog(writer, ProgressLine(io.StringIO(), log_every=0), period=12, last_step=12)
  train_loop(State(jnp.int32(0)), step, batches(), 12, log, [], Interruption())
  writer.close()
  assert read_metrics(tmp_path)[0]["input_wait"] == pytest.approx(share, abs=0.1)


ONE_DEVICE = jax.sharding.SingleDeviceSharding(jax.devices()[0])


def test_devices_get_every_batch_in_order():
  feed = to_devices(({"tokens": np.full((2, 3), n, np.int32)} for n in range(5)), ONE_DEVICE)
  placed = [batch["tokens"] for batch in feed]
  assert all(isinstance(array, jax.Array) and array.sharding == ONE_DEVICE for array in placed)
  assert [int(array[1, 2]) for array in placed] == [0, 1, 2, 3, 4]


def test_the_next_batch_is_made_while_a_step_runs():
  made = []

  def batches():
    for n in range(3):
      made.append(n)
      yield {"tokens": np.full((2, 3), n, np.int32)}

  feed = to_devices(batches(), ONE_DEVICE)
  next(feed)
  deadline = time.monotonic() + 10
  while made == [0] and time.monotonic() < deadline:
    time.sleep(0.001)
  assert made == [0, 1]  # one ahead, no more: a batch takes up device memory
  next(feed)
  feed.close()


def test_a_batch_that_cannot_be_made_ends_the_run_at_its_step():
  def batches():
    yield {"tokens": np.zeros((2, 3), np.int32)}
    raise OSError("disk gone")

  feed = to_devices(batches(), ONE_DEVICE)
  assert next(feed)["tokens"].shape == (2, 3)
  with pytest.raises(OSError, match="disk gone"):
    next(feed)
