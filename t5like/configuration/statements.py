"""Reads gin files into a flat list of statements, so they can be checked before gin acts on them.

gin itself stops at the first mistake and accepts any macro name. Reading first lets us name every
missing value at once, with the file that asks for it, and find misspelt macros.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gin import config_parser

from t5like.configuration.search_path import find
from t5like.errors import UserError

REQUIRED = "gin.REQUIRED"
_INCLUDE = re.compile(r"""\s*include\s+["'](.*?)["']""")


@dataclasses.dataclass(frozen=True)
class MacroReference:
  name: str


@dataclasses.dataclass(frozen=True)
class ConfigurableReference:
  name: str  # without scopes


class _Recorder(config_parser.ParserDelegate):
  """Turns `%NAME` and `@name()` into plain records."""

  def macro(self, macro_name: str) -> MacroReference:
    return MacroReference(macro_name)

  def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> ConfigurableReference:
    return ConfigurableReference(scoped_configurable_name.split("/")[-1])


@dataclasses.dataclass(frozen=True)
class Binding:
  """`selector.parameter = value`, or `NAME = value` (a macro: parameter is empty)."""

  selector: str
  parameter: str
  value: Any
  where: str  # "models/t5/tiny.gin:12" or "--gin.BATCH_SIZE"
  scope: str = ""

  @property
  def is_macro(self) -> bool:
    return not self.parameter

  @property
  def macro_name(self) -> str:
    return f"{self.scope}/{self.selector}" if self.scope else self.selector

  def references(self) -> Iterator[MacroReference | ConfigurableReference]:
    pending = [self.value]
    while pending:
      value = pending.pop()
      if isinstance(value, (MacroReference, ConfigurableReference)):
        yield value
      elif isinstance(value, dict):
        pending.extend([*value.keys(), *value.values()])
      elif isinstance(value, (list, tuple)):
        pending.extend(value)


def read_text(text: str, where: str, folders: Sequence[Path], seen: tuple[str, ...] = ()) -> list[Binding]:
  """Statements of one piece of gin text in order, included files expanded in place."""
  bindings = []
  try:
    for statement in config_parser.ConfigParser(io.StringIO(text), _Recorder()):
      location = getattr(statement, "location", None)
      line = f"{where}:{location.line_num}" if location and not where.startswith("--") else where
      if isinstance(statement, config_parser.BindingStatement):
        scope, selector, parameter, value, _ = statement
        bindings.append(Binding(selector, parameter, value, line, scope))
      elif isinstance(statement, config_parser.IncludeStatement):
        bindings.extend(read_file(statement.filename, folders, asked_by=line, seen=seen))
      elif isinstance(statement, config_parser.ImportStatement):
        _import(statement.module, line)
  except SyntaxError as error:
    message = str(error.msg).strip().split("\n")[0]
    raise UserError(
      "gin cannot read this line", file=f"{where}:{error.lineno}", line=(error.text or "").strip(), because=message
    ) from None
  return bindings


def read_file(
  name: str, folders: Sequence[Path], asked_by: str = "--gin_file", seen: tuple[str, ...] = ()
) -> list[Binding]:
  path = find(name, folders, asked_by)
  if str(path) in seen:
    raise UserError("gin files include each other in a circle", files=" -> ".join([*seen, str(path)]))
  try:
    text = path.read_text(encoding="utf-8")
  except (OSError, UnicodeDecodeError) as error:
    raise UserError(f"cannot read the gin file {path}", because=error) from None
  return read_text(text, name, folders, (*seen, str(path)))


def expanded_text(name: str, folders: Sequence[Path]) -> str:
  """The text of a file that `read_file` has accepted, with included files in place of their lines."""
  lines = []
  for line in find(name, folders).read_text(encoding="utf-8").splitlines():
    include = _INCLUDE.match(line)
    lines.append(expanded_text(include[1], folders) if include else line)
  return "\n".join(lines)


def _import(module: str, where: str) -> None:
  """Imports what a gin file imports: it may register the names that the next lines use."""
  try:
    importlib.import_module(module)
  except ImportError as error:
    raise UserError(
      f"cannot import {module!r}", file=where, because=error, try_="run from its folder, or put it on PYTHONPATH"
    ) from None


def parse_override_value(text: str) -> str:
  """The gin source of a value typed on the command line; what is no literal is taken as a string.

  `--gin.TASK=snli` and `--gin.MODEL_DIR=~/runs/x` need no inner quotes; numbers, lists, dicts,
  `@references()`, `%MACROS` and quoted strings keep their gin meaning.
  """
  words = {"true": "True", "false": "False", "none": "None"}
  if text.lower() in words:
    return words[text.lower()]
  if text.startswith(("@", "%")):
    return text
  try:
    parser = config_parser.ConfigParser(text, _Recorder())
    parser.parse_value()
    if parser.current_token.string == "":
      return text
  except Exception:  # the tokenizer has several error types; all mean "not a literal"
    pass
  return repr(text)
