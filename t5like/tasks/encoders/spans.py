"""Answers as spans of tokens: a passage in overlapping windows, and from scores back to its very words.

As in BERT (Devlin et al. 2018, section 4.2, and the code of its authors). Plain numpy: no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from t5like.errors import UserError
from t5like.vocabularies import Vocabulary

LENGTH, STRIDE, LONGEST_QUESTION = 384, 128, 64
CANDIDATES, LONGEST_ANSWER = 20, 30


@dataclasses.dataclass(frozen=True)
class Windows:
  """The windows of one question: [CLS] question [SEP] part of the passage [SEP], padded with 0."""

  tokens: np.ndarray  # [windows, length] int32
  token_types: np.ndarray  # [windows, length] int32: 1 on the passage and its [SEP]
  lengths: np.ndarray  # [windows] int32
  labels: np.ndarray  # [windows, 2] int32: first and last token of the answer; (0, 0) where it is not in the window
  offsets: np.ndarray  # [windows, length, 2] int32: characters of the passage; -1 on everything else
  best_context: np.ndarray  # [windows, length] int32: 1 where no other window shows more around this token


def make_windows(
  vocabulary: Vocabulary,
  question: str,
  passage: str,
  answer: tuple[int, int] | None = None,
  length: int = LENGTH,
  stride: int = STRIDE,
  overlap: int | None = None,
  longest_question: int | None = LONGEST_QUESTION,
) -> Windows:
  """The passage in windows that begin `stride` tokens apart, or that share `overlap` tokens.

  BERT's own code moves by a stride; what Hugging Face calls stride is the overlap. `answer` is its
  first character in the passage and the one after its last.
  """
  asked = vocabulary.encode(question)[:longest_question]
  ids, spans = _encoded(vocabulary, passage)
  room = length - len(asked) - 3
  step = min(stride, room) if overlap is None else room - overlap  # no token may fall between windows
  if room < 1 or step < 1:
    raise UserError(
      f"a window of {length} tokens has no room for a passage after a question of {len(asked)}",
      try_="a longer window, or a shorter overlap",
    )
  starts = _window_starts(len(ids), room, step)
  ends = np.minimum(starts + room, len(ids))
  head = [vocabulary.cls_id, *asked, vocabulary.sep_id]
  windows = Windows(
    tokens=np.zeros((len(starts), length), np.int32),
    token_types=np.zeros((len(starts), length), np.int32),
    lengths=(len(head) + ends - starts + 1).astype(np.int32),
    labels=np.zeros((len(starts), 2), np.int32),
    offsets=np.full((len(starts), length, 2), -1, np.int32),
    best_context=np.zeros((len(starts), length), np.int32),
  )
  best = _best_windows(starts, ends, len(ids))
  for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
    inside = slice(len(head), len(head) + end - start)
    windows.tokens[row, : len(head)] = head
    windows.tokens[row, inside] = ids[start:end]
    windows.tokens[row, inside.stop] = vocabulary.sep_id
    windows.token_types[row, inside.start : inside.stop + 1] = 1
    windows.offsets[row, inside] = spans[start:end]
    windows.best_context[row, inside] = best[start:end] == row
    if answer is not None:
      windows.labels[row] = _tokens_of(answer, spans[start:end], inside.start)
  return windows


@functools.lru_cache(maxsize=64)  # questions about a passage follow one another
def _encoded(vocabulary: Vocabulary, passage: str) -> tuple[np.ndarray, np.ndarray]:
  ids, spans = vocabulary.encode_with_offsets(passage)
  return np.array(ids, np.int32), np.array(spans, np.int32).reshape(-1, 2)


def _window_starts(tokens: int, room: int, step: int) -> np.ndarray:
  """A new window as long as the one before does not reach the end; one for an empty passage."""
  beyond = max(0, tokens - room)
  return np.arange(0, -(-beyond // step) + 1) * step


def _best_windows(starts: np.ndarray, ends: np.ndarray, tokens: int) -> np.ndarray:
  """[tokens] the window that shows the most on the poorer side of each token; of equals, the longer, then the first."""
  place = np.arange(tokens)[None, :]
  start, end = starts[:, None], ends[:, None]
  context = np.minimum(place - start, end - 1 - place) + 0.01 * (end - start)
  return np.argmax(np.where((place >= start) & (place < end), context, -np.inf), axis=0)


def _tokens_of(answer: tuple[int, int], spans: np.ndarray, first: int) -> tuple[int, int]:
  """First and last token that hold the answer's characters, counted from `first`; (0, 0) where some lie outside."""
  begin, end = answer
  if not len(spans) or spans[0, 0] > begin or spans[-1, 1] < end:
    return 0, 0
  return (
    first + int(np.searchsorted(spans[:, 0], begin, side="right")) - 1,
    first + int(np.searchsorted(spans[:, 1], end, side="left")),
  )


@dataclasses.dataclass(frozen=True)
class Answer:
  """`score` is that of the best span, `null_score` that of there being no answer: both sums of two logits."""

  text: str
  score: float
  null_score: float


def squad_answers(
  start_logits: np.ndarray,
  end_logits: np.ndarray,
  offsets: np.ndarray,
  best_context: np.ndarray,
  questions: Sequence[str],
  passages: Sequence[str],
  candidates: int = CANDIDATES,
  longest: int = LONGEST_ANSWER,
  unanswerable: bool = False,
  threshold: float = 0.0,
) -> dict[str, Answer]:
  """The answer to every question from the scores of all its windows, [windows, length].

  `questions` and `passages` say for each window which question it belongs to and what it reads. The
  `candidates` best first and last tokens of a window are paired; a span lies in the passage, has at
  most `longest` tokens and begins where its window shows the most context. With `unanswerable`
  (SQuAD 2.0) a question has no answer, '', if [CLS] outdoes the best span by more than `threshold`.
  """
  best: dict[str, tuple[float, str]] = {}
  null: dict[str, float] = {}
  for row, (question, passage) in enumerate(zip(questions, passages, strict=True)):
    starts, ends = np.asarray(start_logits[row], np.float64), np.asarray(end_logits[row], np.float64)
    null[question] = min(null.get(question, np.inf), float(starts[0] + ends[0]))
    score, span = _best_span(starts, ends, offsets[row], best_context[row], candidates, longest)
    if span is not None and (question not in best or score > best[question][0]):
      best[question] = (score, passage[offsets[row][span[0], 0] : offsets[row][span[1], 1]])
  answers = {}
  for question, null_score in null.items():
    score, text = best.get(question, (-np.inf, ""))
    answers[question] = Answer("" if unanswerable and null_score - score > threshold else text, score, null_score)
  return answers


def _best_span(
  starts: np.ndarray, ends: np.ndarray, offsets: np.ndarray, best_context: np.ndarray, candidates: int, longest: int
) -> tuple[float, tuple[int, int] | None]:
  """The first and last token of the best span; None where the window holds no passage token of its own."""
  in_passage = offsets[:, 0] >= 0
  for allowed in (np.ones_like(in_passage), in_passage):  # the second time only if no candidate was in the passage
    first = _highest(np.where(allowed, starts, -np.inf), candidates)
    last = _highest(np.where(allowed, ends, -np.inf), candidates)
    size = last[None, :] - first[:, None] + 1
    valid = (
      (size >= 1) & (size <= longest) & (in_passage[first] & (best_context[first] > 0))[:, None] & in_passage[last]
    )
    if valid.any():
      scores = np.where(valid, starts[first][:, None] + ends[last][None, :], -np.inf)
      one, other = np.unravel_index(int(np.argmax(scores)), scores.shape)
      return float(scores[one, other]), (int(first[one]), int(last[other]))
  return -np.inf, None


def _highest(scores: np.ndarray, count: int) -> np.ndarray:
  return np.argsort(-scores, kind="stable")[:count]
