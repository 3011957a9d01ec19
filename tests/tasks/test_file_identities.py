"""Source files on a store are identified by parts of their content, or by the listing of the store if they are many."""

import json

from gcs_server import reached_from_here, serving

from t5like.data.cache import _changed_file
from t5like.files import storage
from t5like.tasks.caching import text_pipeline


def test_many_files_on_a_store_are_listed_not_read(tmp_path, monkeypatch):
  with serving("bucket") as (address, store), reached_from_here(monkeypatch, address, tmp_path):
    paths = [f"gs://bucket/text/{n}/{k}.jsonl" for n in range(2) for k in range(5)]
    for path in paths:
      storage.as_path(path).write_text(json.dumps({"text": path}))
    read = text_pipeline._file_identities(paths)
    assert [about["path"] for about in read] == paths and all(about["sha256_of_parts"] for about in read)
    monkeypatch.setattr(text_pipeline, "_LISTED", 5)
    before = len(store.requests)
    listed = text_pipeline._file_identities(paths)
    assert [(about["path"], about["bytes"]) for about in listed] == [(about["path"], about["bytes"]) for about in read]
    assert len({about["checksum"] for about in listed}) == 10
    assert len(store.requests) - before == 2 and not any("alt=media" in r for r in store.requests[before:])
    assert _changed_file(listed) == ""
    storage.as_path(paths[7]).write_text("more")
    assert _changed_file(listed) == f"{paths[7]} has changed"
    assert text_pipeline._file_identities(paths) != listed
