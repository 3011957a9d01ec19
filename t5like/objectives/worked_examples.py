"""What an objective makes of a text, a row at a time, to be shown."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from t5like.objectives.base import Masked, Objective, Pairs, Rows, SpecialTokens
from t5like.objectives.ragged import Ragged
from t5like.objectives.randomness import Draws


@dataclasses.dataclass(frozen=True)
class CorruptedRow:
  """Ids of one row, without padding."""

  inputs: np.ndarray  # [input length]
  targets: np.ndarray | None  # [target length]; None where tokens are predicted in their places
  predicted: dict[int, int]  # by place in the inputs: the token to predict there
  follows: bool | None  # next-sentence prediction: whether the second text follows the first


def corrupted_rows(result: Pairs | Masked) -> list[CorruptedRow]:
  """Returns the rows of what an objective gave."""
  rows = []
  for number, length in enumerate(result.inputs.lengths):
    inputs, targets, predicted, follows = result.inputs.tokens[number, :length], None, {}, None
    if isinstance(result, Masked):
      places = np.flatnonzero(result.weights[number, :length])
      predicted = {int(place): int(result.targets[number, place]) for place in places}
      follows = None if result.labels is None else not result.labels[number]
    else:
      targets = result.targets.tokens[number, : result.targets.lengths[number]]
    rows.append(CorruptedRow(inputs, targets, predicted, follows))
  return rows


def corrupt_text(objective: Objective, text: str, vocabulary: Any, other: str = "", seed: int = 0) -> CorruptedRow:
  """Returns the one row that an objective makes of a text; `other` is of another document, for sentence pairs."""
  special, row = SpecialTokens.of(vocabulary), _row(text, vocabulary)
  objective.check(objective.lengths(max(row.tokens.shape[1], 8)), special)
  rows = Rows(row.tokens, row.lengths, _row(other, vocabulary))
  return corrupted_rows(objective(rows, Draws.of(seed, 0, np.zeros(1, int)), special))[0]


def _row(text: str, vocabulary: Any) -> Ragged:
  return Ragged.full(np.array([vocabulary.encode(text)], np.int32))
