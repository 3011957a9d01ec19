"""Shows the output of an objective row by row."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from t5like.objectives.base import Masked, Objective, Pairs, Rows, SpecialTokens
from t5like.objectives.ragged import Ragged
from t5like.objectives.randomness import Draws


@dataclasses.dataclass(frozen=True)
class CorruptedRow:
  """The ids of one row, without padding."""

  inputs: np.ndarray  # [input length]
  targets: np.ndarray | None  # [target length]; None if tokens are predicted in place
  predicted: dict[int, int]  # tokens to predict by position in the inputs
  follows: bool | None  # next-sentence and sentence-order prediction: whether the second text follows the first


def corrupted_rows(result: Pairs | Masked) -> list[CorruptedRow]:
  """Splits the output of an objective into rows."""
  rows = []
  for number, length in enumerate(result.inputs.lengths):
    inputs, targets, predicted, follows = result.inputs.tokens[number, :length], None, {}, None
    if isinstance(result, Masked):
      positions = np.flatnonzero(result.weights[number, :length])
      predicted = {int(position): int(result.targets[number, position]) for position in positions}
      follows = None if result.labels is None else not result.labels[number]
    else:
      targets = result.targets.tokens[number, : result.targets.lengths[number]]
    rows.append(CorruptedRow(inputs, targets, predicted, follows))
  return rows


def corrupt_text(objective: Objective, text: str, vocabulary: Any, other: str = "", seed: int = 0) -> CorruptedRow:
  """Applies an objective to one text; `other` is text from another document, for sentence pairs."""
  special, row = SpecialTokens.of(vocabulary), _row(text, vocabulary)
  objective.check(objective.lengths(max(row.tokens.shape[1], 8)), special)
  rows = Rows(row.tokens, row.lengths, _row(other, vocabulary))
  return corrupted_rows(objective(rows, Draws.of(seed, 0, np.zeros(1, int)), special))[0]


def _row(text: str, vocabulary: Any) -> Ragged:
  return Ragged.full(np.array([vocabulary.encode(text)], np.int32))
