"""Source files on a store are identified by parts of their content, or by the listing of the store if they are many."""

import hashlib
import json
import os

import pytest
from gcs_server import reached_from_here, serving

from t5like.files import source_files, storage
from t5like.files.source_files import changed_file, file_identities, same_identities


def test_many_files_on_a_store_are_listed_not_read(tmp_path, monkeypatch):
  with serving("bucket") as (address, store), reached_from_here(monkeypatch, address, tmp_path):
    paths = [f"gs://bucket/text/{n}/{k}.jsonl" for n in range(2) for k in range(5)]
    for path in paths:
      storage.as_path(path).write_text(json.dumps({"text": path}))
    read = file_identities(paths)
    assert [about["path"] for about in read] == paths and all(about["sha256_of_parts"] for about in read)
    monkeypatch.setattr(source_files, "_LISTED", 5)
    before = len(store.requests)
    listed = file_identities(paths)
    assert [(about["path"], about["bytes"]) for about in listed] == [(about["path"], about["bytes"]) for about in read]
    assert len({about["checksum"] for about in listed}) == 10
    requests = set(store.requests[before:])  # the client may repeat one
    assert len(requests) == 2 and not any("alt=media" in request for request in requests)
    assert changed_file(listed) == ""
    storage.as_path(paths[7]).write_text("more")
    assert changed_file(listed) == f"{paths[7]} has changed"
    assert file_identities(paths) != listed


@pytest.mark.parametrize("size", [4_000, 5_000_000])
def test_an_edit_of_the_same_size_is_noticed(tmp_path, size):
  path = tmp_path / "text.jsonl"
  path.write_bytes(b"a" * size)
  identities = file_identities([str(path)])
  built = path.stat().st_mtime
  os.utime(path, (built + 5, built + 5))
  assert changed_file(identities, built) == "", "touched only"
  with path.open("r+b") as content:
    content.seek(1_500_000 if size > 4_000 else 2_000)  # between the parts that are hashed
    content.write(b"b")
  os.utime(path, (built - 5, built - 5))
  assert changed_file(identities, built) == "", "older than the cache: not read"
  os.utime(path, (built + 5, built + 5))
  assert changed_file(identities, built) == f"{path} has changed"
  assert not same_identities(identities, file_identities([str(path)]))


@pytest.mark.parametrize("place", [0, 2_500_000, 4_999_999])
def test_the_start_the_middle_and_the_end_of_a_file_identify_it(tmp_path, place):
  path = tmp_path / "text.jsonl"
  content = bytearray(b"a" * 5_000_000)
  path.write_bytes(content)
  (before,) = file_identities([str(path)])
  content[place] = 0
  path.write_bytes(content)
  (after,) = file_identities([str(path)])
  assert before["sha256_of_parts"] != after["sha256_of_parts"]


def test_caches_of_older_versions_have_no_hash_of_whole_files(tmp_path):
  path = tmp_path / "text.jsonl"
  path.write_bytes(b"a" * 5_000_000)
  now = file_identities([str(path)])
  written = [{name: value for name, value in now[0].items() if name != "sha256"}]
  assert now[0]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
  assert same_identities(written, now) and changed_file(written) == ""
  assert not same_identities([{**written[0], "bytes": 3}], now) and not same_identities([], now)
