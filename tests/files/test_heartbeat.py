"""Signs of life while a block runs: none after it, and what is found out too late does not count."""

import threading
import time

import pytest

from t5like.files.heartbeat import beating
from t5like.files.lease import LeaseLost

PATIENCE = 60


def test_beats_go_on_through_failures_until_the_block_ends():
  beats, enough = [], threading.Event()

  def touch():
    beats.append(time.monotonic())
    if len(beats) == 5:
      enough.set()
    raise OSError("the disk is away")

  with pytest.raises(ZeroDivisionError), beating(touch, 0.01):
    assert enough.wait(PATIENCE)
    raise ZeroDivisionError
  count = len(beats)
  time.sleep(0.05)
  assert len(beats) == count
  assert beats[4] - beats[0] >= 4 * 0.01


def test_who_lost_is_told_once():
  told, touched = threading.Event(), []

  def touch():
    touched.append(1)
    raise LeaseLost("somebody has it")

  with beating(touch, 0.01, told.set):
    assert told.wait(PATIENCE)
    time.sleep(0.05)
  assert len(touched) == 1


def test_a_store_that_does_not_answer_holds_nothing_up_and_its_late_answer_is_not_heard():
  asked, answered, told = threading.Event(), threading.Event(), []

  def touch():
    asked.set()
    assert answered.wait(PATIENCE)
    raise LeaseLost("it was given back")

  with beating(touch, 0.05, lambda: told.append(1)):
    assert asked.wait(PATIENCE)
    (thread,) = [t for t in threading.enumerate() if t.name == "heartbeat"]
    ended = time.monotonic()
  assert thread.is_alive() and time.monotonic() - ended < PATIENCE / 2
  answered.set()
  thread.join(PATIENCE)
  assert not thread.is_alive() and not told
