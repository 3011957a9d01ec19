"""Atomic replacement of files by independent processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from t5like.ablations.sweep.results import write_json
from t5like.files import storage

REPOSITORY = Path(__file__).resolve().parents[2]
LENGTH, TIMES = 200_000, 60
WRITER = f"""
import sys
from pathlib import Path
from t5like.files import storage
print("ready", flush=True)
sys.stdin.readline()
for _ in range({TIMES}):
  storage.write_atomic(Path(sys.argv[1]), sys.argv[2] * {LENGTH})
"""


def test_concurrent_writers_of_one_file_neither_mix_contents_nor_fail(tmp_path):
  path = tmp_path / "new/sweep.json"
  env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
  writers = [
    subprocess.Popen(
      [sys.executable, "-c", WRITER, path, letter], env=env, text=True,
      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )
    for letter in "abc"
  ]  # fmt: skip
  assert [writer.stdout.readline() for writer in writers] == ["ready\n"] * 3
  for writer in writers:
    writer.stdin.write("go\n")
    writer.stdin.flush()
  complete = {letter * LENGTH for letter in "abc"}
  while any(writer.poll() is None for writer in writers):
    assert not path.exists() or path.read_text() in complete, "a reader saw mixed or partial content"
  assert [(writer.wait(), writer.communicate()[1]) for writer in writers] == [(0, "")] * 3
  assert path.read_text() in complete and os.listdir(path.parent) == ["sweep.json"]


def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path):
  write_json(tmp_path / "x.json", {"a": 1})
  with pytest.raises(ZeroDivisionError), storage.atomic_replace(tmp_path / "x.json") as fresh:
    fresh.write_text("half")
    raise ZeroDivisionError
  with pytest.raises(TypeError):
    write_json(tmp_path / "x.json", {"a": object()})
  assert (tmp_path / "x.json").read_text() == '{\n "a": 1\n}\n' and os.listdir(tmp_path) == ["x.json"]


def test_a_file_has_the_permissions_of_the_users_umask(tmp_path):
  before = os.umask(0o027)
  try:
    storage.write_atomic(tmp_path / "x", b"1", sync=True)
  finally:
    os.umask(before)
  assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640
