"""Data cards: duplicates are counted in bounded memory, origins by their fields."""

import json

import numpy as np
import pytest

from t5like.files.data_card import DataCard, DuplicateCounter, OriginCounter, text_hash, write_cards


def hashes(numbers):
  return np.array([text_hash(str(n)) for n in numbers], np.uint64)


def test_duplicates_are_exact_up_to_a_limit_and_estimated_beyond():
  numbers = [n % 700 for n in range(1000)]  # 300 occur twice
  for most, part in ((1000, 1), (100, 1 / 8)):
    counter = DuplicateCounter(most)
    for start in range(0, 1000, 100):
      counter.add(hashes(numbers[start : start + 100]))
    report = counter.report()
    assert report["counted_part"] == part and len(counter._hashes) <= most
    if part == 1:
      assert report == {"count": 300, "share": 0.3, "counted_part": 1}
    else:
      kept = [n for n in numbers if text_hash(str(n)) >> 61 == 0]
      assert report["share"] == pytest.approx(1 - len(set(kept)) / len(kept), abs=1e-6)
  assert DuplicateCounter().report() == {"count": 0, "share": 0.0, "counted_part": 1.0}


def test_origins_and_the_page(tmp_path):
  counter = OriginCounter()
  for n in range(10):
    counter.add({"text": "x", "language": "en" if n < 7 else "fr", "url": f"https://Example.org/{n}", "lang": None})
  card = DataCard(
    "web", "train", 10, 1234, vocabulary="t5", duplicates={"count": 3, "share": 0.3, "counted_part": 0.5},
    origins=counter.report(), origin_rows=10,
  )  # fmt: skip
  write_cards(tmp_path, [card])
  (found,) = json.loads((tmp_path / "data_card.json").read_text())
  assert found["origins"] == {"language": {"en": 7, "fr": 3}, "url": {"example.org": 10}} and "characters" not in found
  page = (tmp_path / "data_card.md").read_text()
  assert "# web (train)" in page and "| tokens | 1,234 (t5) |" in page and "| en | 7 |" in page
  assert "3 (30.00%, estimated from 0.5 of the documents)" in page and "## language (in a sample of 10 rows)" in page
