"""`t5like cache`: its output, rebuilding, and sources with several files."""

import json
import re

import pytest

from t5like.data import open_cache
from t5like.data.cache_builder import CacheProgress
from t5like.experiments.cache_building import BuildProgress


@pytest.fixture
def corpus(tmp_path, monkeypatch):
  """Three files of text and a module that registers them."""
  (tmp_path / "texts").mkdir()
  for number in range(3):
    lines = [json.dumps({"text": f"file {number}, line {line}: it was a dark night"}) for line in range(50)]
    (tmp_path / f"texts/{number}.jsonl").write_text("\n".join(lines) + "\n")
  module = f"three_files_{tmp_path.name}".replace("-", "_")
  (tmp_path / f"{module}.py").write_text(
    "from t5like.tasks.library.corpora import register_corpus\n"
    f"register_corpus({module!r}, {{'train': {str(tmp_path / 'texts/*.jsonl')!r}}}, sizes={{'train': 150}})\n"
  )
  monkeypatch.syspath_prepend(str(tmp_path))
  return module


def contents(folder):
  return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_same_cache_with_and_without_workers(t5like, corpus, tmp_path, monkeypatch):
  from t5like.data import piece_workers
  from t5like.tasks.caching import source_shards

  monkeypatch.setattr(piece_workers, "_MIN_CHARACTERS_FOR_WORKERS", 0)
  monkeypatch.setattr(source_shards, "_PART_BYTES", 1)  # one part per file, however small
  for workers in (0, 2):
    done = t5like(
      "cache", corpus, "--vocabulary=tiny", f"--task_modules={corpus}", f"--out={tmp_path}/{workers}",
      f"--workers={workers}",
    )  # fmt: skip
    assert re.search(r"150 of 150 examples, [\d,]+ tokens, [\d,]+ tokens/s", done.stdout)
  assert contents(tmp_path / "0") == contents(tmp_path / "2")
  (manifest,) = (tmp_path / "0").rglob("cache.json")
  assert [shard["name"] for shard in json.loads(manifest.read_text())["shards"]] == [
    f"shard-0000{part}-00000" for part in range(3)
  ]
  assert open_cache(manifest.parent, rebuild_command="").examples == 150


def test_a_second_run_finds_the_cache_up_to_date_and_rebuilds_a_damaged_one(t5like, corpus, tmp_path):
  line = ["cache", corpus, "--vocabulary=tiny", f"--task_modules={corpus}", f"--out={tmp_path}/out", "--workers=0"]
  assert "token cache written" in t5like(*line).stdout
  before = contents(tmp_path / "out")
  assert "up to date" in t5like(*line).stdout
  (tokens,) = (tmp_path / "out").rglob("*.tokens")
  tokens.write_bytes(tokens.read_bytes()[:-2])
  again = t5like(*line)
  assert "wrong size" in again.stderr and "token cache written" in again.stdout
  assert contents(tmp_path / "out") == before


def test_a_negative_number_of_workers_is_refused(t5like, tmp_path):
  assert "0 or more" in t5like("cache", "novels", "--workers=-1", f"--out={tmp_path}", status=2).stderr


def test_the_progress_line():
  line = BuildProgress(total=1000)
  assert line.text(CacheProgress(250, 5000, 0, 0), 10) == (
    "  250 of 1,000 examples, 5,000 tokens, 500 tokens/s, about 30 s left"
  )
  # Work of an earlier attempt counts for the remaining time, not for the speed: 250 new examples took 200 s.
  assert line.text(CacheProgress(500, 10_000, 250, 5000), 200) == (
    "  500 of 1,000 examples, 10,000 tokens, 25 tokens/s, about 6 min 40 s left, "
    "5,000 tokens resumed from an earlier attempt"
  )
  assert BuildProgress(total=None).text(CacheProgress(7, 70, 0, 0), 7) == "  7 examples, 70 tokens, 10 tokens/s"
  assert "about 2 h 46 min left" in BuildProgress(total=1001).text(CacheProgress(1, 1, 0, 0), 10)


@pytest.mark.slow
def test_an_unreadable_row_is_named_with_its_file_and_line(t5like, tmp_path):
  good = '{"text": "It was a bright cold day."}\n'
  for name, row, expected, found in [
    ("member", b'{"txt": "abc"}', "an object with text", "{'txt': 'abc'}"),
    ("bytes", b'{"text": "a \xff"}', "UTF-8 text", "the byte 0xff"),
    ("json", b"hello", "a JSON object", "hello"),
  ]:
    path = tmp_path / f"{name}.jsonl"
    path.write_bytes(50 * good.encode() + row + b"\n")
    files = f"--files=train={path}"  # registers the task for the commands after it
    for command in (
      ["cache", f"rows_{name}", "--vocabulary=tiny", f"--out={tmp_path}", files],
      ["tasks", "check", f"rows_{name}"],
      ["tasks", "show", f"rows_{name}", "--n=60"],
    ):
      message = t5like(*command, status=2).stderr
      assert message.startswith("error: a row does not match its format") and "Traceback" not in message
      assert f"{path}:51" in message and expected in message and found in message
