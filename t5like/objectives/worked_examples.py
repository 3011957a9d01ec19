"""Shows the output of an objective row by row, and checks that of a custom one."""

from __future__ import annotations

import dataclasses
import traceback
from typing import Any

import numpy as np

from t5like.errors import UserError
from t5like.objectives.base import Lengths, Masked, Objective, Pairs, Rows, SpecialTokens
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


def check_output(objective: Objective, lengths: Lengths, special: SpecialTokens) -> None:
  """Applies an objective to a full and a shorter row; raises UserError unless the output is what it declares."""
  text = np.random.default_rng(0).choice(special.replacement_ids, (2, max(lengths.raw, 1)))
  rows = Ragged(text, np.array([lengths.raw, -(-lengths.raw // 2)]))
  result, again = (_applied(objective, rows, special) for _ in range(2))
  expected = Masked if objective.makes == "masked" else Pairs
  if not isinstance(result, expected):
    raise UserError(f"the objective {objective.name} returns {type(result).__name__}", expected=expected.__name__)
  sides = {"inputs": result.inputs}
  sides["targets"] = result.targets if isinstance(result, Pairs) else Ragged(result.targets, result.inputs.lengths)
  for name, side in sides.items():
    if len(side.tokens) != len(text) or len(side.lengths) != len(text):
      raise UserError(f"{name} of the objective {objective.name} are {len(side.tokens)} rows of {len(text)} texts")
    _check_side(objective, name, side, getattr(lengths, name if isinstance(result, Pairs) else "inputs"), special)
  if not _equal(result, again):
    raise UserError(
      f"the objective {objective.name} returns something else for the same rows and draws",
      expected="random numbers from `draws` only: a batch depends on the seed and the step alone",
    )


def _equal(one: Any, other: Any) -> bool:
  if dataclasses.is_dataclass(one):
    return all(_equal(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one))
  return np.array_equal(one, other)


def _applied(objective: Objective, rows: Ragged, special: SpecialTokens) -> Any:
  try:
    return objective(Rows(rows.tokens.copy(), rows.lengths, rows), Draws.of(0, 0, np.arange(2)), special)
  except UserError:
    raise
  except Exception as error:
    place = traceback.extract_tb(error.__traceback__)[-1]
    raise UserError(
      f"the objective {objective.name} fails: {type(error).__name__}: {error}", file=f"{place.filename}:{place.lineno}"
    ) from error


def _check_side(objective: Objective, name: str, side: Ragged, length: int, special: SpecialTokens) -> None:
  """Raises UserError if inputs or targets are longer than declared, or have ids that are not in the vocabulary."""
  largest = max(special.vocab_size - 1, special.mask or 0, *special.sentinels, *special.others)
  ids = side.tokens[side.valid]
  if not np.issubdtype(ids.dtype, np.integer):
    raise UserError(
      f"{name} of the objective {objective.name} are {ids.dtype}", expected="token ids, which are integers"
    )
  if len(ids) and not 0 <= ids.min() <= ids.max() <= largest:
    raise UserError(
      f"{name} of the objective {objective.name} have ids from {ids.min():,} to {ids.max():,}",
      expected=f"0 to {largest:,}, as in the vocabulary",
    )
  found = int(side.lengths.max()) + (objective.closed and objective.makes == "pairs") - objective.shifted
  if length and found > length and not (name == "targets" and objective.targets_vary):
    raise UserError(
      f"{name} of the objective {objective.name} have {found:,} tokens, {length:,} by its method lengths",
      hint="with end-of-sequence, which is appended if the objective is `closed`",
    )


def _row(text: str, vocabulary: Any) -> Ragged:
  return Ragged.full(np.array([vocabulary.encode(text)], np.int32))
