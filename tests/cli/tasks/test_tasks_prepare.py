"""`t5like tasks prepare`: its table, output folder, and errors."""

import shutil
from pathlib import Path

FILES = Path(__file__).resolve().parents[2] / "data/original_files"


def test_the_table_compares_with_the_published_sizes(t5like, tmp_path):
  shutil.copytree(FILES / "superglue/BoolQ", tmp_path / "superglue/BoolQ")
  done = t5like("tasks", "prepare", "super_glue/boolq", "--from", tmp_path / "superglue", "--out", tmp_path / "data")
  lines = [line.split() for line in done.stdout.splitlines()]
  assert ["split", "rows", "official", "equal"] in lines
  assert ["train", "absent", "9,427", "looked", "for", "BoolQ/train.jsonl"] in lines
  assert ["validation", "2", "3,270", "no"] in lines and ["test", "1", "3,245", "no"] in lines
  assert (tmp_path / "data/super_glue/boolq/1.0.2/dataset_info.json").is_file()


def test_it_writes_where_tfds_looks(t5like, tmp_path, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
  t5like("tasks", "prepare", "wnut_17", "--from", FILES / "wnut")
  assert (tmp_path / "tfds/wnut_17/1.0.0/features.json").is_file()
  refused = t5like("tasks", "prepare", "wnut_17", "--from", FILES / "wnut", status=2)
  assert "already prepared" in refused.stderr and "--force" in refused.stderr


def test_files_can_be_given(t5like, tmp_path):
  german, english = FILES / "wmt/newstest2013.de", FILES / "wmt/newstest2013.en"
  done = t5like(
    "tasks", "prepare", "wmt16_translate/de-en", "--from", tmp_path, "--out", tmp_path / "out",
    f"--files=train={german},{english}",
  )  # fmt: skip
  assert ["train", "1", "-"] in [line.split() for line in done.stdout.splitlines()]
  refused = t5like("tasks", "prepare", "glue/sst2", "--from", tmp_path, "--files=train", status=2)
  assert "SPLIT=PATH" in refused.stderr
