"""Heartbeats are sent while a block runs and not after it, and a late result is ignored."""

import threading
import time

import pytest

from t5like.files.heartbeat import keep_alive
from t5like.files.lease import LeaseLost

TIMEOUT = 60


def test_heartbeats_continue_through_failures_until_the_block_ends():
  beats, enough = [], threading.Event()

  def touch():
    beats.append(time.monotonic())
    if len(beats) == 5:
      enough.set()
    raise OSError("the disk is unavailable")

  with pytest.raises(ZeroDivisionError), keep_alive(touch, 0.01):
    assert enough.wait(TIMEOUT)
    raise ZeroDivisionError
  count = len(beats)
  time.sleep(0.05)
  assert len(beats) == count
  assert beats[4] - beats[0] >= 4 * 0.01


def test_a_lost_lease_is_reported_once():
  reported, touched = threading.Event(), []

  def touch():
    touched.append(1)
    raise LeaseLost("taken over")

  with keep_alive(touch, 0.01, reported.set):
    assert reported.wait(TIMEOUT)
    time.sleep(0.05)
  assert len(touched) == 1


def test_a_store_that_hangs_does_not_block_and_its_late_answer_is_ignored():
  requested, answered, reported = threading.Event(), threading.Event(), []

  def touch():
    requested.set()
    assert answered.wait(TIMEOUT)
    raise LeaseLost("released")

  with keep_alive(touch, 0.05, lambda: reported.append(1)):
    assert requested.wait(TIMEOUT)
    (thread,) = [t for t in threading.enumerate() if t.name == "heartbeat"]
    ended = time.monotonic()
  assert thread.is_alive() and time.monotonic() - ended < TIMEOUT / 2
  answered.set()
  thread.join(TIMEOUT)
  assert not thread.is_alive() and not reported
