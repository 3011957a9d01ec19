"""Writing metrics: means, resumed files, full disks, and TensorBoard events read back by TensorFlow."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from t5like.errors import UserError
from t5like.training.records.metrics import GLOSSARY, MetricWriter, mean_metrics, named_norms, read_metrics
from t5like.training.records.tensorboard import EventWriter

REPOSITORY = Path(__file__).resolve().parents[3]


def test_means_are_weighted_by_target_tokens():
  steps = [
    {"loss": 10.0, "accuracy": 1.0, "target_tokens": 2.0, "learning_rate": 0.1},
    {"loss": 5.0, "accuracy": 3.0, "target_tokens": 3.0, "learning_rate": 0.3},
  ]
  assert mean_metrics(steps) == pytest.approx({"loss": 3.0, "accuracy": 0.8, "learning_rate": 0.2})


def test_means_of_sentences_are_weighted_by_rows_if_counted():
  sums = [
    {"loss": 1.0, "target_tokens": 1.0, "sentence_loss": 6.0, "sentence_accuracy": 1.0, "sentences": 4.0},
    {"loss": 1.0, "target_tokens": 1.0, "sentence_loss": 2.0, "sentence_accuracy": 3.0, "sentences": 12.0},
  ]
  assert mean_metrics(sums) == pytest.approx({"loss": 1.0, "sentence_loss": 0.5, "sentence_accuracy": 0.25})
  means = [{k: v for k, v in m.items() if k != "sentences"} for m in sums]
  assert mean_metrics(means)["sentence_loss"] == 4.0


def test_steps_that_are_not_finite_are_counted_and_excluded():
  nan, flag = float("nan"), lambda up: np.asarray(up)
  steps = [
    {"loss": 10.0, "target_tokens": 2.0, "gradient_norm": 3.0, "finite": flag(True)},
    {"loss": nan, "target_tokens": 7.0, "gradient_norm": nan, "finite": flag(False)},
    {"loss": 6.0, "target_tokens": 2.0, "gradient_norm": 1.0, "finite": flag(True)},
  ]
  assert mean_metrics(steps) == {"loss": 4.0, "gradient_norm": 2.0, "skipped_steps": 1.0}
  assert mean_metrics(steps[:1])["skipped_steps"] == 0.0
  nothing = mean_metrics(steps[1:2])
  assert nothing["skipped_steps"] == 1.0 and np.isnan(nothing["loss"])


def test_norms_of_stacked_layers_are_named_one_by_one():
  norms = {"gradient/encoder/layers/mlp": np.array([0.5, 0.25]), "gradient/embedder": np.float32(2.0)}
  assert named_norms(norms) == {
    "gradient/encoder/layers/mlp[0]": 0.5,
    "gradient/encoder/layers/mlp[1]": 0.25,
    "gradient/embedder": 2.0,
  }


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


def test_rows_that_are_known_are_not_read_again(tmp_path):
  """A run resumes from the rows it found at its start."""
  (tmp_path / "metrics.jsonl").write_text('{"step": 7, "kind": "train"}\n')
  before = [{"step": step, "kind": "train", "loss": 1.0} for step in (10, 20, 30)]
  MetricWriter(tmp_path, 20, before=before).close()
  assert read_metrics(tmp_path) == before[:2]


def test_leftovers_of_a_crash_are_skipped(tmp_path):
  good = b'{"step": 1, "kind": "train", "loss": 2.0}\n'
  (tmp_path / "metrics.jsonl").write_bytes(good + b"\0" * 50 + b"\n\xff\xfe17\n[1, 2]\n17\n" + good)
  assert [row["loss"] for row in read_metrics(tmp_path)] == [2.0, 2.0]


@pytest.mark.parametrize(
  "row",
  ['{"step": "1", "kind": "train"}', '{"step": 1.5, "kind": "train"}', '{"step": -1, "kind": "train"}',
   '{"step": true, "kind": "train"}', '{"step": 1, "kind": 7}', '{"step": 1, "kind": "train", "loss": "low"}',
   '{"step": 1, "kind": "train", "loss": [1]}', '{"step": 1, "kind": "train", "loss": {}}', "[" * 100_000],
)  # fmt: skip
def test_malformed_rows_are_skipped(tmp_path, row):
  good = '{"step": 1, "kind": "train", "loss": 2.0, "bleu": null, "steps": 3}'
  (tmp_path / "metrics.jsonl").write_text(f"{row}\n{good}\n")
  assert read_metrics(tmp_path) == [json.loads(good)]


def test_rows_survive_a_kill(tmp_path):
  program = f"""
from pathlib import Path
from t5like.training.records.metrics import MetricWriter
writer = MetricWriter(Path({str(tmp_path)!r}), 0)
for step in range(1, 1000):
  writer.write(step, "train", {{"loss": 1.0}})
  print(step, flush=True)
  if step == 50:
    import os, signal; os.kill(os.getpid(), signal.SIGKILL)
"""
  env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
  done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=300)
  assert done.returncode == -signal.SIGKILL, done.stderr
  assert [row["step"] for row in read_metrics(tmp_path)] == list(range(1, 51))


def test_a_full_disk_is_named(tmp_path):
  (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
  writer = MetricWriter(tmp_path, 0)
  with pytest.raises(UserError) as full:
    writer.write(1, "train", {"loss": 1.0})
  assert (
    "metrics.jsonl" in str(full.value) and "No space left" in str(full.value) and "free some space" in str(full.value)
  )
  writer.close()


def test_a_model_dir_that_is_a_file_is_named(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError, match=r"cannot write .*file/metrics\.jsonl"):
    MetricWriter(tmp_path / "file", 0)


class Collected:
  def __init__(self):
    self.rows, self.closed = [], False

  def write(self, step, kind, values):
    self.rows.append((step, kind, dict(values)))

  def close(self):
    self.closed = True


def test_additional_writers_get_the_same_rows(tmp_path):
  other = Collected()
  writer = MetricWriter(tmp_path, 0, [other])
  writer.write(2, "eval/snli", {"accuracy": 88.0})
  writer.close()
  assert other.rows == [(2, "eval/snli", {"accuracy": 88.0})] and other.closed


def test_other_hosts_write_nothing(tmp_path, monkeypatch):
  other = Collected()
  monkeypatch.setattr(jax, "process_index", lambda: 1)
  writer = MetricWriter(tmp_path / "run", 0, [other])
  writer.write(1, "train", {"loss": 1.0})
  writer.close()
  assert not (tmp_path / "run").exists() and not other.rows


def read_events(folder):
  tf = pytest.importorskip("tensorflow")
  paths = sorted(p for p in folder.iterdir() if "tfevents" in p.name)
  return [tf.compat.v1.Event.FromString(r.numpy()) for p in paths for r in tf.data.TFRecordDataset(str(p))]


def test_tensorflow_reads_our_event_files(tmp_path):
  writer = EventWriter(tmp_path)
  writer.write(3, "train", {"loss": 2.5, "ünïcode": -1e-3})
  writer.write(2**40, "train", {"loss": float("inf")})
  writer.close()
  events = read_events(tmp_path)
  assert events[0].file_version == "brain.Event:2"
  assert events[1].step == 3 and events[2].step == 2**40
  values = {v.tag: v.simple_value for v in events[1].summary.value}
  assert values == pytest.approx({"train/loss": 2.5, "train/ünïcode": -1e-3})
  assert events[2].summary.value[0].simple_value == float("inf")


def test_tensorboard_drops_steps_that_are_repeated(tmp_path):
  tf = pytest.importorskip("tensorflow")
  EventWriter(tmp_path, first_step=20).close()
  events = read_events(tmp_path)
  assert events[1].session_log.status == tf.compat.v1.SessionLog.START and events[1].step == 21


def test_the_glossary_explains_every_metric(tmp_path):
  MetricWriter(tmp_path, 0).close()
  text = (tmp_path / "metrics_glossary.md").read_text()
  written = {"loss", "z_loss", "accuracy", "gradient_norm", "parameter_norm", "learning_rate", "tokens_per_second"}
  written |= {"input_wait", "sentence_loss", "sentence_accuracy", "skipped_steps", "model_flops_utilization"}
  written |= {"steps_per_second", "perplexity", "target_tokens", "gradient/PATH"}
  assert written <= set(GLOSSARY) and all(f"`{name}`: " in text for name in GLOSSARY)
