"""Span answers: splits a passage into overlapping windows, and maps scores back to its text.

As in BERT (Devlin et al. 2018, section 4.2, and the authors' code). Plain numpy: no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5like.errors import UserError
from t5like.objectives.base import SpecialTokens
from t5like.objectives.segments import PairForm

LENGTH, STRIDE, LONGEST_QUESTION = 384, 128, 64
CANDIDATES, LONGEST_ANSWER = 20, 30


@dataclasses.dataclass(frozen=True)
class Windows:
  """The windows of one question: [CLS] question [SEP] part of the passage [SEP], padded with 0."""

  tokens: np.ndarray  # [windows, length] int32
  token_types: np.ndarray  # [windows, length] int32: 1 on the passage and its [SEP]
  lengths: np.ndarray  # [windows] int32
  labels: np.ndarray  # [windows, 2] int32: first and last token of the answer; (0, 0) if it is not in the window
  offsets: np.ndarray  # [windows, length, 2] int32: character span in the passage; -1 elsewhere
  best_context: np.ndarray  # [windows, length] int32: 1 if no other window has more context around this token
  starts: np.ndarray  # [windows]: the first token of the passage in the window ...
  ends: np.ndarray  # [windows]: ... and the end of the part
  firsts: np.ndarray  # [windows]: the position of its first token in the row


def make_windows(
  vocabulary: Any,
  question: str,
  passage: str,
  answer: tuple[int, int] | None = None,
  length: int = LENGTH,
  stride: int = STRIDE,
  overlap: int | None = None,
  longest_question: int | None = LONGEST_QUESTION,
  form: PairForm | None = None,
) -> Windows:
  """Splits the passage into windows that start `stride` tokens apart, or that overlap by `overlap` tokens.

  BERT's code uses a stride; Hugging Face's "stride" is the overlap. `answer` is a (start, end) character
  range in the passage, end exclusive. `vocabulary` is one of t5like.vocabularies, which has a `form` of its own.
  """
  ids, spans = encoded_passage(vocabulary, passage)
  form = form or _form(vocabulary)
  place = None if answer is None else answer_tokens(answer, spans)
  settings = WindowSettings(length, stride, overlap, longest_question)
  windows = cut_windows(form, np.array(vocabulary.encode(question), np.int32), ids, place, settings)
  offsets = np.full((*windows.tokens.shape, 2), -1, np.int32)
  for row, (start, end, first) in enumerate(zip(windows.starts, windows.ends, windows.firsts, strict=True)):
    offsets[row, first : first + end - start] = spans[start:end]
  return dataclasses.replace(windows, offsets=offsets)


@dataclasses.dataclass(frozen=True)
class WindowSettings:
  """The size of windows, and how far apart they start."""

  length: int = LENGTH
  stride: int = STRIDE
  overlap: int | None = None
  longest_question: int | None = LONGEST_QUESTION

  def places(self, form: PairForm, question: int, passage: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first passage token of each window and the end, for numbers of question and passage tokens."""
    room = self.length - question - form.around - form.separators
    step = min(self.stride, room) if self.overlap is None else room - self.overlap  # windows must not leave gaps
    if room < 1 or step < 1:
      raise UserError(
        f"a window of {self.length} tokens is too short for a passage after a question of {question}",
        try_="a longer window, or a shorter overlap",
      )
    starts = _window_starts(passage, room, step)
    return starts, np.minimum(starts + room, passage)


def cut_windows(
  form: PairForm, question: np.ndarray, passage: np.ndarray, answer: tuple[int, int] | None, settings: WindowSettings
) -> Windows:
  """Returns the windows of tokens; `answer` is its first and last token in the passage."""
  question, length = question[: settings.longest_question], settings.length
  starts, ends = settings.places(form, len(question), len(passage))
  head = [*form.head, *question, *[form.sep] * form.separators]
  windows = Windows(
    tokens=np.zeros((len(starts), length), np.int32),
    token_types=np.zeros((len(starts), length), np.int32),
    lengths=(len(head) + ends - starts + len(form.tail)).astype(np.int32),
    labels=np.zeros((len(starts), 2), np.int32),
    offsets=np.zeros((0, 0, 2), np.int32),
    best_context=np.zeros((len(starts), length), np.int32),
    starts=starts,
    ends=ends,
    firsts=np.full(len(starts), len(head)),
  )
  best = _best_windows(starts, ends, len(passage))
  for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
    inside = slice(len(head), len(head) + end - start)
    windows.tokens[row, : len(head)] = head
    windows.tokens[row, inside] = passage[start:end]
    windows.tokens[row, inside.stop : inside.stop + len(form.tail)] = form.tail
    windows.token_types[row, inside.start : inside.stop + 1] = form.typed
    windows.token_types[row, inside.stop + 1 : inside.stop + len(form.tail)] = 2  # XLNet's <cls>
    windows.best_context[row, inside] = best[start:end] == row
    if answer is not None and start <= answer[0] and answer[1] < end:
      windows.labels[row] = len(head) + np.array(answer) - start
  return windows


def answer_tokens(answer: tuple[int, int], spans: np.ndarray) -> tuple[int, int] | None:
  """Returns the first and last token of an answer [begin, end) in a passage; None if it is not inside.

  `spans` are the character ranges of the passage's tokens, [tokens, 2].
  """
  begin, end = answer
  first = int(np.searchsorted(spans[:, 0], begin, side="right")) - 1
  last = int(np.searchsorted(spans[:, 1], end, side="left"))
  return (first, last) if first >= 0 and last < len(spans) else None


@functools.lru_cache(maxsize=64)  # questions about the same passage are consecutive
def encoded_passage(vocabulary: Any, passage: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns the ids of a passage and the character range of each, [tokens, 2]."""
  ids, spans = vocabulary.encode_with_offsets(passage)
  return np.array(ids, np.int32), np.array(spans, np.int32).reshape(-1, 2)


def _window_starts(tokens: int, room: int, step: int) -> np.ndarray:
  """Returns window starts up to the first window that reaches the end; one for an empty passage."""
  beyond = max(0, tokens - room)
  return np.arange(0, -(-beyond // step) + 1) * step


def _best_windows(starts: np.ndarray, ends: np.ndarray, tokens: int) -> np.ndarray:
  """Returns, per token, the window with the most context on its shorter side; ties go to the longer, then the first."""
  place = np.arange(tokens)[None, :]
  start, end = starts[:, None], ends[:, None]
  context = np.minimum(place - start, end - 1 - place) + 0.01 * (end - start)
  return np.argmax(np.where((place >= start) & (place < end), context, -np.inf), axis=0)


@functools.lru_cache(maxsize=8)
def _form(vocabulary: Any) -> PairForm:
  return PairForm.of(SpecialTokens.of(vocabulary))


@dataclasses.dataclass(frozen=True)
class Answer:
  """An answer with the score of the best span and of "no answer", each a sum of two logits."""

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
  """Returns the answer to every question from the scores of all its windows, [windows, length].

  `questions` and `passages` are the question id and the passage of each window. The `candidates` best
  start and end tokens of the passage are paired (BERT's code also takes those of the question and of padding,
  which are no answer); a span has at most `longest` tokens and starts at a token with `best_context`. With
  `unanswerable` (SQuAD 2.0) the answer is '' if [CLS] beats the best span by more than `threshold`.
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
  """Returns the score and the first and last token of the best span; None if the window has no valid one."""
  in_passage = offsets[:, 0] >= 0
  starts = np.where(in_passage & (best_context > 0), starts, -np.inf)
  ends = np.where(in_passage, ends, -np.inf)
  for count in (candidates, len(starts)):  # all tokens, if no pair of candidates is a span
    first, last = _highest(starts, count), _highest(ends, count)
    size = last[None, :] - first[:, None] + 1
    scores = np.where((size >= 1) & (size <= longest), starts[first][:, None] + ends[last][None, :], -np.inf)
    one, other = np.unravel_index(int(np.argmax(scores)), scores.shape)
    if scores[one, other] > -np.inf:
      return float(scores[one, other]), (int(first[one]), int(last[other]))
  return -np.inf, None


def _highest(scores: np.ndarray, count: int) -> np.ndarray:
  return np.argsort(-scores, kind="stable")[:count]
