"""Tensors of another library to our parameters and back, by a list of rules; and the report of it."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from t5like.errors import UserError

Parameters = dict[str, np.ndarray]  # by path: "encoder/layers_0/attention/query/kernel"


@dataclasses.dataclass(frozen=True)
class Rule:
  """One tensor of theirs is one of our parameters, or several side by side on the last axis.

  `copies` are names under which a checkpoint may hold the same tensor again, or
  hold it instead (tied weights).
  """

  theirs: str
  ours: tuple[str, ...]
  transpose: bool = False
  copies: tuple[str, ...] = ()

  def split(self, tensor: np.ndarray) -> Parameters:
    tensor = tensor.T if self.transpose else tensor
    if tensor.shape[-1] % len(self.ours):
      raise UserError(
        f"{self.theirs} has {tensor.shape[-1]} columns, which {len(self.ours)} equal parts cannot share",
        parts=", ".join(self.ours),
      )
    return dict(zip(self.ours, np.split(tensor, len(self.ours), axis=-1), strict=True))

  def join(self, params: Mapping[str, np.ndarray]) -> np.ndarray:
    parts = [np.asarray(params[path]) for path in self.ours]
    tensor = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
    return np.ascontiguousarray(tensor.T if self.transpose else tensor)


@dataclasses.dataclass
class ImportReport:
  """What became of every tensor of a checkpoint."""

  used: list[str] = dataclasses.field(default_factory=list)
  copies: list[str] = dataclasses.field(default_factory=list)  # equal to a tensor that was used
  missing: list[str] = dataclasses.field(default_factory=list)
  unexpected: list[str] = dataclasses.field(default_factory=list)

  def summary(self) -> str:
    """One line of counts, then every name that a person should look at."""
    counts = f"{len(self.used)} tensors used, {len(self.copies)} tied copies, {len(self.missing)} missing, "
    return "\n".join([f"{counts}{len(self.unexpected)} unexpected", *self._names("missing", "unexpected")])

  def full(self) -> str:
    return "\n".join([self.summary().split("\n")[0], *self._names("used", "copies", "missing", "unexpected")])

  def renamed(self, names: Mapping[str, str]) -> "ImportReport":
    """The same with the names that the file has, where they differ from the rules'."""
    kinds = (field.name for field in dataclasses.fields(self))
    return ImportReport(**{kind: [names.get(name, name) for name in getattr(self, kind)] for kind in kinds})

  def _names(self, *kinds: str) -> list[str]:
    return [f"  {kind:<10}  {name}" for kind in kinds for name in getattr(self, kind)]


def import_tensors(
  rules: Iterable[Rule], names: Iterable[str], read: Callable[[str], np.ndarray]
) -> tuple[Parameters, ImportReport]:
  """Our parameters from their tensors `names`, each fetched with `read` when its turn comes."""
  left, params, report = dict.fromkeys(names), {}, ImportReport()
  for rule in rules:
    name = next((n for n in (rule.theirs, *rule.copies) if n in left), None)
    if name is None:
      report.missing.append(rule.theirs)
      continue
    tensor = read(name)
    params |= rule.split(tensor)
    report.used.append(name)
    del left[name]
    for copy in rule.copies:
      if copy in left and np.array_equal(read(copy), tensor):
        report.copies.append(copy)
        del left[copy]
  report.unexpected.extend(left)
  return params, report


def export_tensors(rules: Iterable[Rule], params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  rules = list(rules)
  left = set(params) - {path for rule in rules for path in rule.ours}
  if left:
    raise UserError(
      f"{len(left)} parameters have no place in the other library's model", parameters="\n".join(sorted(left)[:10])
    )
  return {rule.theirs: rule.join(params) for rule in rules}


def refuse_missing(report: ImportReport, source: str) -> None:
  if report.missing:
    shown = report.missing[:10] + ([f"... and {len(report.missing) - 10} more"] if len(report.missing) > 10 else [])
    raise UserError(
      f"{len(report.missing)} tensors that the model needs are not in {source}",
      missing="\n".join(shown),
      unexpected="\n".join(report.unexpected[:10]),
      try_="a checkpoint of the whole model, of the size its config names",
    )
