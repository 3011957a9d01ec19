"""Answers to prompts, generated or chosen among candidates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from t5like.decoding import DecodeSettings
from t5like.errors import UserError
from t5like.inference.batching import RowBatch
from t5like.inference.generation import Generator
from t5like.inference.memory import NotEnoughMemory, answer_in_parts
from t5like.inference.ranking import CandidateScorer, Likelihood

_MAX_LABELS = 64
_ROWS_PER_UPDATE = 256

Tokens = Sequence[int]
Progress = Callable[[int], None]  # receives the number of rows done


@dataclasses.dataclass(frozen=True)
class GeneratedAnswer:
  """A generated answer."""

  tokens: list[int]  # without EOS
  log_likelihood: float  # with EOS


def generate_answers(
  generator: Generator,
  params: Any,
  prompts: Sequence[Tokens],
  settings: DecodeSettings,
  batch_size: int,
  progress: Progress = lambda done: None,
) -> list[GeneratedAnswer | NotEnoughMemory]:
  """Returns the best output for each prompt; NotEnoughMemory for a prompt that does not fit even alone."""
  answers: list[GeneratedAnswer | NotEnoughMemory] = [NotEnoughMemory(0, 0)] * len(prompts)
  planner, done = generator.planner(batch_size, settings.max_length), 0
  for batch in planner.plan([len(prompt) for prompt in prompts]):

    def answer(rows: np.ndarray, batch: RowBatch = batch) -> list[GeneratedAnswer]:
      texts = [prompts[row] for row in rows]
      shape = planner.shape_for(rows, batch, max(map(len, texts)))
      decoded = generator.texts(params, texts, settings, shape, rows)
      best = (decoded.tokens[:, 0], decoded.lengths[:, 0], decoded.scores[:, 0])
      return [GeneratedAnswer(tokens[:n].tolist(), float(score)) for tokens, n, score in zip(*best, strict=True)]

    for row, found in zip(batch.rows, answer_in_parts(batch.rows, answer), strict=True):
      answers[row] = found
    done += len(batch.rows)
    progress(done)
  return answers


def rank_answers(
  scorer: CandidateScorer,
  params: Any,
  prompts: Sequence[Tokens],
  candidates: Sequence[Sequence[Tokens]],
  reduction: str = "sum",
  progress: Progress = lambda done: None,
) -> tuple[list[int], list[list[float]]]:
  """Returns the index of each prompt's most likely candidate (ties: the first), and the scores of all.

  reduction: compare log-likelihoods by their "sum" or "mean" over tokens; the sum favors short candidates.

  A prompt that does not fit into memory gets -1 and no scores.
  """
  best, scores = [], []

  def score(rows: range) -> list[list[Likelihood]]:
    chosen = [prompts[row] for row in rows], [candidates[row] for row in rows]
    return scorer(params, *split_starts(scorer.model.batch_layout, *chosen))

  for first in range(0, len(prompts), _ROWS_PER_UPDATE):
    for found in answer_in_parts(range(first, min(first + _ROWS_PER_UPDATE, len(prompts))), score):
      likelihoods = [] if isinstance(found, NotEnoughMemory) else found
      values = [item.log_likelihood if reduction == "sum" else item.per_token for item in likelihoods]
      best.append(int(np.argmax(values)) if values else -1)
      scores.append(values)
    progress(len(best))
  return best, scores


def split_starts(layout: str, prompts: Sequence[Tokens], candidates: Sequence[Sequence[Tokens]]) -> tuple:
  """Returns (inputs, candidates, starts) for CandidateScorer, with the first token split off a decoder's prompts."""
  if layout == "encoder_decoder":
    return prompts, candidates, None
  return [prompt[1:] for prompt in prompts], candidates, [prompt[0] for prompt in prompts]


def label_set(scoring: Mapping[str, Any], examples: Sequence[Mapping[str, Any]], task: str) -> list[str]:
  """Returns a task's labels: its label words, else its distinct targets if they are few."""
  postprocessor = scoring["postprocessor"] or {}
  if labels := postprocessor.get("keywords", {}).get("label_classes"):
    return list(labels)
  labels = sorted({example["targets_pretokenized"] for example in examples})
  if not 2 <= len(labels) <= min(_MAX_LABELS, max(len(examples) // 2, 2)):
    raise UserError(
      f"task {task!r} has no label set: its examples have {len(labels):,} distinct targets",
      try_="--candidates=FIELD, which lists them in each example, or FILE with one per line",
    )
  return labels
