"""WordPiece and byte-level BPE that are trained here have BERT's and GPT-2's conventions."""

import pytest

from t5like.errors import UserError
from t5like.vocabularies import load_vocabulary, vocabulary_path
from t5like.vocabularies.subword_training import train_byte_bpe, train_wordpiece
from t5like.vocabularies.training import read_texts

NOVELS = vocabulary_path("tiny").parents[2] / "tasks/embedded/novels.validation.jsonl.gz"
TRAIN = {"wordpiece": train_wordpiece, "bpe": train_byte_bpe}


@pytest.fixture(scope="module", params=TRAIN)
def trained(request, tmp_path_factory):
  folder = tmp_path_factory.mktemp(request.param) / "mine"
  return request.param, folder, TRAIN[request.param](read_texts(NOVELS), 700, folder, max_sentences=200)


def test_conventions(trained):
  kind, folder, (vocabulary, report) = trained
  assert vocabulary.vocab_size == 700 and vocabulary.fingerprint == load_vocabulary(str(folder)).fingerprint
  assert report.sentences == 200 and report.coverage == 1 and 1 < report.tokens_per_word < 4
  text = "And so the end of it."
  if kind == "wordpiece":
    names = [vocabulary.piece(i) for i in range(5)]
    assert names == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] and vocabulary.pad_id == 0 and vocabulary.eos_id == 3
    assert vocabulary.encode("THE Énd") == vocabulary.encode("the end")
    assert vocabulary.encode("漢") == [vocabulary.unk_id]
    assert vocabulary.decode(vocabulary.encode(text)) == "and so the end of it."
  else:
    assert vocabulary.eos_id == 699 and vocabulary.piece(699) == "<|endoftext|>" and vocabulary.pad_id is None
    assert vocabulary.decode(vocabulary.encode(f"{text} 漢\n")) == f"{text} 漢\n"


def test_the_same_text_gives_the_same_files(trained, tmp_path):
  kind, folder, _ = trained
  TRAIN[kind](read_texts(NOVELS), 700, tmp_path / "again", max_sentences=200)
  files = sorted(folder.iterdir())
  assert len(files) == 2 and all((tmp_path / "again" / f.name).read_bytes() == f.read_bytes() for f in files)


def test_case_and_too_little_text(tmp_path):
  cased, _ = train_wordpiece(["The end of THE end"] * 4, 30, tmp_path / "cased", lower_case=False)
  assert cased.encode("The") != cased.encode("the")
  assert load_vocabulary(str(tmp_path / "cased")).encode("The") == cased.encode("The")
  with pytest.raises(UserError, match="cannot train a vocabulary of 5000 pieces") as raised:
    train_wordpiece(["The end of THE end"] * 4, 5000, tmp_path / "large")
  assert "--size=" in raised.value.lines["try"]
  with pytest.raises(UserError, match="more characters"):
    train_byte_bpe(["abc"], 100, tmp_path / "small")
  with pytest.raises(UserError, match="no text"):
    train_byte_bpe([], 300, tmp_path / "none")


def test_the_most_frequent_thousand_characters_are_known(tmp_path):
  characters = [chr(0x4E00 + i) for i in range(1200)]
  texts = [" ".join(characters), " ".join(characters[1000:])]  # the last 200 twice
  vocabulary, _ = train_wordpiece(texts, 5 + 2 * 1000, tmp_path / "mine")
  known = [vocabulary.encode(character) != [vocabulary.unk_id] for character in characters]
  assert known == [True] * 800 + [False] * 200 + [True] * 200
