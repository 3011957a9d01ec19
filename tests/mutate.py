"""Mutation testing: changes the source in one place at a time and lists the changes that no test catches.

  python tests/mutate.py t5like/decoding --tests=tests/decoding --count=20

A mutation changes one operator, constant, condition or argument, like a typo: `<` to `<=`, `and` to `or`, a condition
that is always true, a missing argument, swapped branches. Each is applied to a copy of the repository, where the tests
run until one fails. The same --seed samples the same mutations. Some survivors are equivalent (a larger buffer, a
redundant check): look at each.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
NOT_COPIED = (".git", ".venv*", ".carry", "build", "dist", "__pycache__", "*.egg-info", ".pytest_cache")

COMPARISONS = {
  ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
  ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
ARITHMETIC = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "+", ast.Pow: "*"}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}


@dataclasses.dataclass(frozen=True)
class Mutation:
  """Replaces the characters from `start` to `end` of a file with `new`."""

  path: Path
  line: int
  start: int
  end: int
  new: str

  def applied(self, text: str) -> str:
    return text[: self.start] + self.new + text[self.end :]


class _Finder(ast.NodeVisitor):
  """Collects the possible mutations of a file, except in annotations, messages and imports."""

  def __init__(self, path: Path, text: str):
    self._path, self._text = path, text
    self._starts = [0]
    for line in text.splitlines(keepends=True):
      self._starts.append(self._starts[-1] + len(line))
    self.found: list[Mutation] = []

  def _offset(self, line: int, column: int) -> int:
    """Returns the character offset of a position of ast, whose columns are bytes."""
    start = self._starts[line - 1]
    content = self._text[start : self._starts[line]].encode()
    return start + len(content[:column].decode())

  def _span(self, node: ast.AST) -> tuple[int, int]:
    return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

  def _source(self, node: ast.AST) -> str:
    start, end = self._span(node)
    return self._text[start:end]

  def _replace(self, node: ast.AST, new: str) -> None:
    start, end = self._span(node)
    self.found.append(Mutation(self._path, node.lineno, start, end, new))

  def _between(self, left: ast.AST, right: ast.AST, new: str) -> None:
    """Replaces the operator between two operands, keeping the spaces and brackets around it."""
    start, end = self._span(left)[1], self._span(right)[0]
    gap = self._text[start:end]
    closing = gap[: len(gap) - len(gap.lstrip(" )\n"))]
    opening = gap[len(gap.rstrip(" (\n")) :]
    self.found.append(Mutation(self._path, left.end_lineno, start, end, f"{closing}{new}{opening}"))

  def visit_Compare(self, node: ast.Compare) -> None:
    left = node.left
    for operator, right in zip(node.ops, node.comparators, strict=True):
      self._between(left, right, COMPARISONS[type(operator)])
      left = right
    self.generic_visit(node)

  def visit_BinOp(self, node: ast.BinOp) -> None:
    of_text = any(isinstance(side, ast.JoinedStr | ast.Constant) and "'" in ast.dump(side) for side in (node.left,))
    if type(node.op) in ARITHMETIC and not of_text:
      self._between(node.left, node.right, ARITHMETIC[type(node.op)])
    self.generic_visit(node)

  def visit_BoolOp(self, node: ast.BoolOp) -> None:
    for left, right in zip(node.values, node.values[1:], strict=False):
      self._between(left, right, "or" if isinstance(node.op, ast.And) else "and")
    self.generic_visit(node)

  def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
    if isinstance(node.op, ast.Not | ast.USub):
      self._replace(node, f"({self._source(node.operand)})")
    self.generic_visit(node)

  def visit_Constant(self, node: ast.Constant) -> None:
    if isinstance(node.value, bool):
      self._replace(node, str(not node.value))
    elif isinstance(node.value, int):
      self._replace(node, str(node.value + 1))
    elif isinstance(node.value, float) and node.value:
      self._replace(node, repr(node.value * 2))

  def _condition(self, node: ast.If | ast.IfExp) -> None:
    for value in ("True", "False"):
      self._replace(node.test, value)
    self.generic_visit(node)

  visit_IfExp = _condition

  def visit_If(self, node: ast.If) -> None:
    if "TYPE_CHECKING" not in self._source(node.test):
      self._condition(node)

  def visit_Call(self, node: ast.Call) -> None:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name.endswith("Error") or name in ("say", "print", "add_argument", "log", "warn", "field"):
      return
    if name in NAMES:
      start, end = self._span(node.func)
      self.found.append(Mutation(self._path, node.lineno, end - len(name), end, NAMES[name]))
    if name == "where" and len(node.args) == 3:
      self._replace(node.args[1], self._source(node.args[2]))
      self._replace(node.args[2], self._source(node.args[1]))
    for argument in node.keywords:
      start, end = self._span(argument)
      rest = self._text[end:]
      comma = len(rest) - len(rest.lstrip(" \n,")) if rest.lstrip(" \n").startswith(",") else 0
      self.found.append(Mutation(self._path, argument.lineno, start, end + comma, ""))
    self.generic_visit(node)

  def visit_Raise(self, node: ast.Raise) -> None:
    del node  # the condition before it is mutated

  def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
    if node.value is not None:
      self.visit(node.value)

  def visit_arg(self, node: ast.arg) -> None:
    del node

  def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
    for part in (node.args, *node.body):
      self.visit(part)

  def visit_Import(self, node: ast.Import) -> None:
    del node

  visit_ImportFrom = visit_Import


def mutations_of(path: Path) -> Iterator[Mutation]:
  """Yields every mutation of a file that is valid Python."""
  text = path.read_text(encoding="utf-8")
  finder = _Finder(path, text)
  finder.visit(ast.parse(text))
  for mutation in finder.found:
    changed = mutation.applied(text)
    try:
      if ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text)):
        yield mutation
    except SyntaxError:
      pass


def sample_mutations(paths: list[Path], count: int, seed: int) -> list[Mutation]:
  """Samples `count` mutations, at most one per line, uniformly over all lines that have any."""
  lines: dict[tuple[Path, int], list[Mutation]] = {}
  for path in paths:
    for mutation in mutations_of(path):
      lines.setdefault((path, mutation.line), []).append(mutation)
  random_ = random.Random(seed)
  chosen = random_.sample(sorted(lines), min(count, len(lines)))
  return [random_.choice(lines[line]) for line in chosen]


def is_caught(copy: Path, tests: list[str], options: list[str], seconds: float) -> bool:
  """Returns whether a test fails, or times out, in the current copy."""
  command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *options, *tests]
  environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
  try:
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=seconds, check=False)
  except subprocess.TimeoutExpired:
    return True
  if done.returncode not in (0, 1, 2):
    raise SystemExit(f"pytest failed:\n{done.stdout.decode()}\n{done.stderr.decode()}")
  return done.returncode != 0


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("sources", nargs="+", help="files or folders in t5like/")
  parser.add_argument("--tests", required=True, help="files or folders in tests/, separated by commas, fast ones first")
  parser.add_argument("--count", type=int, default=20)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--seconds", type=float, default=900.0, help="timeout of a test run; a timeout counts as caught")
  parser.add_argument("--options", default="", help="options for pytest, such as \"-n 2 -m 'not slow'\"")
  options = parser.parse_args()
  paths = []
  for source in map(Path, options.sources):
    paths += sorted(source.rglob("*.py")) if source.is_dir() else [source]
  paths = [path.resolve().relative_to(REPOSITORY) for path in paths]
  tests, extra = options.tests.split(","), shlex.split(options.options)
  with tempfile.TemporaryDirectory() as folder:
    copy = Path(folder) / "copy"
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns(*NOT_COPIED))
    if is_caught(copy, tests, extra, options.seconds):
      raise SystemExit("the tests fail without a mutation, or take longer than --seconds")
    os.chdir(REPOSITORY)
    mutations = sample_mutations(paths, options.count, options.seed)
    survivors = 0
    for number, mutation in enumerate(mutations, 1):
      text = (REPOSITORY / mutation.path).read_text(encoding="utf-8")
      changed = mutation.applied(text)
      (copy / mutation.path).write_text(changed, encoding="utf-8")
      caught = is_caught(copy, tests, extra, options.seconds)
      (copy / mutation.path).write_text(text, encoding="utf-8")
      survivors += not caught
      print(f"{number}/{len(mutations)} {'caught  ' if caught else 'SURVIVED'} {mutation.path}:{mutation.line}")
      print(f"    - {text.splitlines()[mutation.line - 1].strip()}")
      print(f"    + {changed.splitlines()[mutation.line - 1].strip()}", flush=True)
  print(f"{len(mutations) - survivors} of {len(mutations)} caught")
  return 0


if __name__ == "__main__":
  raise SystemExit(main())
