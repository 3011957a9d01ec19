"""Training a vocabulary is deterministic and follows T5's conventions."""

import gzip
import json
import lzma
import re

import pytest

from t5like.errors import UserError
from t5like.vocabularies import load_vocabulary, vocabulary_path
from t5like.vocabularies.training import read_texts, sample_sentences, train_sentencepiece

NOVELS = vocabulary_path("tiny").parents[2] / "tasks/embedded/novels.validation.jsonl.gz"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  return train_sentencepiece(read_texts(NOVELS), 600, tmp_path_factory.mktemp("v") / "my.model", max_sentences=200)


def test_a_trained_vocabulary_follows_t5s_conventions(trained):
  vocabulary, report = trained
  assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id, vocabulary.bos_id) == (0, 1, 2, None)
  assert vocabulary.vocab_size == 700 and vocabulary.sentinel_ids[0] == 699
  assert report.sentences == 200 and report.coverage > 0.998
  text = "and so the end of it."
  assert vocabulary.decode(vocabulary.encode(text)) == text


def test_the_report_equals_statistics_by_hand(tmp_path):
  """One q among 99 characters is outside a coverage of 98 percent."""
  texts = ["abba baba"] * 12 + ["q ab"]
  vocabulary, report = train_sentencepiece(texts, 8, tmp_path / "m.model", character_coverage=0.98)
  ids = [token for text in texts for token in vocabulary.encode(text)]
  assert ids.count(vocabulary.unk_id) == 1
  assert report.coverage == pytest.approx(98 / 99)
  assert report.tokens_per_word == pytest.approx(len(ids) / 26)
  assert report.characters_per_token == pytest.approx((12 * 9 + 4) / len(ids))


def test_the_same_text_gives_the_same_file(trained, tmp_path):
  again, _ = train_sentencepiece(read_texts(NOVELS), 600, tmp_path / "other.model", max_sentences=200)
  assert again.path.read_bytes() == trained[0].path.read_bytes()
  other, _ = train_sentencepiece(read_texts(NOVELS), 600, tmp_path / "other.model", max_sentences=200, seed=1)
  assert other.fingerprint != again.fingerprint


@pytest.mark.parametrize("model_type, byte_fallback", [("bpe", False), ("unigram", True)])
def test_bpe_and_byte_fallback(model_type, byte_fallback, tmp_path):
  vocabulary, _ = train_sentencepiece(
    read_texts(NOVELS), 500, tmp_path / "m.model", model_type, byte_fallback, max_sentences=500
  )
  assert (vocabulary.unk_id in vocabulary.encode("漢")) is not byte_fallback
  assert (vocabulary.decode(vocabulary.encode("漢")) == "漢") is byte_fallback


def test_sampling_is_uniform_and_bounded():
  lines = [str(i) for i in range(1000)]
  sample = sample_sentences(["\n".join(lines)], 100)
  assert len(set(sample)) == 100 and set(sample) <= set(lines)
  assert 400 < sum(map(int, sample)) / 100 < 600
  assert sample_sentences(["a\n\n b \n"], 100) == ["a", "b"]
  long = "word " * 2000
  assert " ".join(sample_sentences([long], 100)).split() == long.split()
  assert max(map(len, sample_sentences([long, "x" * 9000], 100))) <= 2000


def test_all_file_types_can_be_read(tmp_path):
  rows = [{"text": "one"}, {"text": "two ü"}]
  lines = "\n".join(map(json.dumps, rows)) + "\n"
  (tmp_path / "a.jsonl").write_text(lines)
  (tmp_path / "a.txt").write_text("one\ntwo ü\n")
  with gzip.open(tmp_path / "a.jsonl.gz", "wt") as out:
    out.write(lines)
  with lzma.open(tmp_path / "a.txt.xz", "wt") as out:
    out.write("one\ntwo ü\n")
  for file in ("a.jsonl", "a.txt", "a.jsonl.gz", "a.txt.xz"):
    assert [text.strip() for text in read_texts(tmp_path / file)] == ["one", "two ü"]
  with pytest.raises(UserError, match="'body'"):
    list(read_texts(tmp_path / "a.jsonl", field="body"))


@pytest.mark.parametrize("line", ["[" * 100_000, "9" * 5000, "[1]"], ids=["depth", "digits", "list"])
def test_a_line_that_is_not_an_object_is_named(line, tmp_path):
  (tmp_path / "a.jsonl").write_text(f'{{"text": "one"}}\n{line}\n')
  with pytest.raises(UserError, match="a line is not a JSON object with 'text'") as error:
    list(read_texts(tmp_path / "a.jsonl"))
  assert error.value.lines["file"] == f"{tmp_path}/a.jsonl:2"


def test_a_device_is_refused(tmp_path):
  (tmp_path / "a.txt").symlink_to("/dev/zero")
  with pytest.raises(UserError, match="a.txt is not a file"):
    next(read_texts(tmp_path / "a.txt"))


def test_too_little_text_is_refused(tmp_path):
  with pytest.raises(UserError, match="cannot train a vocabulary of 5000 pieces") as error:
    train_sentencepiece(["just a few words"], 5000, tmp_path / "m.model")
  assert re.search(r"\bsize=\d+", str(error.value))
  with pytest.raises(UserError, match="no text"):
    train_sentencepiece(["  \n"], 50, tmp_path / "m.model")
  assert not (tmp_path / "m.model").exists()


def test_the_vocabulary_command(t5like, tmp_path):
  out = tmp_path / "my.model"
  done = t5like("tasks", "vocabulary", NOVELS, "--size=400", f"--out={out}", "--max_sentences=200")
  assert "400 pieces + 100 sentinels, from 200 sentences" in done.stdout
  assert f"--gin.VOCABULARY={out} --gin.VOCAB_SIZE=512" in done.stdout
  assert load_vocabulary(str(out)).vocab_size == 500
  refused = t5like("tasks", "vocabulary", tmp_path / "none.txt", f"--out={out}", status=2)
  assert "no file" in refused.stderr
