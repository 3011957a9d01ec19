"""Values per variable by regular expressions on paths: the first match wins, every variable must match.

    weight_decay = [('.*(bias|scale)', 0.0), ('.*', 0.01)]

An expression must match the complete path, such as `encoder/layers_0/mlp/wi/kernel`. A variable without a rule is an
error, and so is a rule that applies to no variable: both are probably typos. The same rules apply to scanned layers:
layer 0 of `encoder/layers/mlp/wi/kernel` also has the path above.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from t5like.console import table
from t5like.errors import UserError, is_number, nearest

REST = ".*"
STACKED = "layers"  # the part of a path below which variables have a leading layer axis
_LAYER = re.compile(r"(?<=layers_)\d+(?=/)")


@dataclasses.dataclass(frozen=True)
class PathRules:
  """Rules of (expression, value). `name` is the option that the user sets, for messages."""

  name: str
  rules: tuple[tuple[str, float], ...]

  def choose(self, params: Any) -> dict[str, tuple[str, float]]:
    """Returns the rule that applies to each variable, by path; to each layer of a stacked one, by numbered path."""
    chosen = {}
    for path, numbered in numbered_paths(params).items():
      for each in numbered:
        match = next((rule for rule in self.rules if _matches(rule[0], path, each)), None)
        if match is None:
          raise UserError(
            f"no rule of {self.name} matches the variable {each}",
            rules=", ".join(repr(pattern) for pattern, _ in self.rules),
            try_=f"('{REST}', ...) as the last rule, for the rest",
          )
        chosen[each] = match
    self._check_all_used(chosen, variable_paths(params))
    return chosen

  def _check_all_used(self, chosen: dict[str, tuple[str, float]], paths: Sequence[str]) -> None:
    used = {pattern for pattern, _ in chosen.values()}
    for pattern, _ in self.rules:
      if pattern in used or pattern == REST:
        continue
      shadowed = [path for path in chosen if re.fullmatch(pattern, path)]
      raise UserError(
        f"the rule {pattern!r} of {self.name} applies to no variable",
        because=f"an earlier rule, {chosen[shadowed[0]][0]!r}, matches {shadowed[0]}" if shadowed else "",
        nearest="" if shadowed else nearest_paths(pattern, [*paths, *(p for p in chosen if p not in paths)]),
        hint="" if shadowed else "a rule must match the complete path",
      )

  def values(self, params: Any) -> Any:
    """Returns the value of each variable, as a tree like `params`.

    A stacked variable whose layers differ has an array [layers, 1, ...].
    """
    chosen, numbered = self.choose(params), numbered_paths(params)

    def value(path: tuple, leaf: Any) -> float | np.ndarray:
      values = [chosen[each][1] for each in numbered[path_text(path)]]
      if len(set(values)) == 1:
        return values[0]
      return np.asarray(values, np.float32).reshape(-1, *[1] * (len(leaf.shape) - 1))

    return jax.tree.map_with_path(value, params)


def path_rules(name: str, given: float | Sequence[tuple[str, float]]) -> PathRules:
  """Parses the rules of an option; a number is a rule for all variables."""
  if is_number(given):
    given = [(REST, given)]
  expected = "a number, or a list such as [('.*(bias|scale)', 0.0), ('.*', 0.01)]"
  try:
    rules = tuple((pattern, value) for pattern, value in given)
  except (TypeError, ValueError):
    raise UserError(f"invalid {name}: {given!r}", expected=expected) from None
  for pattern, value in rules:
    if not isinstance(pattern, str) or not is_number(value) or value < 0:
      raise UserError(f"invalid rule of {name}: {(pattern, value)!r}", expected=f"{expected}, none below 0")
    check_pattern(name, pattern)
  return PathRules(name, rules)


def check_pattern(name: str, pattern: str) -> None:
  try:
    re.compile(pattern)
  except re.error as error:
    raise UserError(f"{name}: invalid regular expression {pattern!r}", because=str(error)) from None


def nearest_paths(pattern: str, paths: Sequence[str]) -> str:
  """Returns the paths most similar to an expression that matches none, or else a few existing ones."""
  plain = re.sub(r"\\d\+?|[\\.*+?^$()\[\]|]", "", pattern)
  return nearest(plain, paths) or ", ".join(paths[:3])


def path_text(path: tuple) -> str:
  return jax.tree_util.keystr(path, simple=True, separator="/")


def leaves_by_path(tree: Any) -> dict[str, Any]:
  return {path_text(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def variable_paths(params: Any) -> list[str]:
  return list(leaves_by_path(params))


def numbered_paths(params: Any) -> dict[str, list[str]]:
  """Returns the paths of each variable with layers by number, `encoder/layers_3/...`, also of a stacked one.

  A variable that is not stacked has one: its own. `params` hold arrays or shapes.
  """

  def paths(path: str, leaf: Any) -> list[str]:
    parts = path.split("/")
    if STACKED not in parts:
      return [path]
    at = parts.index(STACKED)
    return ["/".join([*parts[:at], f"{STACKED}_{i}", *parts[at + 1 :]]) for i in range(leaf.shape[0])]

  return {path: paths(path, leaf) for path, leaf in leaves_by_path(params).items()}


def _matches(pattern: str, *paths: str) -> bool:
  return any(re.fullmatch(pattern, path) for path in paths)


def stack_equal_layers(columns: Sequence[dict[str, Any]], params: Any) -> list[dict[str, Any]]:
  """Returns columns of values by numbered path with one entry for a stacked variable whose layers all agree."""
  found: list[dict[str, Any]] = [{} for _ in columns]
  for path, numbered in numbered_paths(params).items():
    agree = all(column[each] == column[numbered[0]] for column in columns for each in numbered)
    for column, kept in zip(columns, found, strict=True):
      kept |= {path: column[numbered[0]]} if agree else {each: column[each] for each in numbered}
  return found


def rules_table(columns: Sequence[tuple[str, dict[str, tuple[str, float | str]]]]) -> str:
  """Returns a table of the values of every variable; identical layers share a line.

  `columns` are titles with, for every path, the rule that applied and its value.
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
  """Formats 0,1,2,5 as 0-2,5."""
  runs: list[list[int]] = []
  for number in sorted(numbers):
    if runs and number == runs[-1][-1] + 1:
      runs[-1].append(number)
    else:
      runs.append([number])
  return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
