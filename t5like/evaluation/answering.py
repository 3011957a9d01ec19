"""A model's answers to many prompts: written by a search, or chosen among candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t5like import decoding
from t5like.decoding import DecodeSettings
from t5like.errors import UserError, nearest
from t5like.evaluation.generation import Generator
from t5like.evaluation.ranking import CandidateScorer

RANKINGS = ("sum", "mean")
_MOST_LABELS = 64
_ROWS_BETWEEN_SIGNS = 256

Tokens = Sequence[int]
Progress = Callable[[int], None]  # hears how many rows are done


def write_answers(
  generator: Generator,
  params: Any,
  prompts: Sequence[Tokens],
  settings: DecodeSettings,
  batch_size: int,
  progress: Progress = lambda done: None,
) -> list[list[int]]:
  """The best output for each prompt, up to its end. Long prompts come first: what does not fit fails at once."""
  answers: list[list[int]] = [[]] * len(prompts)
  done = 0
  for rows, length in length_batches([len(prompt) for prompt in prompts], batch_size):
    batch = _prompt_batch(generator.model.batch_layout, [prompts[row] for row in rows], length)
    decoded = generator(params, batch, settings, row_ids=rows)
    for row, tokens, count in zip(rows, decoded.tokens[:, 0], decoded.lengths[:, 0], strict=True):
      answers[row] = tokens[:count].tolist()
    done += len(rows)
    progress(done)
  return answers


def length_batches(lengths: Sequence[int], batch_size: int) -> Iterator[tuple[np.ndarray, int]]:
  """Rows of similar length and what they are padded to: the longest, or half or a quarter of it.

  Three shapes, as each is compiled.
  """
  order = np.argsort(-np.asarray(lengths), kind="stable")
  longest = decoding.bucket(max(lengths, default=1))
  for first in range(0, len(order), batch_size):
    rows = order[first : first + batch_size]
    needed = int(lengths[rows[0]])
    yield rows, next(size for size in (longest // 4, longest // 2, longest) if size >= needed)


def _prompt_batch(layout: str, prompts: Sequence[Tokens], length: int) -> dict[str, np.ndarray]:
  tokens, real = np.zeros((2, len(prompts), length), np.int32)
  for row, prompt in enumerate(prompts):
    tokens[row, : len(prompt)], real[row, : len(prompt)] = prompt, 1
  if layout == "encoder_decoder":
    return {"encoder_input_tokens": tokens}
  # What a bucket adds behind the longest prompt may be more than the model has positions for.
  width = max(len(prompt) for prompt in prompts)
  return {"decoder_input_tokens": tokens[:, :width], "decoder_segment_ids": real[:, :width]}


def rank_answers(
  scorer: CandidateScorer,
  params: Any,
  prompts: Sequence[Tokens],
  candidates: Sequence[Sequence[Tokens]],
  how: str = "sum",
  progress: Progress = lambda done: None,
) -> tuple[list[int], list[list[float]]]:
  """Which candidate of each prompt is likeliest (the first of equals), and the scores of all.

  `sum` compares log-likelihoods, `mean` those of a token: longer candidates are then not at a disadvantage.
  """
  if how not in RANKINGS:
    raise UserError(f"--rank={how} cannot work", expected=" or ".join(RANKINGS), nearest=nearest(how, RANKINGS))
  best, scores = [], []
  for first in range(0, len(prompts), _ROWS_BETWEEN_SIGNS):
    part = slice(first, first + _ROWS_BETWEEN_SIGNS)
    for likelihoods in scorer(params, *split_starts(scorer.model.batch_layout, prompts[part], candidates[part])):
      values = [item.log_likelihood if how == "sum" else item.per_token for item in likelihoods]
      best.append(int(np.argmax(values)))
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
