"""Windows and pairs equal those of Hugging Face's BertTokenizer, and answers are recovered exactly. No TensorFlow."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from t5like.errors import UserError
from t5like.objectives.ragged import Ragged
from t5like.objectives.segments import join_segments
from t5like.objectives.spans import Windows, make_windows, squad_answers
from t5like.vocabularies import load_vocabulary

GOLDENS = Path(__file__).parents[2] / "data/encoder_forms"
HUGGING_FACE = json.loads(gzip.decompress((GOLDENS / "hugging_face.json.gz").read_bytes()))
SAMPLE = json.loads((GOLDENS / "squad_sample.json").read_text())
BERT = load_vocabulary("bert_uncased")


def span(row):
  answer = row["answers"][0]
  return answer["answer_start"], answer["answer_start"] + len(answer["text"])


@pytest.mark.parametrize("setting", [0, 1])
def test_windows(setting):
  length, overlap = HUGGING_FACE["settings"][setting]
  several = 0
  for row, expected in zip(SAMPLE, HUGGING_FACE["windows"][setting], strict=True):
    ours = make_windows(
      BERT, row["question"], row["context"], span(row), length, overlap=overlap, longest_question=None
    )
    assert len(ours.tokens) == len(expected)
    several += len(expected) > 1
    for number, (ids, types, offsets, positions) in enumerate(expected):
      assert ours.lengths[number] == len(ids)
      assert ours.tokens[number].tolist() == ids + [0] * (length - len(ids))
      assert ours.token_types[number, : len(ids)].tolist() == types
      assert ours.offsets[number, : len(ids)].tolist() == offsets
      assert ours.labels[number].tolist() == positions
  assert several > 1


def ragged(texts):
  rows = BERT.encode_batch(texts)
  return Ragged.of(np.array([t for row in rows for t in row], np.int32), np.array(list(map(len, rows)), np.int64))


def test_pairs():
  first, second = (ragged(texts) for texts in zip(*HUGGING_FACE["texts"], strict=True))
  for length, expected in zip(HUGGING_FACE["pair_lengths"], HUGGING_FACE["pairs"], strict=True):
    joined = join_segments(first, second, length, BERT.cls_id, BERT.sep_id)
    for number, (ids, types) in enumerate(expected):
      assert joined.tokens[number, : joined.lengths[number]].tolist() == ids
      assert joined.token_types[number, : joined.lengths[number]].tolist() == types
  singles = join_segments(first, None, 16, BERT.cls_id, BERT.sep_id)
  assert [row[:n].tolist() for row, n in zip(singles.tokens, singles.lengths, strict=True)] == HUGGING_FACE["singles"]


def test_berts_own_stride_and_query_length():
  """By hand: 20 tokens, a question of 3 truncated to 2, windows of 11 with six passage tokens, four apart."""
  passage = " ".join(f"{n}" for n in range(10, 30))
  windows = make_windows(BERT, "one two three", passage, (0, 2), length=11, stride=4, longest_question=2)
  starts = [0, 4, 8, 12, 16]
  assert len(windows.tokens) == len(starts)
  assert windows.lengths.tolist() == [11, 11, 11, 11, 9]
  for row, start in enumerate(starts):
    words = [passage[begin:end] for begin, end in windows.offsets[row] if begin >= 0]
    assert words == [str(10 + start + n) for n in range(len(words))]
  assert windows.labels.tolist() == [[4, 4]] + [[0, 0]] * 4
  # Token 4 is second to last in window 0 (one token after it) and first in window 1 (none before it).
  assert windows.best_context[0, 4:10].tolist() == [1, 1, 1, 1, 1, 0]
  assert windows.best_context[:, 4:].sum() == 20  # every token has one best window


@pytest.mark.parametrize("stride", [3, 6, 50])
def test_no_token_falls_between_windows(stride):
  passage = " ".join(f"{n}" for n in range(10, 40))
  windows = make_windows(BERT, "who", passage, length=10, stride=stride)
  assert {tuple(span) for row in windows.offsets.tolist() for span in row if span[0] >= 0} == {
    (3 * n, 3 * n + 2) for n in range(30)
  }


def test_equal_context_counts_in_the_longer_window():
  """BERT's rule. Windows of tokens 0 to 7 and 5 to 10: token 6 has one token on its shorter side in both."""
  windows = make_windows(BERT, "who", " ".join(f"{n}" for n in range(10, 21)), length=12, stride=5)
  assert windows.starts.tolist() == [0, 5] and windows.ends.tolist() == [8, 11]
  first = int(windows.firsts[0])
  assert windows.best_context[:, first + 6].tolist() == [1, 0]
  assert windows.best_context[1, first : first + 6].tolist() == [0, 0, 1, 1, 1, 1]


def scores(windows: Windows, wanted: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
  starts, ends = np.zeros((2, *windows.tokens.shape))
  for row, (start, end) in enumerate(wanted):
    starts[row, start], ends[row, end] = 5, 5
  return starts, ends


def answered(windows, starts, ends, passage, **options):
  count = len(windows.tokens)
  return squad_answers(
    starts, ends, windows.offsets, windows.best_context, ["q"] * count, [passage] * count, **options
  )["q"]


@pytest.mark.parametrize("length, stride", [(384, 128), (96, 24)])
def test_labels_map_back_to_the_exact_answer(length, stride):
  for row in SAMPLE:
    windows = make_windows(BERT, row["question"], row["context"], span(row), length, stride)
    assert windows.labels.any()
    starts, ends = scores(windows, windows.labels.tolist())
    starts[:, 0] = ends[:, 0] = 0
    assert answered(windows, starts, ends, row["context"]).text == row["answers"][0]["text"]


def test_every_span_of_tokens_is_a_substring_of_the_passage():
  passage = "Café  O'Hara—born 1999, “Paris”; naïve\tßtraße 漢字 ok."
  windows = make_windows(BERT, "Who?", passage, length=64)
  inside = np.flatnonzero(windows.offsets[0, :, 0] >= 0)
  for first in inside:
    for last in inside[inside >= first]:
      starts, ends = scores(windows, [(first, last)])
      text = answered(windows, starts, ends, passage, longest=99).text
      assert text == passage[windows.offsets[0, first, 0] : windows.offsets[0, last, 1]]
      assert text in passage and text == text.strip()


class TestChoosingAnAnswer:
  passage = " ".join(f"w{n}" for n in range(10))  # two tokens per word

  def windows(self, length=64, stride=128):
    return make_windows(BERT, "Who?", self.passage, length=length, stride=stride)

  def test_spans_have_a_maximum_length(self):
    windows = self.windows()
    first = int(np.flatnonzero(windows.offsets[0, :, 0] >= 0)[0])
    starts, ends = scores(windows, [(first, first + 5)])
    ends[0, first + 1] = 4
    assert answered(windows, starts, ends, self.passage).text == "w0 w1 w2"
    assert answered(windows, starts, ends, self.passage, longest=5).text == "w0"

  def test_a_span_does_not_end_before_it_starts_and_is_not_in_the_question(self):
    windows = self.windows()
    first = int(np.flatnonzero(windows.offsets[0, :, 0] >= 0)[0])
    starts, ends = scores(windows, [(first + 4, first + 1)])
    starts[0, 1] = ends[0, 1] = 9  # the question
    starts[0, first + 2], ends[0, first + 5] = 1, 2
    # 5 + 5 would end before it starts; 5 + 2 is the best of the others.
    assert answered(windows, starts, ends, self.passage).text == "w2"

  def test_tokens_outside_the_passage_take_no_place_of_a_candidate(self):
    windows = self.windows()
    first = int(np.flatnonzero(windows.offsets[0, :, 0] >= 0)[0])
    starts, ends = scores(windows, [(first, first + 1)])
    starts[0, windows.lengths[0] :], ends[0, windows.lengths[0] :] = 9, 9  # padding
    assert answered(windows, starts, ends, self.passage, candidates=2).text == "w0"

  def test_all_tokens_are_tried_if_no_candidates_are_a_span(self):
    windows = self.windows()
    first = int(np.flatnonzero(windows.offsets[0, :, 0] >= 0)[0])
    starts, ends = scores(windows, [(first + 4, first + 1)])
    ends[0, first + 5] = 1
    assert answered(windows, starts, ends, self.passage, candidates=1).text == "w2"

  def test_the_best_window_wins(self):
    windows = self.windows(length=16, stride=4)
    assert len(windows.tokens) > 2
    row = 1
    place = int(np.flatnonzero(windows.best_context[row])[0])
    starts, ends = scores(windows, [(0, 0)] * len(windows.tokens))
    starts[row, place], ends[row, place] = 3, 3
    begin, end = windows.offsets[row, place]
    assert answered(windows, starts, ends, self.passage).text == self.passage[begin:end]

  def test_a_start_counts_only_in_its_best_window(self):
    windows = self.windows(length=16, stride=4)
    row = 1
    place = int(np.flatnonzero((windows.offsets[row, :, 0] >= 0) & (windows.best_context[row] == 0))[0])
    starts, ends = np.zeros((2, *windows.tokens.shape))
    starts[row, place], ends[row, place] = 9, 9
    assert answered(windows, starts, ends, self.passage).score < 18

  def test_no_answer(self):
    windows = self.windows()
    first = int(np.flatnonzero(windows.offsets[0, :, 0] >= 0)[0])
    starts, ends = scores(windows, [(first, first + 1)])
    starts[0, 0], ends[0, 0] = 6, 5
    assert answered(windows, starts, ends, self.passage).text == "w0"  # SQuAD 1.1 always answers
    null = answered(windows, starts, ends, self.passage, unanswerable=True)
    assert (null.text, null.score, null.null_score) == ("", 10, 11)
    assert answered(windows, starts, ends, self.passage, unanswerable=True, threshold=1.0).text == "w0"

  def test_the_null_score_is_the_lowest_of_all_windows(self):
    """BERT's rule for the null score of a question."""
    windows = self.windows(length=16, stride=4)
    starts, ends = np.zeros((2, *windows.tokens.shape))
    starts[:, 0] = np.arange(len(starts)) + 7
    assert answered(windows, starts, ends, self.passage, unanswerable=True).null_score == 7


def test_empty_passages_and_long_questions():
  assert make_windows(BERT, "Who?", "", length=32).tokens.shape == (1, 32)
  assert answered(*_empty(), "").text == ""
  with pytest.raises(UserError, match="too short for a passage"):
    make_windows(BERT, "who " * 20, "text", length=16)
  with pytest.raises(UserError, match="too short for a passage"):
    make_windows(BERT, "who", "text", length=16, overlap=16)


def _empty():
  windows = make_windows(BERT, "Who?", "", length=32)
  return windows, *np.zeros((2, 1, 32))
