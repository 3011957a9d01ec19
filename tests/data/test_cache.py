"""The token cache: what is written is read back, and damage is found and named."""

import json
import shutil

import numpy as np
import pytest

from t5like import data
from t5like.data import cache as cache_module
from t5like.errors import UserError

VOCABULARY = {"name": "letters", "size": 300, "fingerprint": "abc"}
DESCRIPTION = {"task": "letters", "split": "train", "source_files": []}
NO_SCORING = {"postprocessor": None, "metrics": []}


def encode(texts):
  return [[ord(c) for c in text] for text in texts]


def write(folder, examples, features=("inputs", "targets"), scoring=NO_SCORING):
  data.write_cache(folder, examples, features, encode, VOCABULARY, DESCRIPTION, scoring)
  return data.open_cache(folder, mend="t5like cache letters --force")


EXAMPLES = [{"inputs": "abc", "targets": "x", "id": 1}, {"inputs": "", "targets": "yz", "id": 2}]


def test_examples_come_back_as_they_were(tmp_path):
  cache = write(tmp_path / "c", EXAMPLES)
  assert (cache.examples, cache.tokens, cache.is_corpus) == (2, 6, False)
  assert cache.example(0)["inputs"].tolist() == [97, 98, 99]
  assert cache.example(1)["inputs"].tolist() == [] and cache.example(1)["targets"].tolist() == [121, 122]
  assert list(cache.fields()) == [
    {"inputs_pretokenized": "abc", "targets_pretokenized": "x", "id": 1},
    {"inputs_pretokenized": "", "targets_pretokenized": "yz", "id": 2},
  ]


def test_a_corpus_reads_end_to_end_across_shards(tmp_path, monkeypatch):
  monkeypatch.setattr(cache_module, "_SHARD_EXAMPLES", 2)
  texts = ["ab", "cde", "", "fghij", "k"]
  cache = write(tmp_path / "c", [{"targets": t} for t in texts], features=["targets"])
  assert len(cache.manifest["shards"]) == 3 and cache.is_corpus
  everything = "".join(texts)
  for start in range(len(everything)):
    for length in range(len(everything) - start):
      assert "".join(map(chr, cache.stream(start, length))) == everything[start : start + length]
  for number, text in enumerate(texts):
    assert "".join(map(chr, cache.example(number)["targets"])) == text


def test_ids_are_stored_in_the_smallest_type_that_holds_them(tmp_path):
  cache = write(tmp_path / "c", EXAMPLES)
  assert cache.manifest["dtype"] == "<u2"
  assert cache_module.token_dtype(2**16) == np.uint16 and cache_module.token_dtype(2**16 + 1) == np.uint32


@pytest.mark.parametrize("kind", ["tokens", "index", "fields"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
def test_damage_is_found_at_open_and_named(tmp_path, kind, damage):
  write(tmp_path / "c", EXAMPLES)
  path = tmp_path / "c" / f"shard-00000.{kind}"
  content = bytearray(path.read_bytes())
  if damage == "truncated":
    path.write_bytes(content[:-1])
  elif damage == "flipped":
    content[0] ^= 1
    path.write_bytes(content)
  else:
    path.unlink()
  with pytest.raises(UserError) as error:
    data.open_cache(tmp_path / "c", mend="t5like cache letters --force")
  assert str(path) in str(error.value) and "t5like cache letters --force" in str(error.value)


@pytest.mark.parametrize("manifest", ["", "{", "[]", '{"format": 99}'])
def test_a_damaged_manifest_is_named(tmp_path, manifest):
  write(tmp_path / "c", EXAMPLES)
  (tmp_path / "c/cache.json").write_text(manifest)
  with pytest.raises(UserError, match="cache"):
    data.open_cache(tmp_path / "c", mend="")


def test_a_build_that_fails_leaves_nothing_and_keeps_the_old_cache(tmp_path):
  write(tmp_path / "c", EXAMPLES)

  def broken():
    yield EXAMPLES[0]
    raise RuntimeError("the source ended early")

  with pytest.raises(RuntimeError):
    write(tmp_path / "c", broken())
  assert [p.name for p in tmp_path.iterdir()] == ["c"]
  assert data.open_cache(tmp_path / "c", mend="").examples == 2


def test_a_full_disk_is_a_clear_error(tmp_path, monkeypatch):
  def full(*args):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(cache_module, "write_shard", full)
  with pytest.raises(UserError, match="could not be written") as error:
    write(tmp_path / "c", EXAMPLES)
  assert "No space left" in str(error.value) and not list(tmp_path.iterdir())


def test_what_a_killed_builder_left_is_removed(tmp_path):
  leftover = tmp_path / "c.building-999999999"
  leftover.mkdir()
  write(tmp_path / "c", EXAMPLES)
  assert not leftover.exists()


def test_a_task_without_text_is_refused(tmp_path):
  with pytest.raises(UserError, match="gave no text"):
    write(tmp_path / "c", [])
  with pytest.raises(UserError, match="no text 'targets'"):
    write(tmp_path / "c", [{"inputs": "a", "targets": 3}])


def test_a_changed_source_or_vocabulary_is_noticed(tmp_path):
  source = tmp_path / "source.txt"
  source.write_text("abc")
  description = {**DESCRIPTION, "source_files": [{"path": str(source), "bytes": 3}]}
  data.write_cache(tmp_path / "c", EXAMPLES, ["inputs", "targets"], encode, VOCABULARY, description, NO_SCORING)
  cache = data.open_cache(tmp_path / "c", mend="")
  assert data.changed_since_written(cache, "abc") == ""
  assert "vocabulary" in data.changed_since_written(cache, "other")
  source.write_text("abcd")
  assert str(source) in data.changed_since_written(cache, "abc")


def test_the_manifest_says_what_the_cache_is(tmp_path):
  write(tmp_path / "c", EXAMPLES, scoring={"postprocessor": None, "metrics": [{"function": "m:f", "keywords": {}}]})
  manifest = json.loads((tmp_path / "c/cache.json").read_text())
  assert manifest["features"] == ["inputs", "targets"]
  assert manifest["vocabulary"] == VOCABULARY
  assert manifest["shards"][0]["examples"] == 2
  shutil.rmtree(tmp_path / "c")
