"""A damaged shard of a token cache is built again where it is; the others are left alone."""

import json

import numpy as np
import pytest
from gcs_server import reached_from_here, serving

from t5like.data import in_place
from t5like.errors import UserError
from t5like.experiments.cache_building import CacheSettings, TaskCacheBuilder, build_token_cache, find
from t5like.experiments.cache_repair import repair_token_cache
from t5like.experiments.token_caches import TokenCaches
from t5like.files import storage
from t5like.tasks.caching import source_shards
from t5like.vocabularies import load_vocabulary


@pytest.fixture(params=["local", pytest.param("store", marks=pytest.mark.slow)])  # the same code for both
def built(request, tmp_path, monkeypatch):
  """The settings of a cache with three shards, its folder, and its content."""
  monkeypatch.setattr(source_shards, "_PART_BYTES", 1)
  monkeypatch.setattr(in_place, "_FIRST_PAUSE", 0.01)
  for number in range(3):
    rows = [{"text": f"file {number}, document {n}: " + "some more words " * (n % 7)} for n in range(40)]
    (tmp_path / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  files = {"train": str(tmp_path / "*.jsonl")}
  with serving("bucket") as (address, _), reached_from_here(monkeypatch, address, tmp_path / "mirror"):
    root = "gs://bucket/caches" if request.param == "store" else str(tmp_path / "caches")
    name = f"repaired_{request.param}_{tmp_path.name}"
    settings = CacheSettings(name, "tiny", root=root, files=files, workers=0)
    build_token_cache(settings, lambda message: None)
    yield settings, TaskCacheBuilder(settings).job(find(settings)).folder


def files_of(folder):
  names = [f"shard-0000{part}-00000.{kind}" for part in range(3) for kind in ("tokens", "index")]
  return {name: (folder / name).read_bytes() if (folder / name).is_file() else None for name in names}


def test_a_run_names_the_command_that_repairs_what_it_found(built, tmp_path):
  settings, folder = built
  before = files_of(folder)
  (folder / "shard-00001-00000.tokens").write_bytes(b"\0" * len(before["shard-00001-00000.tokens"]))
  (folder / "shard-00002-00000.index").unlink()
  caches = TokenCaches(
    settings.root, "tiny", load_vocabulary("tiny"), corpus_files=settings.files, pool=lambda *unused: 1 << 20
  )
  (member,) = caches.open(settings.task, "train")
  with pytest.raises(UserError, match="corrupt") as raised:
    member.cache.stream_rows(np.array([member.cache._first_token[1]]), 10)
  command = raised.value.lines["try"]
  assert command.startswith(f"t5like cache {settings.task} ") and command.endswith(" --repair=shard-00001-00000")
  with pytest.raises(UserError, match="missing") as raised:
    member.cache.documents().all()
  assert raised.value.lines["try"].endswith(" --repair=shard-00002-00000")

  messages = []
  assert repair_token_cache(settings, ["shard-00001-00000"], messages.append) == ["shard-00001-00000"]
  assert messages == [f"repaired shard-00001-00000 of {folder}"]
  assert {n for n, content in files_of(folder).items() if content != before[n]} == {"shard-00002-00000.index"}
  assert repair_token_cache(settings, (), messages.append) == ["shard-00002-00000"]
  assert files_of(folder) == before
  assert repair_token_cache(settings, (), messages.append) == [] and messages[-1] == f"nothing to repair: {folder}"

  with pytest.raises(UserError, match="no shard 'shard-7'"):
    repair_token_cache(settings, ["shard-7"])
  manifest = json.loads((folder / "cache.json").read_text())
  files = manifest["shards"][0]["files"]
  files["tokens"]["crc32"] = "00000000"
  storage.write_atomic(folder / "cache.json", json.dumps(manifest))
  before = files_of(folder)
  with pytest.raises(UserError, match="shard-00000-00000 would differ"):
    repair_token_cache(settings, ["shard-00000-00000"])
  assert files_of(folder) == before
  (tmp_path / "1.jsonl").write_text('{"text": "other text"}\n')
  with pytest.raises(UserError, match="has changed since its cache was built"):
    repair_token_cache(settings)
