"""Old names of macros and parameters, which keep working with a notice."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from t5like.configuration.statements import Binding, MacroReference, Statement

# Macros, and parameters as `configurable.parameter`.
RENAMED = {
  "LOSS_NORMALISER": "LOSS_NORMALIZER",
  "train.loss_normaliser": "train.loss_normalizer",
}


def replace_old_names(statements: Sequence[Statement]) -> list[Statement]:
  """Replaces old names in statements with the current ones; prints a notice once for each."""
  reported: set[str] = set()

  def renamed(statement: Statement) -> Statement:
    if not isinstance(statement, Binding):
      return statement
    if isinstance(statement.value, MacroReference) and statement.value.name in RENAMED:
      statement = dataclasses.replace(statement, value=MacroReference(RENAMED[statement.value.name]))
    old = statement.macro_name if statement.is_macro else f"{statement.selector}.{statement.parameter}"
    if old not in RENAMED:
      return statement
    if old not in reported:
      reported.add(old)
      print(f"{old} has been renamed to {RENAMED[old]} ({statement.where})", file=sys.stderr)
    selector, _, parameter = RENAMED[old].partition(".")
    return dataclasses.replace(statement, selector=selector, parameter=parameter)

  return [renamed(statement) for statement in statements]
