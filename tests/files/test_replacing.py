"""Files that are replaced in one step, by processes that know nothing of each other."""

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
  storage.write_whole(Path(sys.argv[1]), sys.argv[2] * {LENGTH})
"""


def test_processes_that_write_the_same_file_at_once_neither_mix_nor_fail(tmp_path):
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
  whole = {letter * LENGTH for letter in "abc"}
  while any(writer.poll() is None for writer in writers):
    assert not path.exists() or path.read_text() in whole, "a reader saw two contents, or half of one"
  assert [(writer.wait(), writer.communicate()[1]) for writer in writers] == [(0, "")] * 3
  assert path.read_text() in whole and os.listdir(path.parent) == ["sweep.json"]


def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(tmp_path):
  write_json(tmp_path / "x.json", {"a": 1})
  with pytest.raises(ZeroDivisionError), storage.replacing(tmp_path / "x.json") as fresh:
    fresh.write_text("half")
    raise ZeroDivisionError
  with pytest.raises(TypeError):
    write_json(tmp_path / "x.json", {"a": object()})
  assert (tmp_path / "x.json").read_text() == '{\n "a": 1\n}\n' and os.listdir(tmp_path) == ["x.json"]


def test_a_file_has_the_rights_that_the_user_gives_new_files(tmp_path):
  before = os.umask(0o027)
  try:
    storage.write_whole(tmp_path / "x", b"1", sync=True)
  finally:
    os.umask(before)
  assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640
