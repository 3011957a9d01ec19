"""A run that resumes with other settings of its rows or rates says so."""

import dataclasses
import json
from types import SimpleNamespace

import t5like
from t5like.runs.recording import changed_data, data_settings
from t5like.training.optimizers.schedules import chain, warmup, warmup_linear


def test_settings_of_the_rows_and_a_schedule_of_another_length_are_reported(tmp_path):
  before = t5like.read_experiment(
    ["models/t5/tiny.gin", "objectives/span_corruption.gin", "runs/pretrain.gin"], MODEL_DIR=str(tmp_path)
  )
  schedules = [chain([warmup(warmup_linear(0.1, 5, steps), 3)], []) for steps in (10, 20)]
  rates = [dataclasses.replace(before.optimizer, learning_rate=schedule) for schedule in schedules]
  before = dataclasses.replace(before, optimizer=rates[0], phases=({"steps": 2, "batch_size": 8},))
  (tmp_path / "before.json").write_text(json.dumps(data_settings(before)))
  run = SimpleNamespace(start=SimpleNamespace(step=9), stream=None)
  assert not changed_data(data_settings(before), tmp_path / "before.json", run)
  after = dataclasses.replace(
    before, optimizer=rates[1], mixing_temperature=2.0, pack=True, phases=(), unique_tokens=1000
  )
  lines = changed_data(data_settings(after), tmp_path / "before.json", run)
  names = ["MIXING_TEMPERATURE", "PACK", "PHASES", "UNIQUE_TOKENS", "LEARNING_RATE"]
  assert [line.split(" = ")[0] for line in lines] == names
  assert "total_steps=20" in lines[-1] and lines[-1].endswith("up to step 9: another rate from now on")
  files = {"train": "new/*.jsonl"}
  (line,) = changed_data(data_settings(dataclasses.replace(before, corpus_files=files)), tmp_path / "before.json", run)
  assert line.startswith(f"CORPUS_FILES = {files}, was {{}} up to step 9: rows of these files from now on; another")
  # A setting that the older run did not have.
  old = {name: value for name, value in data_settings(before).items() if name != "train.loss_on_inputs"}
  (tmp_path / "before.json").write_text(json.dumps(old))
  assert not changed_data(data_settings(before), tmp_path / "before.json", run)
  (line,) = changed_data(data_settings(before) | {"train.loss_on_inputs": True}, tmp_path / "before.json", run)
  assert line == "train.loss_on_inputs = True, was False up to step 9: a loss of other tokens from now on"
  for size, rows in ((4, "36 to 72 repeat"), (16, "72 to 144 are skipped")):
    other = dataclasses.replace(before, batch_size=size)
    (tmp_path / "before.json").write_text(json.dumps(data_settings(dataclasses.replace(before, batch_size=8))))
    (line,) = changed_data(data_settings(other), tmp_path / "before.json", run)
    assert line == f"BATCH_SIZE = {size}, was 8 up to step 9: rows {rows}"
