"""Several named corpora: found by a variable in their files, mixed by their numbers of tokens."""

import contextlib
import dataclasses
import json

import pytest

import t5like
from t5like.errors import UserError
from t5like.experiments import corpus_files
from t5like.experiments.cache_building import CacheSettings, build_token_cache
from t5like.experiments.reading import read_experiment
from t5like.experiments.token_caches import TokenCaches
from t5like.runs.run_data import check_corpus_splits, open_members
from t5like.vocabularies import load_vocabulary


def write(path, rows, words=3):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("".join(json.dumps({"text": f"number {n} " + "word " * words}) + "\n" for n in range(rows)))


def test_one_corpus_for_each_value_of_a_variable(tmp_path):
  for name in ("c4-af.t-0.json", "c4-bg-Latn.t-0.json", "c4-bg-Latn.t-1.json", "c4-af-validation.t-0.json", "x.json"):
    write(tmp_path / name, 1)
  train, validation = f"{tmp_path}/c4-{{language}}.t-*.json", f"{tmp_path}/c4-{{language}}-validation.t-*.json"
  assert corpus_files.member_files("mc4", {"{language}": {"train": train, "validation": validation}, "c4": {}}) == {
    "mc4.af": {"train": f"{tmp_path}/c4-af.t-*.json", "validation": f"{tmp_path}/c4-af-validation.t-*.json"},
    "mc4.bg-Latn": {"train": f"{tmp_path}/c4-bg-Latn.t-*.json"},
    "c4": {},
  }
  with pytest.raises(UserError, match="no files found"):
    corpus_files.member_files("mc4", {"{x}": {"train": f"{tmp_path}/{{x}}.txt"}})
  for files in ({"{x}": {"train": "y/*"}}, {"a": {"train": "{x}/*"}}, {"{x}{y}": {"train": "{x}/{y}"}}):
    with pytest.raises(UserError, match="one variable"):
      corpus_files.member_files("mc4", files)


def test_files_as_options_and_back():
  for files in ({"train": "a=b/*.txt", "test": "c"}, {"a/b": {"train": "x/*", "test": "y"}, "wikipedia": {}}):
    given = [option.removeprefix("--files=") for option in corpus_files.as_options(files)]
    assert corpus_files.from_options(given) == files
  for given in (["train"], ["a/train="], ["=x"], ["train=x", "a/train=y"]):
    with pytest.raises(UserError, match="invalid files"):
      corpus_files.from_options(given)
  assert corpus_files.are_corpus_files({}) and not corpus_files.are_corpus_files({"a": {"b": {"c": "d"}}})
  assert not corpus_files.are_corpus_files({"a": "b", "c": {}}) and not corpus_files.are_corpus_files({"train": 3})
  assert not corpus_files.are_corpus_files({"train": ""})


def test_rates_are_token_counts_and_a_temperature_flattens_them(tmp_path):
  write(tmp_path / "books/0.jsonl", 40)
  write(tmp_path / "wiki/0.jsonl", 10)
  name = f"both_{tmp_path.name}"
  files = {"books": {"train": f"{tmp_path}/books/*"}, "wiki": {"train": f"{tmp_path}/wiki/*"}}
  build_token_cache(CacheSettings(name, "tiny", root=str(tmp_path), files=files, workers=0), lambda message: None)
  vocabulary = load_vocabulary("tiny")
  members = TokenCaches(str(tmp_path), "tiny", vocabulary, corpus_files=files).open(name, "train")
  assert {m.task: m.rate for m in members} == {
    f"{name}.{n}": m.cache.tokens for n, m in zip(files, members, strict=True)
  }
  assert members[0].cache.tokens == pytest.approx(4 * members[1].cache.tokens, rel=0.1)
  more = files | {"news": {"train": f"{tmp_path}/news/*"}}
  assert TokenCaches(str(tmp_path), "tiny", vocabulary, corpus_files=more).open(name, "train") is None
  member = TokenCaches(str(tmp_path), "tiny", vocabulary, corpus_files=files)
  member.open(name, "train")
  assert f"--files=train={tmp_path}/books/*" in member.command(f"{name}.books", "train")

  experiment = t5like.read_experiment(
    ["models/t5/tiny.gin", "objectives/span_corruption.gin", "runs/pretrain.gin"], TASK=name, CORPUS_FILES=files,
    MODEL_DIR=str(tmp_path / "run"), CACHE_DIR=str(tmp_path), LENGTHS={"inputs": 16}, VOCABULARY="tiny",
  )  # fmt: skip
  experiment = dataclasses.replace(experiment, mixing_temperature=2.0)
  flat = open_members(experiment, vocabulary, {name: 1.0}, "train", dry_run=True)
  assert [m.rate for m in flat] == [pytest.approx(m.cache.tokens**0.5) for m in members]
  rates = {name: 16.0, f"{name}.wiki": 1.0}
  mixed = open_members(dataclasses.replace(experiment, mix=rates), vocabulary, rates, "train", dry_run=True)
  assert sum(m.rate for m in mixed[:2]) == pytest.approx(4.0) and mixed[2].rate == pytest.approx(1.0)
  assert mixed[0].rate / mixed[1].rate == pytest.approx(flat[0].rate / flat[1].rate)
  with pytest.raises(UserError, match="MIXING_TEMPERATURE"):
    dataclasses.replace(experiment, mixing_temperature=-1)


def test_the_shipped_gin_files():
  mc4 = t5like.read_experiment(
    ["models/mt5/base.gin", "objectives/span_corruption.gin", "runs/pretrain.gin", "corpora/mc4.gin"],
    MODEL_DIR="/tmp/x", MC4_FILES="gs://bucket/c4-{language}.tfrecord-*.json.gz",
  )  # fmt: skip
  assert mc4.task == "mc4" and 1 / mc4.mixing_temperature == pytest.approx(0.3, abs=1e-4)
  assert mc4.corpus_files == {"{language}": {"train": "gs://bucket/c4-{language}.tfrecord-*.json.gz"}}
  bert = t5like.read_experiment(["runs/bert.gin", "corpora/books_and_wikipedia.gin"], MODEL_DIR="/tmp/x")
  assert bert.task == "books_and_wikipedia" and set(bert.corpus_files) == {"books", "wikipedia"}


@pytest.mark.parametrize(
  ("files", "settings", "refused"),
  [
    ({"train": "a.txt", "dev": "b.txt"}, {}, "EVAL_SPLIT"),
    ({"train": "a.txt", "dev": "b.txt"}, {"EVAL_SPLIT": "dev"}, ""),
    ({"dev": "b.txt", "validation": "b.txt"}, {}, "train.split"),
    ({"a": {"train": "a.txt"}, "b": {"train": "b.txt"}}, {}, ""),  # a corpus may lack a split
    ({"train": "a.txt"}, {"EVAL_TASKS": ["glue_sst2"]}, ""),  # which has the split
  ],
)
def test_splits_without_files_are_named(files, settings, refused):
  given = dict(TASK="mine_text_to_text", MODEL_DIR="x", INIT_FROM=None, CORPUS_FILES=files) | settings
  experiment = read_experiment(["models/t5/tiny.gin", "runs/finetune.gin"], **given)
  with pytest.raises(UserError, match=f"requested_by +{refused}") if refused else contextlib.nullcontext():
    check_corpus_splits(experiment, {experiment.task: 1.0})
