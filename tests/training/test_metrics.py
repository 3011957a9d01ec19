"""Metrics on their way to files: means, resumed files, TensorBoard read back by TensorFlow's own reader."""

import io
import json

import pytest

from t5like.training.metrics import GLOSSARY, MetricWriter, mean_metrics, read_metrics
from t5like.training.progress import ProgressLine, duration
from t5like.training.tensorboard import EventWriter


def test_means_weigh_target_tokens():
  steps = [
    {"loss": 10.0, "accuracy": 1.0, "target_tokens": 2.0, "learning_rate": 0.1},
    {"loss": 5.0, "accuracy": 3.0, "target_tokens": 3.0, "learning_rate": 0.3},
  ]
  assert mean_metrics(steps) == pytest.approx({"loss": 3.0, "accuracy": 0.8, "learning_rate": 0.2})


def test_a_resumed_run_records_each_step_once(tmp_path):
  writer = MetricWriter(tmp_path, 0)
  for step in (10, 20, 30):
    writer.write(step, "train", {"loss": step / 10})
  writer.close()
  with (tmp_path / "metrics.jsonl").open("a") as file:
    file.write('{"step": 40, "kind": "tr')  # killed in the middle of a line
  writer = MetricWriter(tmp_path, 20)
  writer.write(30, "train", {"loss": float("nan")})
  writer.close()
  assert read_metrics(tmp_path) == [
    {"step": 10, "kind": "train", "loss": 1.0},
    {"step": 20, "kind": "train", "loss": 2.0},
    {"step": 30, "kind": "train", "loss": None},
  ]
  for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
    json.loads(line)


def test_tensorflow_reads_our_event_files(tmp_path):
  tf = pytest.importorskip("tensorflow")
  writer = EventWriter(tmp_path)
  writer.scalars(3, {"train/loss": 2.5, "train/ünïcode": -1e-3})
  writer.scalars(2**40, {"train/loss": float("inf")})
  writer.close()
  (path,) = tmp_path.iterdir()
  events = [tf.compat.v1.Event.FromString(r.numpy()) for r in tf.data.TFRecordDataset(str(path))]
  assert events[0].file_version == "brain.Event:2"
  assert events[1].step == 3 and events[2].step == 2**40
  values = {v.tag: v.simple_value for v in events[1].summary.value}
  assert values == pytest.approx({"train/loss": 2.5, "train/ünïcode": -1e-3})
  assert events[2].summary.value[0].simple_value == float("inf")


def test_the_glossary_explains_what_a_run_writes():
  written = {"loss", "z_loss", "accuracy", "gradient_norm", "parameter_norm", "learning_rate", "tokens_per_second"}
  assert written | {"input_wait", "sentence_loss", "sentence_accuracy"} == set(GLOSSARY)


def test_the_progress_line_rewrites_itself_in_a_terminal_and_is_rare_in_a_log():
  class Terminal(io.StringIO):
    def isatty(self):
      return True

  terminal = Terminal()
  line = ProgressLine(terminal)
  line.show("step 1 of 100")
  line.show("step 2")
  line.show("done", final=True)
  assert terminal.getvalue() == "\rstep 1 of 100\rstep 2       \rdone  \n"
  log = io.StringIO()
  line = ProgressLine(log, log_every=60)
  for i in range(50):
    line.show(f"step {i}")
  line.show("end", final=True)
  assert log.getvalue() == "step 0\nend\n"


def test_durations():
  assert [duration(s) for s in (5, 200, 3720, -1)] == ["5s", "3m20s", "1h02m", "0s"]
