"""Token caches of the user's own files: data sets of one name have separate folders."""

import shutil

import pytest

from t5like.errors import UserError
from t5like.experiments.cache_building import CacheSettings, build_token_cache
from t5like.experiments.token_caches import TokenCaches
from t5like.vocabularies import load_vocabulary


@pytest.fixture
def files(tmp_path):
  """Two files of one name and size in different folders."""
  for folder, word in (("a", "first"), ("b", "other")):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "train.txt").write_text(f"the {word} text\n" * 4)
  return [{"train": f"{tmp_path}/{folder}/*.txt"} for folder in ("a", "b")]


def build(tmp_path, files, name="mine", split="train", **more):
  messages = []
  settings = CacheSettings(name, "tiny", split, root=str(tmp_path / "caches"), files=files, workers=0, **more)
  return build_token_cache(settings, messages.append), messages


def caches(tmp_path, files=None, **more):
  return TokenCaches(str(tmp_path / "caches"), "tiny", load_vocabulary("tiny"), corpus_files=files, **more)


def text(members):
  return load_vocabulary("tiny").decode(next(iter(members[0].cache.example(0).values())))


def test_data_sets_of_one_name_have_separate_caches(tmp_path, files):
  name = f"mine_{tmp_path.name}"
  build(tmp_path, files[0], name)
  assert caches(tmp_path, files[1]).open(name, "train") is None  # must be built
  assert text(caches(tmp_path).open(name, "train")) == "the first text"  # the only one of that name
  folder, _ = build(tmp_path, files[1], f"{name}_2")
  folder.parents[1].rename(tmp_path / "moved")  # as registered names cannot be taken twice in a process
  shutil.copytree(tmp_path / "moved", tmp_path / "caches" / name, dirs_exist_ok=True)
  assert [text(caches(tmp_path, own).open(name, "train")) for own in files] == ["the first text", "the other text"]
  message = f"2 data sets have the name '{name}' \\(train\\)\n +files .*/a/train.txt; .*/b/train.txt"
  with pytest.raises(UserError, match=message):
    caches(tmp_path).open(name, "train")
  for own, expected in zip(files, ("the first text", "the other text"), strict=True):
    known = caches(tmp_path, recorded_files={name: own})
    assert text(known.open(name, "train")) == expected
  assert caches(tmp_path, recorded_files={"other": files[0], name: {"train": "c/*.txt"}}).open(name, "train") is None


def test_a_cache_of_an_earlier_version_is_used_for_its_files_only(tmp_path, files):
  name = f"mine_{tmp_path.name}"
  folder, _ = build(tmp_path, files[0], name)
  plain = folder.parent.with_name(folder.parent.name.rpartition("-")[0])
  folder.parent.rename(plain)
  assert build(tmp_path, files[0], name)[1] == [f"up to date: {plain / 'train'}"]
  assert caches(tmp_path, files[0]).open(name, "train")[0].cache.folder == plain / "train"
  assert caches(tmp_path).folder(name, "train") == plain / "train"
  other = {"train": files[1]["train"].replace("*.txt", "*.text")}
  assert caches(tmp_path, other).folder(name, "train") != plain / "train"
  # Files that a model directory names are compared by their names; they may be in another folder now, or gone.
  recorded = [caches(tmp_path, recorded_files={name: {"train": f"{at}"}}) for at in ("gone/*.txt", "gone/*.text")]
  assert [each.folder(name, "train") == plain / "train" for each in recorded] == [True, False]


def test_another_split_leaves_a_corpus_and_renews_rows(tmp_path, files):
  more = files[0] | {"validation": files[1]["train"]}
  for name, same in (("mine", True), ("mine_classification", False)):
    folders = {caches(tmp_path, each).folder(name, "train") for each in (files[0], more)}
    assert (len(folders) == 1) == same
