"""Numbers for variables by regular expressions on their paths: the first match wins, every variable has one.

    weight_decay = [('.*(bias|scale)', 0.0), ('.*', 0.01)]

An expression has to match the whole path, such as `encoder/layers_0/mlp/wi/kernel`. A variable that no
rule covers is an error, and so is a rule that decides nothing: both are how a typing mistake looks.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import jax

from t5like.console import table
from t5like.errors import UserError, nearest

REST = ".*"
_LAYER = re.compile(r"(?<=layers_)\d+(?=/)")


@dataclasses.dataclass(frozen=True)
class PathRules:
  """`name` is the knob that a user sets, for messages."""

  name: str
  rules: tuple[tuple[str, float], ...]

  def choose(self, params: Any) -> dict[str, tuple[str, float]]:
    """For every variable, by path, the rule that decides."""
    chosen = {}
    for path in variable_paths(params):
      match = next((rule for rule in self.rules if re.fullmatch(rule[0], path)), None)
      if match is None:
        raise UserError(
          f"no rule of {self.name} matches the variable {path}",
          rules=", ".join(repr(pattern) for pattern, _ in self.rules),
          try_=f"('{REST}', ...) as the last rule, for all the rest",
        )
      chosen[path] = match
    self._check_all_decide(chosen)
    return chosen

  def _check_all_decide(self, chosen: dict[str, tuple[str, float]]) -> None:
    deciding = {pattern for pattern, _ in chosen.values()}
    for pattern, _ in self.rules:
      if pattern in deciding or pattern == REST:
        continue
      shadowed = [path for path in chosen if re.fullmatch(pattern, path)]
      raise UserError(
        f"the rule {pattern!r} of {self.name} decides for no variable",
        because=f"an earlier rule, {chosen[shadowed[0]][0]!r}, matches {shadowed[0]}" if shadowed else "",
        nearest="" if shadowed else nearest_paths(pattern, list(chosen)),
        hint="" if shadowed else "a rule has to match the whole path",
      )

  def values(self, params: Any) -> Any:
    """The chosen numbers, as a tree like `params`."""
    chosen = self.choose(params)
    return jax.tree.map_with_path(lambda path, _: chosen[path_text(path)][1], params)


def path_rules(name: str, given: float | Sequence[tuple[str, float]]) -> PathRules:
  """Rules as users give them; one number is a rule for all variables."""
  if _is_number(given):
    given = [(REST, given)]
  expected = "a number, or a list such as [('.*(bias|scale)', 0.0), ('.*', 0.01)]"
  try:
    rules = tuple((pattern, value) for pattern, value in given)
  except (TypeError, ValueError):
    raise UserError(f"{name} = {given!r} cannot work", expected=expected) from None
  for pattern, value in rules:
    if not isinstance(pattern, str) or not _is_number(value) or value < 0:
      raise UserError(f"{name} has a rule {(pattern, value)!r}", expected=f"{expected}, none below 0")
    check_pattern(name, pattern)
  return PathRules(name, rules)


def check_pattern(name: str, pattern: str) -> None:
  try:
    re.compile(pattern)
  except re.error as error:
    raise UserError(f"{name}: {pattern!r} is no regular expression", because=str(error)) from None


def nearest_paths(pattern: str, paths: Sequence[str]) -> str:
  """The paths that look most like an expression that matches none; failing that, some that exist."""
  plain = re.sub(r"\\d\+?|[\\.*+?^$()\[\]|]", "", pattern)
  return nearest(plain, paths) or ", ".join(paths[:3])


def path_text(path: tuple) -> str:
  return jax.tree_util.keystr(path, simple=True, separator="/")


def variable_paths(params: Any) -> list[str]:
  return [path_text(path) for path, _ in jax.tree.leaves_with_path(params)]


def rules_table(columns: Sequence[tuple[str, dict[str, tuple[str, float | str]]]]) -> str:
  """What was chosen for every variable, one line for equal layers that are treated alike.

  `columns` holds a title and, for every path, the rule that decided and its value.
  """
  groups: dict[tuple, list[int]] = {}
  for path in columns[0][1]:
    layer = _LAYER.search(path)
    entries = tuple(f"{chosen[path][1]} by {chosen[path][0]}" for _, chosen in columns)
    groups.setdefault((_LAYER.sub("{}", path), entries), []).append(int(layer.group()) if layer else -1)
  rows = [("variable", *(title for title, _ in columns))]
  rows += [(template.replace("{}", _ranges(layers)), *entries) for (template, entries), layers in groups.items()]
  return table(rows)


def _ranges(numbers: Sequence[int]) -> str:
  """0,1,2,5 as 0-2,5."""
  runs: list[list[int]] = []
  for number in sorted(numbers):
    if runs and number == runs[-1][-1] + 1:
      runs[-1].append(number)
    else:
      runs.append([number])
  return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _is_number(value: Any) -> bool:
  return isinstance(value, (int, float)) and not isinstance(value, bool)
