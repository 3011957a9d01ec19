"""Following a run: each checkpoint once, deleted ones skipped, until the run ends."""

import json
import shutil
import threading
import time

import pytest

from t5like.errors import UserError
from t5like.evaluation.following import Follower, chosen_steps, has_finished

STEPS = {"first_step": 0, "last_step": 0, "steps_lost": 0}


def save(folder, *steps):
  for step in steps:
    (folder / "checkpoints" / str(step)).mkdir(parents=True)


def note(folder, ended, started=1.0):
  with (folder / "goodput.jsonl").open("a") as file:
    times = {"started": started, "written": started, "seconds": 0.0, "spent": {}}
    file.write(json.dumps({**times, "process": 1, "ended": ended, **STEPS}) + "\n")


def test_a_run_is_followed_to_its_end(tmp_path):
  """Checkpoint 20 is deleted while 10 is evaluated; the run finishes with 40."""
  save(tmp_path, 10, 20)
  note(tmp_path, "running")
  waits, seen = [], []

  def later():
    while not waits:  # until the follower has nothing left to do
      time.sleep(0.01)
    save(tmp_path, 30, 40)
    note(tmp_path, "finished")

  trainer = threading.Thread(target=later)
  trainer.start()
  for step in Follower(tmp_path, poll=0.05, waiting=lambda: waits.append(1)):
    seen.append(step)
    if step == 10:
      shutil.rmtree(tmp_path / "checkpoints/20")
  trainer.join()
  assert seen == [10, 30, 40] and waits


def test_an_interrupted_run_has_not_finished(tmp_path):
  assert not has_finished(tmp_path)
  note(tmp_path, "finished")
  assert has_finished(tmp_path)
  note(tmp_path, "running", started=2.0)  # started again, with more steps
  assert not has_finished(tmp_path)
  note(tmp_path, "interrupted", started=2.0)
  assert not has_finished(tmp_path)


def test_it_stops_on_request(tmp_path):
  save(tmp_path, 1, 2, 3)
  seen = []
  for step in Follower(tmp_path, stopped=lambda: len(seen) == 2, poll=0.05):
    seen.append(step)
  assert seen == [1, 2]


def test_requested_steps(tmp_path):
  save(tmp_path, 10, 200, 3000)
  assert chosen_steps(tmp_path, "all") == [10, 200, 3000]
  assert chosen_steps(tmp_path, "3000,10") == [10, 3000]
  with pytest.raises(UserError, match="(?s)step 20, 30.*10, 200, 3000"):
    chosen_steps(tmp_path, "10,20,30")
  with pytest.raises(UserError, match="invalid steps"):
    chosen_steps(tmp_path, "newest")
