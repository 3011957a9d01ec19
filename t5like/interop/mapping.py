"""Maps tensors of another library to our parameters and back, by a list of rules, with a report."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from t5like.errors import UserError

Parameters = dict[str, np.ndarray]  # by path: "encoder/layers_0/attention/query/kernel"


@dataclasses.dataclass(frozen=True)
class Rule:
  """Maps one of their tensors to one of our parameters, or to several concatenated on the last axis.

  `heads`: the last axis is ordered by head, and each head has its columns of all parameters (DeBERTa).

  `copies`: other names under which a checkpoint may store the same tensor, in addition or instead (tied weights).

  `as_row`: their tensor is a matrix with our vector as its only row.

  `split_last`: their last two axes are one of ours (before `transpose`), and the last has this size: heads of XLNet.
  """

  theirs: str
  ours: tuple[str, ...]
  transpose: bool = False
  copies: tuple[str, ...] = ()
  heads: int = 1
  as_row: bool = False
  split_last: int | None = None

  def split(self, tensor: np.ndarray) -> Parameters:
    if self.split_last is not None:
      tensor = tensor.reshape(*tensor.shape[:-2], -1)
    tensor = tensor.T if self.transpose else tensor
    if self.as_row:
      tensor = tensor.reshape(-1)
    parts = len(self.ours)
    if tensor.shape[-1] % (parts * self.heads):
      raise UserError(
        f"{self.theirs} has {tensor.shape[-1]} columns, which is not divisible by {parts * self.heads}",
        parts=", ".join(self.ours),
      )
    by_head = tensor.reshape(*tensor.shape[:-1], self.heads, parts, -1)
    arrays = [by_head[..., number, :].reshape(*tensor.shape[:-1], -1) for number in range(parts)]
    return dict(zip(self.ours, arrays, strict=True))

  def join(self, params: Mapping[str, np.ndarray]) -> np.ndarray:
    parts = [np.asarray(params[path]) for path in self.ours]
    tensor = parts[0]
    if len(parts) > 1:
      by_head = [part.reshape(*part.shape[:-1], self.heads, -1) for part in parts]
      tensor = np.stack(by_head, axis=-2).reshape(*tensor.shape[:-1], -1)
    tensor = tensor[None] if self.as_row else tensor
    tensor = tensor.T if self.transpose else tensor
    if self.split_last is not None:
      tensor = tensor.reshape(*tensor.shape[:-1], -1, self.split_last)
    return np.ascontiguousarray(tensor)


def part_rules(ours: str, theirs: str, copies: tuple[str, ...] = ()) -> list[Rule]:
  """Returns the rules of a dense layer with bias, or of a layer norm, by the names of both."""
  weights, biases = ([f"{name}.{kind}" for name in copies] for kind in ("weight", "bias"))
  if ours.endswith("norm"):
    # Early BERT releases call these gamma and beta, as in TensorFlow.
    return [
      Rule(f"{theirs}.weight", (f"{ours}/scale",), copies=(f"{theirs}.gamma", *weights)),
      Rule(f"{theirs}.bias", (f"{ours}/bias",), copies=(f"{theirs}.beta", *biases)),
    ]
  return [
    Rule(f"{theirs}.weight", (f"{ours}/kernel",), transpose=True, copies=tuple(weights)),
    Rule(f"{theirs}.bias", (f"{ours}/bias",), copies=tuple(biases)),
  ]


@dataclasses.dataclass
class ImportReport:
  """Lists the tensors of a checkpoint: used, missing and unexpected."""

  used: list[str] = dataclasses.field(default_factory=list)
  copies: list[str] = dataclasses.field(default_factory=list)  # equal to a tensor that was used
  missing: list[str] = dataclasses.field(default_factory=list)
  unexpected: list[str] = dataclasses.field(default_factory=list)

  def summary(self) -> str:
    """Returns a line of counts and the names of missing and unexpected tensors."""
    counts = f"{len(self.used)} tensors used, {len(self.copies)} tied copies, {len(self.missing)} missing, "
    return "\n".join([f"{counts}{len(self.unexpected)} unexpected", *self._names("missing", "unexpected")])

  def full(self) -> str:
    return "\n".join([self.summary().split("\n")[0], *self._names("used", "copies", "missing", "unexpected")])

  def renamed(self, names: Mapping[str, str]) -> "ImportReport":
    """Returns the report with the names used in the file, where they differ from the rules."""
    kinds = (field.name for field in dataclasses.fields(self))
    return ImportReport(**{kind: [names.get(name, name) for name in getattr(self, kind)] for kind in kinds})

  def _names(self, *kinds: str) -> list[str]:
    return [f"  {kind:<10}  {name}" for kind in kinds for name in getattr(self, kind)]


def import_tensors(
  rules: Iterable[Rule], names: Iterable[str], read: Callable[[str], np.ndarray], source: str
) -> tuple[Parameters, ImportReport]:
  """Returns our parameters and a report; tensors are read one at a time. `source`, of errors: a file or folder."""
  unused, params, report = dict.fromkeys(names), {}, ImportReport()
  for rule in rules:
    name = next((n for n in (rule.theirs, *rule.copies) if n in unused), None)
    if name is None:
      report.missing.append(rule.theirs)
      continue
    tensor = read(name)
    check_tensor(name, tensor, source)
    params |= rule.split(tensor)
    report.used.append(name)
    del unused[name]
    for copy in rule.copies:
      if copy in unused and np.array_equal(read(copy), tensor):
        report.copies.append(copy)
        del unused[copy]
  report.unexpected.extend(unused)
  return params, report


def check_tensor(name: str, tensor: np.ndarray, source: str) -> None:
  """Raises UserError if a tensor has no axis, infinite values or nan."""
  if tensor.ndim == 0:
    raise UserError(f"{name} in {source} is a single number", expected="a vector or a matrix")
  exponents = {"bfloat16": 0x7F80, "float16": 0x7C00}.get(tensor.dtype.name)
  if exponents is None:
    is_finite = np.isfinite(tensor).all()
  else:
    bits = np.ascontiguousarray(tensor).view(np.uint16)  # many times as fast as isfinite
    is_finite = not ((bits & exponents) == exponents).any()
  if not is_finite:
    raise UserError(
      f"{name} in {source} contains values that are not finite", try_="an undamaged copy of the checkpoint"
    )


def export_tensors(rules: Iterable[Rule], params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  rules = list(rules)
  unused = set(params) - {path for rule in rules for path in rule.ours}
  if unused:
    raise UserError(
      f"{len(unused)} parameters have no counterpart in the other library's model",
      parameters="\n".join(sorted(unused)[:10]),
    )
  return {rule.theirs: rule.join(params) for rule in rules}


def check_complete(report: ImportReport, source: str) -> None:
  if report.missing:
    shown = report.missing[:10] + ([f"... and {len(report.missing) - 10} more"] if len(report.missing) > 10 else [])
    raise UserError(
      f"{len(report.missing)} tensors of the model are missing in {source}",
      missing="\n".join(shown),
      unexpected="\n".join(report.unexpected[:10]),
      try_="a complete checkpoint that matches its config",
    )
