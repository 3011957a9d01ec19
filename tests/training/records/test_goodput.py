"""Goodput against an external clock; the cost of restarts by hand."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from t5like.training.records.goodput import FILE, Goodput, read_attempts, summary_of_attempts
from t5like.training.records.metrics import MetricWriter, read_metrics

REPOSITORY = Path(__file__).resolve().parents[3]


def test_it_counts_from_the_start_of_the_process():
  program = """
import time
time.sleep(0.5)
from t5like.training.records.goodput import Goodput
goodput = Goodput()
time.sleep(0.3)
with goodput.spent_on("steps"): pass
print(goodput.as_dict()["spent"]["starting up"])
"""
  started = time.monotonic()
  env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
  done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=300)
  outside = time.monotonic() - started
  assert 0.8 <= float(done.stdout) <= outside + 0.02  # the clock of processes ticks 100 times a second


@pytest.fixture
def clock(monkeypatch):
  """Returns a function that advances a frozen clock."""
  now = [time.monotonic()]
  monkeypatch.setattr(time, "monotonic", lambda: now[0])
  return lambda seconds: now.__setitem__(0, now[0] + seconds)


def test_nested_spans_count_once_and_add_up(clock):
  goodput = Goodput()
  clock(7.0)
  starting = goodput.as_dict()["spent"]["starting up"]
  assert starting >= 7.0
  with goodput.spent_on("steps"):
    clock(100.0)
    with goodput.spent_on("saving"):
      clock(20.0)
      with goodput.spent_on("waiting for the disk"):
        clock(3.0)
    goodput.add("waiting for input", 40.0)
    with goodput.spent_on("saving"):
      clock(10.0)
      # Open spans count up to now.
      assert goodput.as_dict()["spent"] == pytest.approx(
        {"starting up": starting, "steps": 60.0, "saving": 30.0, "waiting for the disk": 3.0, "waiting for input": 40.0}
      )
  clock(5.0)
  result = goodput.as_dict()
  spent = {
    "steps": 60.0,
    "saving": 30.0,
    "waiting for the disk": 3.0,
    "waiting for input": 40.0,
    "everything else": 5.0,
  }
  assert result["spent"] == pytest.approx({"starting up": starting, **spent})
  assert result["seconds"] == pytest.approx(138.0 + starting)
  assert result["share_in_steps"] == pytest.approx(60.0 / (138.0 + starting))


def test_a_span_that_raises_is_counted():
  goodput = Goodput()
  with pytest.raises(KeyError), goodput.spent_on("steps"), goodput.spent_on("saving"):
    raise KeyError
  assert set(goodput.as_dict()["spent"]) >= {"steps", "saving"}


def test_the_report_is_a_table_with_the_largest_first():
  goodput = Goodput()
  with goodput.spent_on("steps"):
    goodput.add("evaluating", 2.0)
    goodput.add("saving", 30.0)
  lines = goodput.report(1200).split("\n")
  assert lines[0].startswith("wall time ") and "in 1,200 steps" in lines[0]
  names = [line.split("  ")[1] for line in lines[1:]]
  assert names[0] == "steps" and names.index("saving") < names.index("evaluating")
  assert len({line.rindex("%") for line in lines[1:]}) == 1  # aligned


def attempt(path, *, first, last, ended, lost, started, seconds, in_steps):
  line = {
    "started": started, "process": 1, "written": started + seconds, "first_step": first, "last_step": last,
    "ended": ended, "steps_lost": lost, "seconds": seconds, "spent": {"steps": in_steps},
  }  # fmt: skip
  with path.open("a") as file:
    file.write(json.dumps(line) + "\n")


def test_a_run_that_was_killed_shows_what_its_restarts_cost(tmp_path):
  path = tmp_path / FILE
  assert summary_of_attempts(path) == ""
  attempt(path, first=0, last=200, ended="running", lost=0, started=1000, seconds=50, in_steps=40)
  attempt(path, first=0, last=500, ended="running", lost=0, started=1000, seconds=120, in_steps=100)
  assert summary_of_attempts(path) == ""  # one attempt, with a newer second line
  # Back at 400 after 30 seconds: 100 steps again.
  attempt(path, first=400, last=900, ended="SIGTERM", lost=100, started=1150, seconds=120, in_steps=100)
  with path.open("a") as file:
    file.write('{"started": 1280, "proc')  # torn
    file.write("\n")
  attempt(path, first=900, last=1000, ended="done", lost=0, started=1300, seconds=60, in_steps=20)
  text = summary_of_attempts(path)
  # 220 s in 1,100 steps are 0.2 s each; 100 of them did not count: (220 - 20) of 300 s.
  assert "3 attempts, 5m00s in total, 66.7% of it in useful steps" in text
  assert "100 steps were trained twice, about 20s; 1m00s passed between attempts" in text
  rows = [line.split() for line in text.split("\n")[3:]]
  assert [row[-1] for row in rows] == ["killed", "SIGTERM", "done"]


def test_no_more_time_is_lost_than_was_spent_in_steps(tmp_path):
  """The file has no line about the 400 steps that were lost."""
  for started, lost in ((1000, 400), (1020, 10)):
    attempt(tmp_path / FILE, first=500, last=510, ended="done", lost=lost, started=started, seconds=10, in_steps=2)
  text = summary_of_attempts(tmp_path / FILE)
  assert "0.0% of it in useful steps" in text and "410 steps were trained twice, about 4.0s" in text


@pytest.mark.parametrize(
  "name, value",
  [("started", "now"), ("seconds", None), ("spent", [1]), ("spent", {"steps": "all"}), ("ended", 3), ("process", [])],
)
def test_malformed_attempts_are_skipped(tmp_path, name, value):
  path = tmp_path / FILE
  attempt(path, first=0, last=200, ended="done", lost=0, started=1000, seconds=50, in_steps=40)
  (good,) = read_attempts(path)
  path.write_text(json.dumps({**good, "started": 900, name: value}) + "\n" + json.dumps(good) + "\n")
  assert read_attempts(path) == [good]


def test_an_attempt_after_a_line_cut_short_is_kept(tmp_path):
  (tmp_path / FILE).write_text('{"started": 1.0, "proc')
  Goodput().write(tmp_path / FILE, 0, 10)
  assert [attempt["last_step"] for attempt in read_attempts(tmp_path / FILE)] == [10]


def test_an_attempt_counts_repeated_steps(tmp_path):
  goodput = Goodput()
  assert goodput.resume(read_metrics(tmp_path), tmp_path, 0) == 0
  writer = MetricWriter(tmp_path, 0)
  for step in (100, 200, 270):
    writer.write(step, "train", {"loss": 1.0})
  writer.write(400, "eval/snli", {"accuracy": 1.0})
  writer.close()
  assert goodput.resume(read_metrics(tmp_path), tmp_path, 270) == 0
  assert goodput.resume(read_metrics(tmp_path), tmp_path, 150) == 120
  goodput.write(tmp_path / FILE, 150, 160)
  goodput.write(tmp_path / FILE, 150, 300, "SIGTERM")
  (line,) = read_attempts(tmp_path / FILE)
  assert line["steps_lost"] == 120 and line["last_step"] == 300 and line["ended"] == "SIGTERM"
  assert Goodput().resume(read_metrics(tmp_path), tmp_path, 290) == 10  # known from this file, not from metrics.jsonl
  assert goodput.resume(read_metrics(tmp_path), tmp_path, 280) == 20  # a rollback in the same process
  goodput.write(tmp_path / FILE, 280, 400, "done")
  (line,) = read_attempts(tmp_path / FILE)
  assert line["steps_lost"] == 140 and (line["first_step"], line["last_step"]) == (150, 400)
  assert Goodput().resume(read_metrics(tmp_path), tmp_path, 500) == 0  # from a checkpoint of another run
