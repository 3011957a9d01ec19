"""The token cache: content round-trips, and damage is detected and reported."""

import json
import pickle
import shutil

import numpy as np
import pytest

from t5like import data
from t5like.data import cache as cache_module
from t5like.data import cache_builder, shards
from t5like.errors import UserError

VOCABULARY = {"name": "letters", "size": 300, "fingerprint": "abc"}
DESCRIPTION = {"task": "letters", "split": "train", "source_files": []}
NO_SCORING = {"postprocessor": None, "metrics": []}
REBUILD_COMMAND = "t5like cache letters --force"


def encode(texts):
  return [[ord(c) for c in text] for text in texts]


def write(folder, examples, features=("inputs", "targets"), scoring=NO_SCORING):
  data.write_cache(folder, examples, features, encode, VOCABULARY, DESCRIPTION, scoring)
  return data.open_cache(folder, rebuild_command=REBUILD_COMMAND)


EXAMPLES = [{"inputs": "abc", "targets": "x", "id": 1}, {"inputs": "", "targets": "yz", "id": 2}]


@pytest.fixture
def shards_of_two(monkeypatch):
  monkeypatch.setattr(cache_builder.build_cache, "__kwdefaults__", {
    **cache_builder.build_cache.__kwdefaults__, "limits": data.PieceLimits(examples=2),
  })  # fmt: skip


def test_examples_are_read_as_they_were_written(tmp_path):
  cache = write(tmp_path / "c", EXAMPLES)
  assert (cache.examples, cache.tokens, cache.is_corpus) == (2, 6, False)
  assert cache.example(0)["inputs"].tolist() == [97, 98, 99]
  assert cache.example(1)["inputs"].tolist() == [] and cache.example(1)["targets"].tolist() == [121, 122]
  assert list(cache.fields()) == [
    {"inputs_pretokenized": "abc", "targets_pretokenized": "x", "id": 1},
    {"inputs_pretokenized": "", "targets_pretokenized": "yz", "id": 2},
  ]


def test_a_corpus_reads_end_to_end_across_shards(tmp_path, shards_of_two):
  texts = ["ab", "cde", "", "fghij", "k"]
  cache = write(tmp_path / "c", [{"targets": t} for t in texts], features=["targets"])
  assert len(cache.manifest["shards"]) == 3 and cache.is_corpus
  everything = "".join(texts)
  for length in range(len(everything) + 1):
    starts = np.arange(len(everything) - length + 1)
    expected = [everything[start : start + length] for start in starts]
    assert ["".join(map(chr, cache.stream(int(start), length))) for start in starts] == expected
    rows = cache.stream_rows(starts, length)
    assert rows.dtype == np.int32 and rows.shape == (len(starts), length)
    assert ["".join(map(chr, row)) for row in rows] == expected
  for number, text in enumerate(texts):
    assert "".join(map(chr, cache.example(number)["targets"])) == text
  for starts in ([len(everything) - 1], [-1]):
    with pytest.raises(IndexError):
      cache.stream_rows(np.array(starts), 2)


def test_starts_of_documents_and_lengths_of_features(tmp_path, shards_of_two):
  corpus = write(tmp_path / "corpus", [{"targets": t} for t in ["ab", "cde", "", "f"]], features=["targets"])
  assert corpus.documents().all().tolist() == [0, 2, 5, 5, 6] and corpus.documents().count == 4
  examples = [{"inputs": "a" * n, "targets": "b" * (5 - n)} for n in range(5)]
  labeled = write(tmp_path / "labeled", examples)
  assert labeled.lengths("inputs").tolist() == [0, 1, 2, 3, 4] and labeled.lengths("inputs").dtype == np.int32
  assert labeled.lengths("targets").tolist() == [5, 4, 3, 2, 1]
  with pytest.raises(ValueError, match="not documents"):
    labeled.documents()


def test_texts_of_several_examples_are_read_at_once(tmp_path, shards_of_two):
  examples = [{"first": "abc"[:n], "second": "", "third": "z"} for n in (3, 0, 1, 2, 3)]
  cache = write(tmp_path / "c", examples, features=("first", "second", "third"))
  texts = cache.texts("first", np.array([3, 1, 0, 4]))
  assert texts.tokens.tolist() == [[97, 98, 0], [0, 0, 0], [97, 98, 99], [97, 98, 99]]
  assert texts.lengths.tolist() == [2, 0, 3, 3]
  assert cache.texts("second", np.arange(5)).tokens.shape == (5, 0)
  assert cache.texts("third", np.arange(5)).tokens.tolist() == [[122]] * 5


def test_ids_are_stored_in_the_smallest_type_that_holds_them(tmp_path):
  cache = write(tmp_path / "c", EXAMPLES)
  assert cache.manifest["dtype"] == "<u2"
  assert shards.token_dtype(2**16) == np.uint16 and shards.token_dtype(2**16 + 1) == np.uint32


def test_an_open_cache_can_be_pickled(tmp_path):
  cache = pickle.loads(pickle.dumps(write(tmp_path / "c", EXAMPLES)))
  assert cache.example(0)["inputs"].tolist() == [97, 98, 99]


def damaged(path, damage):
  content = bytearray(path.read_bytes())
  if damage == "truncated":
    path.write_bytes(content[:-1])
  elif damage == "flipped":
    content[-1] ^= 1
    path.write_bytes(content)
  else:
    path.unlink()


def read_all(cache):
  list(cache.fields())
  cache.texts("inputs", np.arange(cache.examples))
  cache.stream_rows(np.zeros(1, np.int64), cache.tokens)


@pytest.mark.parametrize("kind", ["tokens", "index", "fields"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
@pytest.mark.parametrize("size", ["small", "large"])
def test_damage_is_detected_and_the_file_is_named(tmp_path, monkeypatch, kind, damage, size):
  """In a small cache on open; in a large one, of several blocks, a file of the right size is checked on read."""
  if size == "large":
    monkeypatch.setattr(shards, "BLOCK", 16)
  write(tmp_path / "c", EXAMPLES)
  path = tmp_path / "c" / f"shard-00000.{kind}"
  damaged(path, damage)
  if size == "large":
    monkeypatch.setattr(cache_module, "_CHECKED_AT_ONCE", 0)
  lazily = size == "large" and damage == "flipped"
  cache = data.open_cache(tmp_path / "c", rebuild_command=REBUILD_COMMAND) if lazily else None
  with pytest.raises(UserError) as error:
    read_all(cache) if lazily else data.open_cache(tmp_path / "c", rebuild_command=REBUILD_COMMAND)
  assert str(path) in str(error.value) and error.value.lines["try"] == "t5like cache letters --repair=shard-00000"


@pytest.mark.parametrize("read", ["stream", "stream_rows", "example", "texts"])
def test_a_large_cache_is_checked_block_by_block_as_it_is_read(tmp_path, monkeypatch, read):
  monkeypatch.setattr(cache_module, "_CHECKED_AT_ONCE", 0)
  monkeypatch.setattr(shards, "BLOCK", 16)  # eight tokens
  write(tmp_path / "c", [{"targets": "abcdefgh"}, {"targets": "ijklmnop"}, {"targets": "qr"}], features=["targets"])
  path = tmp_path / "c/shard-00000.tokens"
  content = bytearray(path.read_bytes())
  content[16] ^= 1  # of the second block
  path.write_bytes(content)
  cache = data.open_cache(tmp_path / "c", rebuild_command=REBUILD_COMMAND)
  reads = {
    "stream": lambda start, stop, number: cache.stream(start, stop - start),
    "stream_rows": lambda start, stop, number: cache.stream_rows(np.array([start]), stop - start),
    "example": lambda start, stop, number: cache.example(number),
    "texts": lambda start, stop, number: cache.texts("targets", np.array([number])),
  }
  for good in ((0, 8, 0), (16, 18, 2)):
    reads[read](*good)
  for _ in range(2):  # the error is raised again on the next read
    with pytest.raises(UserError, match="corrupt") as error:
      reads[read](8, 16, 1)
    assert error.value.lines["bytes"] == "16 to 32"


@pytest.mark.parametrize("manifest", ["", "{", "[]", '{"format": 99}'])
def test_a_damaged_manifest_is_an_error(tmp_path, manifest):
  write(tmp_path / "c", EXAMPLES)
  (tmp_path / "c/cache.json").write_text(manifest)
  with pytest.raises(UserError, match="cache"):
    data.open_cache(tmp_path / "c", rebuild_command="")


def test_a_cache_of_another_format_is_refused(tmp_path):
  write(tmp_path / "c", EXAMPLES)
  path = tmp_path / "c/cache.json"
  manifest = json.loads(path.read_text())
  path.write_text(json.dumps(manifest | {"format": manifest["format"] + 1}))
  with pytest.raises(UserError, match="different format version"):
    data.open_cache(tmp_path / "c", rebuild_command="")


def test_a_failed_build_leaves_no_files_and_keeps_the_old_cache(tmp_path):
  write(tmp_path / "c", EXAMPLES)

  def broken():
    yield EXAMPLES[0]
    raise RuntimeError("the source ended early")

  with pytest.raises(RuntimeError):
    write(tmp_path / "c", broken())
  assert [p.name for p in tmp_path.iterdir()] == ["c"]
  assert data.open_cache(tmp_path / "c", rebuild_command="").examples == 2


def test_a_build_that_was_killed_while_it_removed_the_old_cache_can_be_repeated(tmp_path, monkeypatch):
  write(tmp_path / "c", EXAMPLES)
  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(cache_builder.shutil, "rmtree", _killed_at_the_end(tmp_path / "c.building"))
    write(tmp_path / "c", EXAMPLES[:1])
  assert (tmp_path / "c.building/replaced/cache.json").is_file()
  assert write(tmp_path / "c", EXAMPLES[:1]).examples == 1
  assert not (tmp_path / "c.building").exists()


def _killed_at_the_end(folder):
  remove = shutil.rmtree

  def rmtree(path, **options):
    if path == folder and (folder / "replaced").exists():
      raise KeyboardInterrupt
    remove(path, **options)

  return rmtree


def test_a_task_without_text_is_refused(tmp_path):
  with pytest.raises(UserError, match="has no text in split"):
    write(tmp_path / "c", [])
  with pytest.raises(UserError, match="no text 'targets'"):
    write(tmp_path / "c", [{"inputs": "a", "targets": 3}])
  assert not list(tmp_path.iterdir())


def test_a_changed_source_or_vocabulary_is_detected(tmp_path):
  source = tmp_path / "source.txt"
  source.write_text("abc")
  description = {**DESCRIPTION, "source_files": [{"path": str(source), "bytes": 3}]}
  data.write_cache(tmp_path / "c", EXAMPLES, ["inputs", "targets"], encode, VOCABULARY, description, NO_SCORING)
  cache = data.open_cache(tmp_path / "c", rebuild_command="")
  assert data.changed_since_written(cache, "abc") == ""
  assert "vocabulary" in data.changed_since_written(cache, "other")
  source.write_text("abcd")
  assert str(source) in data.changed_since_written(cache, "abc")


def test_other_files_than_those_of_the_cache_are_detected(tmp_path):
  """A moved folder, or text that is not on this machine, is not a change."""
  for folder, text in (("old", "abc"), ("moved", "abc"), ("other", "abcd")):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "train.jsonl").write_text(text)
  sources = [{"path": str(tmp_path / "old/train.jsonl"), "bytes": 3}]
  description = {**DESCRIPTION, "source_files": sources}
  data.write_cache(tmp_path / "c", EXAMPLES, ["inputs", "targets"], encode, VOCABULARY, description, NO_SCORING)
  cache = data.open_cache(tmp_path / "c", rebuild_command="")
  for same in (None, "old/*.jsonl", "moved/train.jsonl", "elsewhere/train.jsonl", "elsewhere/*.jsonl"):
    assert data.changed_since_written(cache, "abc", same and f"{tmp_path}/{same}") == ""
  assert data.changed_since_written(cache, "abc", f"{tmp_path}/other/*.jsonl") == "train.jsonl is new"
  misspelled = f"{tmp_path}/old/trian*.jsonl"
  assert data.changed_since_written(cache, "abc", misspelled) == f"no file matches {misspelled}"
  (tmp_path / "moved/more.jsonl").write_text("x")
  assert data.changed_since_written(cache, "abc", f"{tmp_path}/moved/*.jsonl") == "more.jsonl is new"
  assert data.changed_since_written(cache, "abc", f"{tmp_path}/moved/m*.jsonl") == "more.jsonl is new"


def test_the_manifest_describes_the_cache(tmp_path):
  scoring = {"postprocessor": None, "metrics": [{"function": "m:f", "keywords": {}}]}
  write(tmp_path / "c", EXAMPLES, scoring=scoring)
  manifest = json.loads((tmp_path / "c/cache.json").read_text())
  assert manifest["features"] == ["inputs", "targets"] and manifest["vocabulary"] == VOCABULARY
  assert manifest["scoring"] == scoring and manifest["shards"][0]["examples"] == 2
