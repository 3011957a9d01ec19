"""Building a token cache: the same bytes with any number of workers, kills, full disks and concurrent builders."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from t5like import data
from t5like.data import builder_lock, piece_workers
from t5like.errors import UserError
from t5like.vocabularies import load_vocabulary

REPOSITORY = Path(__file__).resolve().parents[2]
DESCRIPTION = {"task": "words", "split": "train", "source_files": []}
NO_SCORING = {"postprocessor": None, "metrics": []}
WORDS = "the of and to in that was he it his with as had for not at on but be they".split()
KILLS = 8
PARTS, PIECES, EXAMPLES = 3, 16, 20  # a part has pieces, a piece examples


def examples(part):
  draw = random.Random(part)
  for number in range(PIECES * EXAMPLES - 1):  # the last piece is not full
    text = " ".join(draw.choices(WORDS, k=draw.randrange(60)))
    yield {"inputs": text, "targets": f"{number} {text[:20]}", "idx": number}


def build(folder, workers=0, parts=PARTS, source=examples, description=DESCRIPTION, **options):
  vocabulary = load_vocabulary("tiny")
  about = {"name": "tiny", "size": vocabulary.vocab_size, "fingerprint": vocabulary.fingerprint}
  data.build_cache(
    Path(folder),
    data.plan_cache(["inputs", "targets"], about, description, NO_SCORING),
    [lambda part=part: source(part) for part in range(parts)],
    vocabulary.encode_batch,
    workers=workers,
    limits=data.PieceLimits(examples=EXAMPLES),
    **options,
  )


def contents(folder):
  return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
  folder = tmp_path_factory.mktemp("undisturbed") / "train"
  build(folder)
  return contents(folder)


def test_the_cache_contains_every_example_in_order(tmp_path, undisturbed):
  build(tmp_path / "train")
  cache = data.open_cache(tmp_path / "train", rebuild_command="")
  encode = load_vocabulary("tiny").encode
  expected = [example for part in range(PARTS) for example in examples(part)]
  assert cache.examples == len(expected) and len(cache.manifest["shards"]) == PARTS * PIECES
  for number in (0, 1, 318, 319, 500, len(expected) - 1):
    assert {name: ids.tolist() for name, ids in cache.example(number).items()} == {
      name: encode(expected[number][name]) for name in ("inputs", "targets")
    }
  assert [field["idx"] for field in cache.fields()] == [example["idx"] for example in expected]
  assert contents(tmp_path / "train") == undisturbed
  assert [path.name for path in tmp_path.iterdir()] == ["train"]


# A builder in a separate process. Building does not need Grain, which imports JAX and would take most of the time.
BUILDER = f"""
import sys, time
sys.path[:0] = [{str(REPOSITORY)!r}, {str(Path(__file__).parent)!r}]
from t5like.data import piece_workers, sole_builder
piece_workers._MIN_CHARACTERS_FOR_WORKERS = 0
from test_cache_builder import build, examples
def slowly(part):
  for number, example in enumerate(examples(part)):
    if part * {PIECES} + number // {EXAMPLES} == int(sys.argv[3]):
      time.sleep(3600)
    time.sleep(0.001)
    yield example
from pathlib import Path
folder = Path(sys.argv[1])
with sole_builder(folder, waiting=lambda holder: print("waiting for", holder, flush=True), poll_seconds=0.01):
  if folder.exists():
    print("exists")
  else:
    build(folder, workers=int(sys.argv[2]), source=slowly)
    print("built")
"""


@pytest.fixture(scope="module")
def start(tmp_path_factory):
  """Starts builders, which are killed at the end."""
  light = tmp_path_factory.mktemp("light")
  (light / "grain.py").write_text("")
  processes = []

  def start(folder, workers, waits_at=-1):
    """Starts a builder that hangs at piece `waits_at`, if given."""
    process = subprocess.Popen(
      [sys.executable, "-c", BUILDER, str(folder), str(workers), str(waits_at)],
      env={**os.environ, "PYTHONPATH": str(light)},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      start_new_session=True,
    )
    processes.append(process)
    return process

  yield start
  for process in processes:
    if process.poll() is None:
      os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def entries(folder):
  return len(list(folder.with_name("train.building").glob("entries/shard-*")))


def workers_of(pid):
  children = subprocess.run(["pgrep", "-s", str(pid)], capture_output=True, text=True).stdout.split()
  return [int(child) for child in children if int(child) != pid]


@pytest.mark.slow
def test_kills_at_random_times_do_not_change_the_cache(tmp_path, start, undisturbed):
  folder = tmp_path / "train"
  draw = random.Random(1)
  reached = []
  for _ in range(KILLS):
    before = entries(folder)
    goal = before + draw.choice((0, 1, 1, 2))
    # On a slow machine the kill may come late: a builder hangs before nothing is left for the next ones.
    process = start(folder, workers=draw.choice((0, 1, 2)), waits_at=before + 6)
    while entries(folder) < goal:
      assert process.poll() is None, process.communicate()
      time.sleep(0.002)
    time.sleep(draw.random() * 0.03)
    # Sometimes the workers are killed with their builder, sometimes not.
    (os.killpg if draw.random() < 0.5 else os.kill)(process.pid, signal.SIGKILL)
    process.communicate()
    reached.append(entries(folder))
  assert len(set(reached)) > 3, reached  # it was killed at different pieces and resumed
  last = start(folder, workers=2)
  out, err = last.communicate(timeout=400)
  assert last.returncode == 0, out + err
  assert contents(folder) == undisturbed


def test_workers_exit_when_their_builder_is_killed(tmp_path, start):
  process = start(tmp_path / "train", workers=2)
  while not (workers := workers_of(process.pid)) and process.poll() is None:
    time.sleep(0.005)
  os.kill(process.pid, signal.SIGKILL)
  deadline = time.monotonic() + 300
  while any(
    Path(f"/proc/{pid}/stat").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text() for pid in workers
  ):
    assert time.monotonic() < deadline, "a worker outlived its builder"
    time.sleep(0.02)


def test_two_concurrent_builders_build_the_cache_once(tmp_path, start, undisturbed):
  both = [start(tmp_path / "train", workers=1) for _ in range(2)]
  outputs = [process.communicate(timeout=400) for process in both]
  assert [process.returncode for process in both] == [0, 0], outputs
  lines = sorted(out.splitlines()[-1] for out, _ in outputs)
  assert lines == ["built", "exists"]
  assert contents(tmp_path / "train") == undisturbed
  assert [path.name for path in tmp_path.iterdir()] == ["train"]


def stopped(part, after):
  for number, example in enumerate(examples(part)):
    if part == 1 and number == after:
      raise KeyboardInterrupt
    yield example


def test_complete_parts_are_not_read_again(tmp_path, undisturbed):
  with pytest.raises(KeyboardInterrupt):
    build(tmp_path / "train", source=lambda part: stopped(part, after=EXAMPLES * 2 + 1))
  # The first part and two pieces of the second are complete.
  assert entries(tmp_path / "train") == PIECES + 2
  read, seen = [], []

  def recorded(part):
    read.append(part)
    return examples(part)

  build(tmp_path / "train", source=recorded, progress=seen.append)
  assert read == [1, 2]
  assert contents(tmp_path / "train") == undisturbed
  assert seen[-1].resumed_examples == 319 + 2 * EXAMPLES and seen[-1].examples == 3 * 319


def test_a_damaged_piece_of_an_earlier_attempt_is_rebuilt(tmp_path, undisturbed):
  with pytest.raises(KeyboardInterrupt):
    build(tmp_path / "train", source=lambda part: stopped(part, after=EXAMPLES * 2 + 1))
  shards = tmp_path / "train.building/cache"
  content = bytearray((shards / "shard-00000-00003.tokens").read_bytes())
  content[5] ^= 1
  (shards / "shard-00000-00003.tokens").write_bytes(content)
  (shards / "shard-00000-00004.index").write_bytes(b"")
  (shards / "shard-00000-00005.fields").unlink()
  build(tmp_path / "train")
  assert contents(tmp_path / "train") == undisturbed


def test_a_different_plan_starts_over(tmp_path, undisturbed):
  with pytest.raises(KeyboardInterrupt):
    build(
      tmp_path / "train",
      source=lambda part: stopped(part, after=EXAMPLES * 2 + 1),
      description={**DESCRIPTION, "preprocessors": ["older"]},
    )
  seen = []
  build(tmp_path / "train", progress=seen.append)
  assert seen[-1].resumed_examples == 0 and contents(tmp_path / "train") == undisturbed


def test_a_full_disk_is_reported_and_the_build_resumes_when_there_is_space(tmp_path, undisturbed):
  def growing(part):
    """Like `examples`, but the third piece does not fit."""
    for number, example in enumerate(examples(part)):
      yield {**example, "note": "x" * (40_000 if number == 50 else 0)}

  with pytest.raises(UserError) as error:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (32 << 10, hard))  # simulates a full disk without root
    try:
      build(tmp_path / "train", source=growing)
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  assert "not enough disk space" in error.value.what and "it resumes" in error.value.lines["try"]
  assert not (tmp_path / "train").exists() and entries(tmp_path / "train") == 2
  written = {path.name for path in (tmp_path / "train.building/cache").iterdir()}
  assert written == {f"shard-00000-0000{n}.{kind}" for n in (0, 1) for kind in ("tokens", "index", "fields")} | {
    f"shard-00000-00002.{kind}" for kind in ("tokens", "index")
  }
  seen = []
  build(tmp_path / "train", source=growing, progress=seen.append)
  assert seen[-1].resumed_examples == 2 * EXAMPLES
  build(tmp_path / "uninterrupted", source=growing)
  assert contents(tmp_path / "train") == contents(tmp_path / "uninterrupted") != undisturbed


def test_an_error_in_a_worker_is_raised_by_the_builder(tmp_path, monkeypatch):
  monkeypatch.setattr(piece_workers, "_MIN_CHARACTERS_FOR_WORKERS", 0)
  pool = piece_workers.PieceWorkers(_refuse, 1)
  with pool, pytest.raises(UserError) as error:
    list(pool.submit((0, 0), "shard", [], 1))
    list(pool.finish())
  assert error.value.what == "not this one" and error.value.lines == {"name": "shard"}


def test_a_killed_worker_is_reported(monkeypatch):
  monkeypatch.setattr(piece_workers, "_MIN_CHARACTERS_FOR_WORKERS", 0)
  pool = piece_workers.PieceWorkers(_kill_itself, 1)
  with pool, pytest.raises(UserError) as error:
    list(pool.submit((0, 0), "shard", [], 1))
    list(pool.finish())
  assert "SIGKILL" in error.value.lines["because"] and "resume" in error.value.lines["try"]


def _refuse(name, examples):
  raise UserError("not this one", name=name)


def _kill_itself(name, examples):
  os.kill(os.getpid(), signal.SIGKILL)


def test_a_dead_process_loses_its_lock_and_another_machine_only_a_stale_one(tmp_path, monkeypatch):
  monkeypatch.setattr("socket.gethostname", lambda: "here")
  lock = tmp_path / "train.lock"
  lock.write_text(json.dumps({"host": "here", "pid": 999_999_999}))
  with data.sole_builder(tmp_path / "train"):
    assert json.loads(lock.read_text()) == {"host": "here", "pid": os.getpid()}
  assert not lock.exists()

  lock.write_text(json.dumps({"host": "there", "pid": 7}))
  reported = []

  def make_stale(holder):
    reported.append(holder)
    os.utime(lock, (0, time.time() - builder_lock._STALE_AFTER_SECONDS - 1))

  with data.sole_builder(tmp_path / "train", waiting=make_stale, poll_seconds=0.01):
    assert reported == ["process 7 on there"]


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError, match="cannot write the token cache"), data.sole_builder(tmp_path / "file/train"):
    pass
