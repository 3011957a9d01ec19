"""Caches built by the workers of Apache Beam: the same bytes as the local builder's, whatever Beam runs twice."""

import functools
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from gcs_server import reached_from_here, serving

from t5like.errors import UserError
from t5like.experiments import beam_building
from t5like.experiments.cache_building import CacheSettings, TaskCacheBuilder, build_token_cache
from t5like.tasks import registry
from t5like.tasks.caching import source_shards


def files_of(root):
  return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.fixture
def corpus(tmp_path):
  """A corpus of three files, and the settings of its cache, which is built."""
  for number in range(3):
    rows = [
      {"text": f"file {number * (n > 4)}, document {n}: " + "some more words " * (n % 7), "lang": "en" if n else "de"}
      for n in range(40)
    ]
    (tmp_path / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  files = {"train": str(tmp_path / "*.jsonl")}
  local = CacheSettings(f"corpus_{tmp_path.name}", "tiny", root=str(tmp_path / "local"), files=files, workers=0)
  build_token_cache(local, lambda message: None)
  return local, tmp_path


@pytest.fixture
def file_per_part(monkeypatch):
  monkeypatch.setattr(source_shards, "_PART_BYTES", 1)


def with_root(settings, root, **more):
  return CacheSettings(settings.task, "tiny", root=str(root), files=settings.files, workers=0, **more)


def test_parts_in_any_order_and_twice_give_the_cache_of_the_local_builder(file_per_part, corpus):
  local, folder = corpus
  settings = with_root(local, folder / "beam")
  job = TaskCacheBuilder(settings).job(registry.find_task(settings.task))
  assert len(job.parts) == 3
  recipe = beam_building.start_build(settings, settings.task, job)
  beam_building.build_part(recipe, 2)
  with pytest.raises(UserError, match="2 of 3 parts are not complete"):
    beam_building.finish_build(job)
  assert not job.folder.exists()
  recipe = beam_building.start_build(settings, settings.task, job)  # the same command again: part 2 is kept
  complete = job.folder.with_name("train.building") / "parts" / "00002.json"
  written = complete.stat().st_mtime_ns
  for part in (2, 0, 1, 0, 2):
    beam_building.build_part(recipe, part)
  assert complete.stat().st_mtime_ns == written
  beam_building.finish_build(job)
  expected = files_of(folder / "local")
  expected = {name: content for name, content in expected.items() if "task.json" not in name}
  assert files_of(folder / "beam") == expected and len(expected) == 9
  (card,) = json.loads((job.folder / "data_card.json").read_text())
  assert card["documents"] == 120 and card["duplicates"] == {"count": 10, "share": 0.083333, "counted_part": 1.0}
  assert card["origins"] == {"lang": {"en": 117, "de": 3}} and card["source_files"] == 3


def test_bundles_that_run_twice_at_once_on_a_store_and_shards_of_an_earlier_build(
  file_per_part, corpus, tmp_path, monkeypatch
):
  local, folder = corpus
  with serving("bucket") as (address, store), reached_from_here(monkeypatch, address, tmp_path / "mirror"):
    settings = with_root(local, "gs://bucket/caches")
    job = TaskCacheBuilder(settings).job(registry.find_task(settings.task))
    for name in ("shard-00007-00000.tokens", "cache.json"):  # of an earlier build from more files
      (job.folder / name).write_bytes(b"old")
    recipe = beam_building.start_build(settings, settings.task, job)
    assert not (job.folder / "cache.json").is_file(), "what is being replaced is not a cache"
    beam_building._job(recipe)
    with ThreadPoolExecutor(6) as pool:
      assert list(pool.map(functools.partial(beam_building.build_part, recipe), (0, 1, 0, 2, 2, 1))) == [
        0,
        1,
        0,
        2,
        2,
        1,
      ]
    beam_building.finish_build(job)
    (expected,) = (path.parent for path in (folder / "local").rglob("cache.json"))
    found = {name.rpartition("/")[2]: content for name, (_, content) in store.buckets["bucket"].items()}
    assert found == {name: content for name, content in files_of(expected).items() if name != "task.json"}


def test_a_worker_with_another_source_is_refused(file_per_part, corpus):
  local, folder = corpus
  settings = with_root(local, folder / "beam")
  job = TaskCacheBuilder(settings).job(registry.find_task(settings.task))
  recipe = beam_building.start_build(settings, settings.task, job)
  (folder / "3.jsonl").write_text('{"text": "new"}\n')
  beam_building._job.cache_clear()
  with pytest.raises(UserError, match="something else than was planned"):
    beam_building.build_part(recipe, 0)


def test_without_beam_the_error_names_the_package(corpus, monkeypatch):
  local, folder = corpus
  monkeypatch.setitem(__import__("sys").modules, "apache_beam", None)
  with pytest.raises(UserError, match="requires Apache Beam"):
    build_token_cache(with_root(local, folder / "beam"), lambda message: None, beam_building.build_with_beam)


needs_beam = pytest.mark.skipif(
  importlib.util.find_spec("apache_beam") is None, reason="needs pip install -e '.[beam]'"
)
PROCESSES = "--runner=DirectRunner --direct_num_workers=2 --direct_running_mode=multi_processing"


@needs_beam
def test_a_pipeline_with_several_processes(corpus):
  local, folder = corpus
  settings = with_root(local, folder / "beam", beam_options=PROCESSES.split())
  build_token_cache(settings, lambda message: None, beam_building.build_with_beam)
  assert files_of(folder / "beam") == files_of(folder / "local")


@needs_beam
@pytest.mark.slow  # starts a job server and a worker
def test_a_pipeline_on_a_portable_job_server(corpus, tmp_path):
  local, folder = corpus
  line = [sys.executable, "-m", "apache_beam.runners.portability.local_job_service_main"]
  server = subprocess.Popen([*line, "--port=0", f"--port_file={tmp_path / 'port'}"])
  try:
    wait_for((tmp_path / "port").is_file)
    where = f"--job_endpoint=localhost:{(tmp_path / 'port').read_text().strip()}"
    options = ["--runner=PortableRunner", where, "--environment_type=LOOPBACK"]
    settings = with_root(local, folder / "beam", beam_options=options)
    build_token_cache(settings, lambda message: None, beam_building.build_with_beam)
  finally:
    server.kill()
    server.wait()
  assert files_of(folder / "beam") == files_of(folder / "local")


@needs_beam
@pytest.mark.slow  # starts workers twice
def test_a_build_whose_workers_were_killed_is_resumed(tmp_path):
  """The DirectRunner does not replace a worker: the command is run again, and keeps the parts that were complete."""
  for number in range(6):
    text = "it was the best of times, it was the worst of times " * 20
    rows = (json.dumps({"text": f"{number} {n} {text}"}) + "\n" for n in range(33_000))
    (tmp_path / f"{number}.jsonl").write_text("".join(rows))
  name = f"killed_{tmp_path.name}"
  files = {"train": str(tmp_path / "*.jsonl")}
  line = [sys.executable, "-m", "t5like", "cache", name, "--vocabulary=tiny", f"--files=train={files['train']}"]
  first = subprocess.Popen([*line, f"--out={tmp_path / 'beam'}", f"--beam_options={PROCESSES}"], start_new_session=True)
  wait_for(lambda: len(list((tmp_path / "beam").rglob("parts/*.json"))) > 1)
  os.killpg(first.pid, signal.SIGKILL)  # the launcher and its workers
  first.wait()
  complete = {path: path.stat().st_mtime_ns for path in (tmp_path / "beam").rglob("cache/*.tokens")}
  assert complete and not list((tmp_path / "beam").rglob("cache.json"))
  settings = CacheSettings(name, "tiny", root=str(tmp_path / "beam"), files=files, beam_options=PROCESSES.split())
  build_token_cache(settings, lambda message: None, beam_building.build_with_beam)
  build_token_cache(CacheSettings(name, "tiny", root=str(tmp_path / "local"), files=files), lambda message: None)
  assert files_of(tmp_path / "beam") == files_of(tmp_path / "local")


def wait_for(condition, seconds=120):
  ends = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < ends
    time.sleep(0.1)
