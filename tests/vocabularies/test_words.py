"""Vocabularies of whole words."""

import json

import pytest

from t5like.errors import UserError
from t5like.vocabularies import load_vocabulary
from t5like.vocabularies.words import load_words

WORDS = ["xxunk", "xxpad", "xxbos", "xxmaj", "xxup", "the", "ship", "sank", ".", "nasa"]


def test_fastai_words_have_marks_of_capitals(tmp_path):
  (tmp_path / "itos.json").write_text(json.dumps(WORDS))
  vocabulary = load_vocabulary(str(tmp_path))
  ids = vocabulary.encode("The ship NASA sank.")
  assert [WORDS[i] for i in ids] == ["xxmaj", "the", "ship", "xxup", "nasa", "sank", "."]
  assert vocabulary.decode(ids) == "The ship NASA sank ."
  assert vocabulary.encode("zebra") == [0] and vocabulary.unk_id == 0
  assert vocabulary.encode("xxbos ship") == [2, 6] and vocabulary.eos_id == vocabulary.bos_id == 2
  assert vocabulary.vocab_size == 10 and vocabulary.piece(6) == "ship"
  ids, spans = vocabulary.encode_with_offsets("The ship")
  assert [("The ship"[a:b]) for a, b in spans] == ["", "The", "ship"]
  assert vocabulary.word_starts.all()


def test_elmo_words_are_split_at_spaces(tmp_path):
  path = tmp_path / "vocab.txt"
  path.write_text("</S>\n<S>\n<UNK>\nthe\nU.S.\n")
  vocabulary = load_vocabulary(str(path))
  assert vocabulary.encode("the U.S. The") == [3, 4, 2]
  assert (vocabulary.eos_id, vocabulary.bos_id) == (0, 1)


@pytest.mark.parametrize("content", ["[" * 100_000, "[" + "9" * 5000 + "]", "{}", "[1]"], ids=range(4))
def test_what_is_not_a_list_of_words_is_refused(content, tmp_path):
  (tmp_path / "itos.json").write_text(content)
  with pytest.raises(UserError, match="is not a vocabulary of words"):
    load_words(tmp_path / "itos.json")


def test_a_list_without_unknown_words_is_refused(tmp_path):
  (tmp_path / "itos.json").write_text('["a", "b"]')
  with pytest.raises(UserError, match="<UNK>"):
    load_vocabulary(str(tmp_path))
