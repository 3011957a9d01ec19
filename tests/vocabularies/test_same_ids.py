"""Ids, text and offsets equal those of seqio and Hugging Face, on sentences of novels and unusual Unicode.

The goldens were written by these libraries (make_goldens.py), which are not needed here.
"""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from t5like.vocabularies import load_vocabulary

NAMES = ["t5", "tiny", "byte", "bert_uncased", "bert_cased", "gpt2", "roberta"]
GOLDENS = Path(__file__).parents[1] / "data/vocabularies"
TEXTS = json.loads((GOLDENS / "texts.json").read_text())


@pytest.fixture(scope="module", params=NAMES)
def case(request):
  golden = dict(np.load(GOLDENS / f"{request.param}.npz"))
  ends = np.cumsum(golden["lengths"].astype(int))
  ids = [row.tolist() for row in np.split(golden["ids"], ends[:-1])]
  return request.param, load_vocabulary(request.param), ids, golden


def test_ids_are_equal(case):
  _, vocabulary, expected, _ = case
  assert len(expected) == len(TEXTS) > 350
  for text, ids in zip(TEXTS, expected, strict=True):
    assert vocabulary.encode(text) == ids, repr(text)
  assert vocabulary.encode_batch(TEXTS, threads=2) == expected


def test_decoded_text_is_equal(case):
  name, vocabulary, expected, _ = case
  decoded = json.loads((GOLDENS / f"{name}.decoded.json").read_text())
  compared = 0
  for ids, text in zip(expected, decoded, strict=False):
    # Unlike ours, their decoders show [CLS], [SEP] and text after the end of a sequence.
    if not {vocabulary.eos_id, vocabulary.bos_id, vocabulary.cls_id, vocabulary.pad_id} & set(ids):
      assert vocabulary.decode(ids) == text
      compared += 1
  assert compared > len(decoded) - 4


def test_offsets_are_equal_and_cover_all_words(case):
  name, vocabulary, expected, golden = case
  found = [vocabulary.encode_with_offsets(text) for text in TEXTS]
  assert [ids for ids, _ in found] == expected
  if "offsets" in golden:
    assert list(itertools.chain(*(spans for _, spans in found))) == list(map(tuple, golden["offsets"].tolist()))
  for text, (_, spans) in zip(TEXTS, found, strict=True):
    assert all(0 <= start <= end <= len(text) and text[start:end] == text[start:end].strip() for start, end in spans)
    if name != "byte":  # a character's bytes share its span
      assert spans == sorted(spans)
    covered = {i for start, end in spans for i in range(start, end)}
    words = {i for i, character in enumerate(text) if character.isascii() and character.isalnum()}
    assert words <= covered, repr(text)
