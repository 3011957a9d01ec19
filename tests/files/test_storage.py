"""Objects as files, against a fake Google Cloud Storage server."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from gcs_server import reached_from_here, serving

from t5like import data
from t5like.data.cache_builder import write_cache
from t5like.data.mirror import publish
from t5like.errors import UserError
from t5like.files import storage
from t5like.files.file_lock import FileLock
from t5like.files.lease import Lease, LeaseLost
from t5like.files.locks import hold, lock_at
from t5like.training.checkpoints import integrity
from t5like.training.checkpoints.folders import checkpoint_steps, clear_leftovers, remove_checkpoint, set_aside
from t5like.training.guards.run_lock import sole_trainer
from t5like.vocabularies import load_vocabulary

ROOT = "gs://t5-bucket"


@pytest.fixture
def store(monkeypatch, tmp_path):
  with serving("t5-bucket") as (address, store), reached_from_here(monkeypatch, address, tmp_path / "mirror"):
    yield store


def names(store) -> list[str]:
  return sorted(store.buckets["t5-bucket"])


def test_local_paths_are_plain_paths(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  assert type(storage.as_path("a/b")) is type(Path("a/b")) and storage.as_path("~/x") == tmp_path / "x"
  assert not storage.is_remote("a:/b") and not storage.is_remote("/gs:/b") and storage.is_remote("gs://b/c")
  assert type(lock_at(tmp_path / "lock", 1.0)) is FileLock
  storage.check_reachable("nowhere/at/all", "MODEL_DIR")


def test_a_uri_becomes_a_remote_path():
  path = storage.as_path("gs://bucket//a/./b/../c/") / "d.tar.gz"
  assert str(path) == os.fspath(path) == "gs://bucket/a/c/d.tar.gz"
  assert (path.name, path.stem, path.suffix, path.suffixes) == ("d.tar.gz", "d.tar", ".gz", [".tar", ".gz"])
  assert str(path.parent) == "gs://bucket/a/c" and str(path.with_name("e")) == "gs://bucket/a/c/e"
  assert [str(parent) for parent in path.parents] == ["gs://bucket/a/c", "gs://bucket/a", "gs://bucket"]
  assert str(path.relative_to(storage.as_path("gs://bucket/a"))) == "c/d.tar.gz"
  assert path.absolute() == path.expanduser() == path and {path: 1}[storage.as_path(str(path))] == 1


def test_objects_are_read_written_listed_and_removed(store):
  folder = storage.as_path(f"{ROOT}/run")
  assert not folder.exists() and not folder.is_dir() and list(folder.glob("*")) == []
  file = folder / "deep/er/text.txt"
  file.parent.mkdir(parents=True, exist_ok=True)
  awkward = "ä\r\n\r\n--boundary--\n" * 3
  file.write_text(awkward)
  assert file.read_text() == awkward and file.is_file() and not file.is_dir()
  assert (folder / "deep").is_dir() and not (folder / "dee").exists()
  assert file.stat().st_size == len(awkward.encode()) and abs(file.stat().st_mtime - time.time()) < 60
  big = np.random.default_rng(0).bytes(9_000_000)  # more than one upload request
  (folder / "big").write_bytes(big)
  with (folder / "big").open("rb") as opened:
    opened.seek(8_999_000)
    assert opened.read() == big[-1000:]
  with (folder / "lines").open("w") as opened:
    opened.write("one\ntwo\n")
  assert [path.name for path in folder.iterdir()] == ["big", "deep", "lines"]
  assert [str(path) for path in folder.glob("deep/*/*.txt")] == [str(file)]
  assert [path.name for path in folder.rglob("*.txt")] == ["text.txt"]
  (folder / "lines").rename(folder / "moved")
  storage.append_text(folder / "moved", "three\n")
  assert (folder / "moved").read_text() == "one\ntwo\nthree\n"
  (folder / "moved").unlink()
  (folder / "moved").unlink(missing_ok=True)
  with pytest.raises(FileNotFoundError):
    (folder / "moved").read_bytes()
  storage.remove_tree(folder / "deep")
  assert names(store) == ["run/big"]


def test_patterns_match_the_same_files_on_a_store_and_on_a_disk(store, tmp_path):
  files = ["a.txt", "b/c.txt", "b/d/e.txt", "b/d/f.json", "g[1].txt"]
  for file in files:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(file)
    (storage.as_path(f"{ROOT}/text") / file).write_text(file)

  for pattern in ("**/*.txt", "*.txt", "b/**", "**/d/*.txt", "b/**/*", "**/x/*.txt", "g[1].txt"):
    here = {os.path.relpath(path, tmp_path) for path in storage.matching(f"{tmp_path}/{pattern}")}
    there = {path.removeprefix(f"{ROOT}/text/") for path in storage.matching(f"{ROOT}/text/{pattern}")}
    assert here == there and (here or "/x/" in pattern), pattern


def test_the_copy_of_a_folder_has_the_bytes_of_the_store(store):
  folder = storage.as_path(f"{ROOT}/model")
  for name in ("config.json", "weights/1", "weights/2"):
    (folder / name).write_text("first")
  copy = storage.local_tree(folder)
  (folder / "weights/1").write_text("other")  # of the same size
  (folder / "weights/2").unlink()
  sent = len(store.requests)
  assert storage.local_tree(folder) == copy == storage.mirror_folder(folder)
  assert sum("alt=media" in request for request in store.requests[sent:]) == 1  # config.json has not changed
  assert (copy / "weights/1").read_text() == "other" and not (copy / "weights/2").exists()
  assert storage.local_tree(folder / "weights/1").read_text() == "other"


def test_writes_of_another_process_are_visible_immediately(store):
  folder = storage.as_path(f"{ROOT}/shared")
  assert not (folder / "new").exists() and list(folder.glob("*")) == []
  store.put("t5-bucket", "shared/new", b"x", {})
  assert (folder / "new").exists() and [p.name for p in folder.iterdir()] == ["new"]


def test_an_appended_object_is_uploaded_periodically_and_on_close(store, monkeypatch):
  path = storage.as_path(f"{ROOT}/metrics.jsonl")
  path.write_text("before\n")
  file = storage.open_append(path)
  sent = len(store.requests)
  for number in range(100):
    file.write(f"{number}\n".encode())
    file.flush()
  assert len(store.requests) == sent, "not on every write"
  storage.upload_pending(file)
  assert path.read_text().splitlines() == ["before", *map(str, range(100))]
  monkeypatch.setattr(storage.AppendedObject, "_SECONDS", 0.0)
  file.write(b"later\n")
  deadline = time.monotonic() + 200
  while "later" not in path.read_text():
    assert time.monotonic() < deadline
  file.truncate(len(b"before\n"))
  file.close()
  assert path.read_text() == "before\n"


def refusal(path) -> str:
  with pytest.raises(UserError) as error:
    storage.check_reachable(path, "MODEL_DIR")
  return str(error.value)


def test_inaccessible_stores_are_refused_with_a_fix(store):
  storage.check_reachable(f"{ROOT}/new/folder", "MODEL_DIR")
  assert "bucket not found: 'no-such-bucket' (MODEL_DIR=gs://no-such-bucket/x)" in refusal("gs://no-such-bucket/x")
  assert "invalid MODEL_DIR: gs:// (no bucket)" in refusal("gs://")
  assert "unknown scheme: xyz://" in refusal("xyz://b/c")
  store.token = "secret"
  denied = refusal(f"{ROOT}/run")
  assert "access denied: gs://t5-bucket/run (MODEL_DIR)" in denied and "Anonymous caller" in denied
  assert "gcloud auth application-default login" in denied
  with pytest.raises(PermissionError, match="Anonymous caller"):
    storage.as_path(f"{ROOT}/run/x").read_bytes()


def test_without_gcsfs_the_error_names_the_package_to_install():
  code = (
    "import sys; sys.modules['gcsfs'] = None\n"
    "from t5like.files import storage\n"
    "try: storage.check_reachable('gs://bucket/x', 'MODEL_DIR')\n"
    "except Exception as error: print(type(error).__name__, error)\n"
    "assert not {'jax', 'tensorflow'} & set(sys.modules)"
  )
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
  assert "UserError" in done.stdout and "pip install 't5like[gcs]'" in done.stdout, done.stderr


def assign_to_another_machine(store, name, seconds_ago=0.0) -> None:
  """Changes the holder of an existing lease to another machine."""
  about, content = store.buckets["t5-bucket"][name]
  changed = json.dumps({**json.loads(content), "host": "elsewhere", "place": "elsewhere"}).encode()
  stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds_ago))
  store.buckets["t5-bucket"][name] = ({**about, "updated": stamp, "size": str(len(changed))}, changed)


def test_a_lease_has_one_holder_at_a_time(store):
  path = storage.as_path(f"{ROOT}/run/trainer.lock")
  first, second = (lock_at(path, 60.0, {"since": "noon"}) for _ in range(2))
  assert isinstance(first, Lease) and first.try_acquire() is None
  holder = second.try_acquire()
  assert holder["pid"] == os.getpid() and holder["since"] == "noon"
  before = path.stat().st_mtime
  time.sleep(0.01)
  first.touch()
  assert path.stat().st_mtime > before
  first.release()
  assert not path.exists() and second.try_acquire() is None
  second.release()


def test_the_lease_of_a_dead_process_on_this_machine_is_taken_over_immediately(store):
  path = storage.as_path(f"{ROOT}/run/trainer.lock")
  code = (
    "import json, time; from t5like.files.process_identity import own_identity as o; print(json.dumps(o()), flush=True)"
  )
  command = [sys.executable, "-c", f"{code}; time.sleep(600)"]
  child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
  identity = json.loads(child.stdout.readline())
  first = Lease(path, 600.0)
  first.try_acquire()
  about, content = store.buckets["t5-bucket"]["run/trainer.lock"]
  held = json.dumps({**json.loads(content), **identity}).encode()
  store.buckets["t5-bucket"]["run/trainer.lock"] = ({**about, "size": str(len(held))}, held)
  second = Lease(path, 600.0)
  assert second.try_acquire()["pid"] == child.pid
  child.kill()
  child.wait()
  assert second.try_acquire() is None
  with pytest.raises(LeaseLost):
    first.touch()
  first.release()  # no longer the holder
  assert path.exists()


def test_a_run_waits_for_the_lease_of_another_machine(store, monkeypatch, capfd):
  """Until the lease is renewed, which refuses the run, or stale, which admits it."""
  path = storage.as_path(f"{ROOT}/run/trainer.lock")
  real, polls, then = time.sleep, [], {}

  def poll(seconds):
    polls.append(seconds)
    if len(polls) == 3:
      assign_to_another_machine(store, "run/trainer.lock", **then)
    real(0.01)

  monkeypatch.setattr("t5like.training.guards.run_lock.time.sleep", poll)
  Lease(path, 180.0).try_acquire()
  assign_to_another_machine(store, "run/trainer.lock", seconds_ago=20.0)
  then["seconds_ago"] = 1000.0
  with sole_trainer(f"{ROOT}/run"):
    assert "process" in capfd.readouterr().out and len(polls) == 3
    assert json.loads(path.read_bytes())["pid"] == os.getpid()
  assert not path.exists()
  Lease(path, 180.0).try_acquire()
  assign_to_another_machine(store, "run/trainer.lock", seconds_ago=20.0)
  polls.clear()
  then["seconds_ago"] = 0.0
  with pytest.raises(UserError, match="another run is training in this directory"), sole_trainer(f"{ROOT}/run"):
    pass


def write_checkpoint(step, committed=True):
  folder = storage.as_path(f"{ROOT}/run/checkpoints/{step}")
  for name in ("params/manifest.ocdbt", "params/d/a", "metadata/metadata"):
    (folder / name).write_text(f"{name} of {step}")
  if committed:
    (folder / "commit_success.txt").write_text("yes")
  return folder


def test_only_committed_checkpoints_count(store):
  first, second = write_checkpoint(10), write_checkpoint(20)
  write_checkpoint(30, committed=False)
  assert checkpoint_steps(f"{ROOT}/run") == [10, 20]
  clear_leftovers(first.parent)
  assert not any("checkpoints/30" in name for name in names(store))
  remove_checkpoint(first)
  aside = set_aside(second)
  assert checkpoint_steps(f"{ROOT}/run") == [] and aside.name == "damaged-20"
  assert (aside / "params/d/a").read_text() == "params/d/a of 20"


def test_checksums_come_from_the_store_without_reading_data_back(store, tmp_path):
  checkpoint = write_checkpoint(10)
  sent = len(store.requests)
  integrity.write_checksums(checkpoint)
  assert not any("alt=media" in request for request in store.requests[sent:])
  assert integrity.verify_checksums(checkpoint) is None
  # Copied to a disk by other means it is compared byte by byte.
  copy = storage.download_tree(checkpoint, tmp_path / "copy")
  assert integrity.verify_checksums(copy) is None
  (copy / "params/d/a").write_text("params/d/A of 10")
  assert "does not match its checksum" in integrity.verify_checksums(copy)
  (checkpoint / "params/d/a").write_text("params/d/A of 10")
  assert integrity.verify_checksums(checkpoint) == "its params/d/a does not match its checksum"
  (checkpoint / "params/d/a").write_text("short")
  assert "bytes short" in integrity.verify_checksums(checkpoint)
  (checkpoint / "params/d/a").unlink()
  assert integrity.verify_checksums(checkpoint) == "its params/d/a is missing"


def test_checksums_of_a_local_checkpoint_are_valid_on_a_store(store, tmp_path):
  (tmp_path / "10/params").mkdir(parents=True)
  (tmp_path / "10/params/a").write_bytes(bytes(5000))
  integrity.write_checksums(tmp_path / "10")
  there = storage.as_path(f"{ROOT}/10")
  storage.upload_tree(tmp_path / "10", there)
  assert integrity.verify_checksums(there) is None
  (there / "params/a").write_bytes(bytes(4999) + b"x")
  assert "does not match its checksum" in integrity.verify_checksums(there)


def build_remote(encode=lambda texts: [[int(w) + 1 for w in text.split()] for text in texts]):
  folder = data.cache_folder(f"{ROOT}/tokens", "demo", "train", "tiny", "0123456789")
  examples = [{"targets": f"{n} {n}"} for n in range(50)]
  write_cache(
    folder, examples, ["targets"], encode,
    {"name": "tiny", "size": 100, "fingerprint": "0123456789"}, {"task": "demo", "split": "train", "source_files": []},
    {"metrics": [], "postprocessor": None},
  )  # fmt: skip
  return folder


@pytest.fixture
def remote_cache(store):
  return build_remote()


def test_a_cache_whose_upload_failed_is_uploaded_and_not_rebuilt(store):
  store.refused = ".index"
  with pytest.raises(UserError, match="cannot write the token cache"):
    build_remote()
  assert not any("cache.json" in name for name in names(store)), "it is not a cache yet"
  store.refused = None
  folder = build_remote(encode=lambda texts: pytest.fail("rebuilt"))
  assert data.open_cache(folder, rebuild_command="").example(3)["targets"].tolist() == [4, 4]


def test_a_token_cache_is_copied_once_and_memory_mapped(store, remote_cache, tmp_path):
  assert str(remote_cache) == f"{ROOT}/tokens/demo/tiny-01234567/train"
  assert (remote_cache / "cache.json").is_file() and not list(remote_cache.parent.glob("*.lock"))
  cache = data.open_cache(remote_cache, rebuild_command="")
  assert cache.examples == 50 and cache.example(7)["targets"].tolist() == [8, 8]
  assert cache.folder.is_relative_to(tmp_path / "mirror")
  for file in cache.folder.iterdir():
    file.unlink()
  fetched = len(store.requests)
  data.open_cache(remote_cache, rebuild_command="")
  again = len(store.requests)
  assert sum("alt=media" in request for request in store.requests[fetched:again]) == 3  # manifest, tokens, index
  with hold(cache.folder.with_name("train.lock"), 60.0):  # another process copies: this one has nothing to wait for
    data.open_cache(remote_cache, rebuild_command="")
  assert sum("alt=media" in request for request in store.requests[again:]) == 1  # the manifest


def test_an_upload_removes_the_shards_of_a_larger_cache_before(store, remote_cache):
  local = data.open_cache(remote_cache, rebuild_command="").folder
  (remote_cache / "shard-00001.tokens").write_bytes(b"old")
  publish(local, remote_cache)
  assert sorted(remote_cache.files()) == sorted(file.name for file in local.iterdir())
  assert data.open_cache(remote_cache, rebuild_command="").examples == 50


def test_a_file_that_does_not_match_the_manifest_is_refused_or_copied_again(store, remote_cache):
  local = data.open_cache(remote_cache, rebuild_command="").folder
  (local / "cache.json").unlink()
  tokens = (local / "shard-00000.tokens").read_bytes()
  (local / "shard-00000.tokens").write_bytes(bytes(len(tokens)))
  data.open_cache(remote_cache, rebuild_command="")
  assert (local / "shard-00000.tokens").read_bytes() == tokens
  (remote_cache / "shard-00000.tokens").write_bytes(bytes(len(tokens)))
  (local / "shard-00000.tokens").unlink()
  with pytest.raises(UserError, match="does not match its manifest"):
    data.open_cache(remote_cache, rebuild_command="")
  assert not (local / "shard-00000.tokens").exists()
  (remote_cache / "shard-00000.index").unlink()
  with pytest.raises(UserError, match="is missing"):
    data.describe_cache(remote_cache)
  with pytest.raises(UserError, match="no token cache found"):
    data.open_cache(remote_cache.parent / "test", rebuild_command="")


def test_a_damaged_copy_is_repaired_by_removing_it(store, remote_cache):
  copy = data.open_cache(remote_cache, "t5like cache demo --force").folder / "shard-00000.tokens"
  copy.write_bytes(bytes(copy.stat().st_size))
  with pytest.raises(UserError, match="corrupt") as raised:
    data.open_cache(remote_cache, "t5like cache demo --force")
  assert raised.value.lines["try"].startswith(f"rm {copy} ")
  copy.unlink()
  (remote_cache / "shard-00000.tokens").write_bytes(b"")
  with pytest.raises(UserError, match="does not match its manifest") as raised:
    data.open_cache(remote_cache, "t5like cache demo --force")
  assert raised.value.lines["try"] == "t5like cache demo --repair=shard-00000"


def test_a_vocabulary_on_a_store_is_the_same_vocabulary(store):
  own = load_vocabulary("tiny")
  storage.as_path(f"{ROOT}/vocabularies/spiece.model").write_bytes(own.path.read_bytes())
  for name in (f"{ROOT}/vocabularies/spiece.model", f"{ROOT}/vocabularies", f"{ROOT}/vocabularies/:extra_ids=100"):
    assert load_vocabulary(name).fingerprint == own.fingerprint
  with pytest.raises(UserError, match="vocabulary not found"):
    load_vocabulary(f"{ROOT}/nothing/here.model")


@pytest.mark.parametrize("text", ["\ufeffyes\r\nno\u2028 more\r\n", "yes\nno\u2028 more"])
def test_lines_end_with_a_newline_only(tmp_path, text):
  (tmp_path / "lines.txt").write_bytes(text.encode())
  assert storage.read_lines(tmp_path / "lines.txt") == ["yes", "no\u2028 more"]
  (tmp_path / "lines.txt").write_bytes(b"")
  assert storage.read_lines(tmp_path / "lines.txt") == []
