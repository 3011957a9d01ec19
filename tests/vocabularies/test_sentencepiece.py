"""Ids and text equal those of seqio's vocabulary, without TensorFlow."""

import gzip
import json

import pytest

from t5like.errors import UserError
from t5like.vocabularies import load_vocabulary, vocabulary_path

ODD = [
  "", " ", "Hello  world", "naïve café", "漢字 and emoji 🙂", "tabs\tand\nnewlines",
  "<extra_id_0> in <extra_id_99> text",
  "jel<extra_id_3>", "１２３ ﬁ ligature", "\u200bzero width", "null\x00byte", "<pad> </s> <unk>",
]  # fmt: skip


@pytest.fixture(scope="module", params=["t5", "tiny"])
def pair(request):
  seqio = pytest.importorskip("seqio")
  return load_vocabulary(request.param), seqio.SentencePieceVocabulary(str(vocabulary_path(request.param)), 100)


def sentences():
  path = vocabulary_path("tiny").parents[2] / "tasks/embedded/novels.validation.jsonl.gz"
  with gzip.open(path, "rt") as lines:
    return [s for line in lines for s in json.loads(line)["text"].split(". ")]


def test_ids_and_text_equal_seqios(pair):
  ours, theirs = pair
  for text in sentences() + ODD:
    ids = ours.encode(text)
    assert ids == list(theirs.encode(text)), text
    assert ours.decode(ids) == theirs.decode(ids), text


def test_decoding_stops_at_end_of_sequence_and_accepts_ids_beyond_the_vocabulary(pair):
  ours, theirs = pair
  for ids in ([5, 6, 1, 7, 8], [ours.vocab_size + 20, 5], [0, 0], []):
    assert ours.decode(ids) == theirs.decode(ids)


def test_the_first_sentinel_has_the_highest_id():
  vocabulary = load_vocabulary("t5")
  assert vocabulary.vocab_size == 32_100
  assert vocabulary.sentinel_ids[0] == 32_099 and vocabulary.sentinel_ids[99] == 32_000
  assert vocabulary.encode("<extra_id_0>") == [32_099]


def test_batches_equal_single_texts():
  vocabulary = load_vocabulary("tiny")
  assert vocabulary.encode_batch(ODD) == [vocabulary.encode(text) for text in ODD]


def test_unknown_and_broken_vocabularies_are_reported(tmp_path):
  with pytest.raises(UserError, match="vocabulary not found: 'tinny'") as error:
    load_vocabulary("tinny")
  assert "nearest" in str(error.value) and "tiny" in str(error.value)
  broken = tmp_path / "broken.model"
  broken.write_bytes(b"not a model")
  with pytest.raises(UserError, match="not a SentencePiece model"):
    load_vocabulary(str(broken))
