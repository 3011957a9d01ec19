"""A model's answers to many prompts: written by a search, or chosen among candidates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from t5like.decoding import DecodeSettings
from t5like.errors import UserError
from t5like.inference.batching import RowBatch
from t5like.inference.generation import Generator
from t5like.inference.ranking import CandidateScorer, Likelihood
from t5like.inference.room import NoRoom, answer_in_room

_MOST_LABELS = 64
_ROWS_BETWEEN_SIGNS = 256

Tokens = Sequence[int]
Progress = Callable[[int], None]  # receives the number of rows done


@dataclasses.dataclass(frozen=True)
class WrittenAnswer:
  """An answer that a search found."""

  tokens: list[int]  # up to its end
  log_likelihood: float  # its end included


def write_answers(
  generator: Generator,
  params: Any,
  prompts: Sequence[Tokens],
  settings: DecodeSettings,
  batch_size: int,
  progress: Progress = lambda done: None,
) -> list[WrittenAnswer | NoRoom]:
  """The best output for each prompt; NoRoom for one that the devices cannot take even alone."""
  answers: list[WrittenAnswer | NoRoom] = [NoRoom(0, 0)] * len(prompts)
  planner, done = generator.planner(batch_size, settings.max_length), 0
  for batch in planner.plan([len(prompt) for prompt in prompts]):

    def answer(rows: np.ndarray, batch: RowBatch = batch) -> list[WrittenAnswer]:
      texts = [prompts[row] for row in rows]
      shape = planner.shape_for(rows, batch, max(map(len, texts)))
      decoded = generator.texts(params, texts, settings, shape, rows)
      best = (decoded.tokens[:, 0], decoded.lengths[:, 0], decoded.scores[:, 0])
      return [WrittenAnswer(tokens[:n].tolist(), float(score)) for tokens, n, score in zip(*best, strict=True)]

    for row, found in zip(batch.rows, answer_in_room(batch.rows, answer), strict=True):
      answers[row] = found
    done += len(batch.rows)
    progress(done)
  return answers


def rank_answers(
  scorer: CandidateScorer,
  params: Any,
  prompts: Sequence[Tokens],
  candidates: Sequence[Sequence[Tokens]],
  how: str = "sum",
  progress: Progress = lambda done: None,
) -> tuple[list[int], list[list[float]]]:
  """Which candidate of each prompt is likeliest (the first of equals), and the scores of all.

  `sum` compares log-likelihoods, `mean` those of a token: longer candidates are then not at a disadvantage. -1, and no
  scores, for a prompt that the devices have no room for.
  """
  best, scores = [], []

  def score(rows: range) -> list[list[Likelihood]]:
    chosen = [prompts[row] for row in rows], [candidates[row] for row in rows]
    return scorer(params, *split_starts(scorer.model.batch_layout, *chosen))

  for first in range(0, len(prompts), _ROWS_BETWEEN_SIGNS):
    for found in answer_in_room(range(first, min(first + _ROWS_BETWEEN_SIGNS, len(prompts))), score):
      likelihoods = [] if isinstance(found, NoRoom) else found
      values = [item.log_likelihood if how == "sum" else item.per_token for item in likelihoods]
      best.append(int(np.argmax(values)) if values else -1)
      scores.append(values)
    progress(len(best))
  return best, scores


def split_starts(layout: str, prompts: Sequence[Tokens], candidates: Sequence[Sequence[Tokens]]) -> tuple:
  """What a scorer of candidates takes: a decoder's prompts without their first token, which only begins them."""
  if layout == "encoder_decoder":
    return prompts, candidates, None
  return [prompt[1:] for prompt in prompts], candidates, [prompt[0] for prompt in prompts]


def label_set(scoring: Mapping[str, Any], examples: Sequence[Mapping[str, Any]], task: str) -> list[str]:
  """The answers that a task knows: its label words, else its different targets where they are few."""
  postprocessor = scoring["postprocessor"] or {}
  if labels := postprocessor.get("keywords", {}).get("label_classes"):
    return list(labels)
  labels = sorted({example["targets_pretokenized"] for example in examples})
  if not 2 <= len(labels) <= min(_MOST_LABELS, max(len(examples) // 2, 2)):
    raise UserError(
      f"task {task!r} has no set of labels: its examples have {len(labels):,} different targets",
      try_="--candidates=FIELD, a field of each example that lists them, or FILE with one a line",
    )
  return labels
