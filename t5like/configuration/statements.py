"""Reads gin files into a flat list of statements, so that they can be checked before gin executes them.

Gin stops at the first mistake and accepts any macro name. Checking first reports all missing values
at once, with the file that uses each, and finds misspelled macros.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import io
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gin import config_parser

from t5like.configuration.search_path import find, shipped_folder
from t5like.configuration.t5x_errors import explain_import
from t5like.errors import UserError
from t5like.files import storage
from t5like.files.module_files import is_inside

REQUIRED = "gin.REQUIRED"
_MAX_FILE_BYTES = 1 << 20  # config.gin has a few thousand


@dataclasses.dataclass(frozen=True)
class Permissions:
  """The files and modules that a gin file may include and import.

  Files that the user names may import any module and include any file on the search path. The config.gin of a model
  directory is untrusted data: it may only include shipped files, and only import t5like's `configurables` and the
  modules that the user named.
  """

  folders: Sequence[Path]  # search path of included files
  modules: Sequence[str] | None = None  # the modules that may be imported; None: any

  @classmethod
  def for_data(cls, modules: Sequence[str] = ()) -> Permissions:
    return cls([shipped_folder()], tuple(modules))

  def check_include(self, name: str, where: str) -> None:
    if self.modules is not None and (Path(name).is_absolute() or "://" in name or ".." in Path(name).parts):
      raise UserError(
        f"the model directory's configuration includes {name!r}, which is not one of t5like's gin files",
        file=where,
        try_="remove that line if the directory is yours; otherwise do not use it",
      )

  def check_import(self, module: str, where: str) -> None:
    parts = module.split(".")
    own = parts[0] == "t5like" and parts[-1] == "configurables"
    if self.modules is None or own or is_inside(module, self.modules):
      return
    raise UserError(
      f"the model directory's configuration imports {module!r}, which would run its code",
      file=where,
      try_=f"--task_modules={module}, if you trust that module",
    )


@dataclasses.dataclass(frozen=True)
class MacroReference:
  name: str


@dataclasses.dataclass(frozen=True)
class ConfigurableReference:
  name: str  # without scopes
  source: str  # as gin writes it: "@scope/name()"


class Recorder(config_parser.ParserDelegate):
  """Parses `%NAME` and `@name()` as plain records."""

  def macro(self, macro_name: str) -> MacroReference:
    return MacroReference(macro_name)

  def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> ConfigurableReference:
    source = f"@{scoped_configurable_name}{'()' if evaluate else ''}"
    return ConfigurableReference(scoped_configurable_name.split("/")[-1], source)


@dataclasses.dataclass(frozen=True)
class Binding:
  """`selector.parameter = value`, or `NAME = value` (a macro: parameter is empty)."""

  selector: str
  parameter: str
  value: Any
  where: str  # "models/t5/tiny.gin:12" or "--gin.BATCH_SIZE"
  scope: str = ""
  shipped: bool = False  # from a file in t5like's gin folder

  @property
  def is_macro(self) -> bool:
    return not self.parameter

  @property
  def macro_name(self) -> str:
    return f"{self.scope}/{self.selector}" if self.scope else self.selector

  @property
  def name(self) -> str:
    """As in a gin file: NAME, or scope/selector.parameter."""
    return self.macro_name if self.is_macro else f"{self.macro_name}.{self.parameter}"

  @property
  def target(self) -> tuple[str, str, str]:
    """What it sets: bindings with the same target replace each other."""
    return self.scope, self.selector, self.parameter

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


@dataclasses.dataclass(frozen=True)
class Import:
  """An import statement that has been executed."""

  source: str

  @property
  def module(self) -> str:
    return self.source.split()[1]  # of import MODULE, or from MODULE import NAME


Statement = Binding | Import


def read_text(
  text: str, where: str, permissions: Permissions, seen: tuple[str, ...] = (), shipped: bool = False
) -> list[Statement]:
  """Returns the statements of a gin text in order, with included files expanded in place."""
  found = []
  for statement, line in parsed(text, where):
    if isinstance(statement, config_parser.BindingStatement):
      scope, selector, parameter, value, _ = statement
      found.append(Binding(selector, parameter, value, line, scope, shipped))
    elif isinstance(statement, config_parser.IncludeStatement):
      permissions.check_include(statement.filename, line)
      found.extend(read_file(statement.filename, permissions, requested_by=line, seen=seen))
    elif isinstance(statement, config_parser.ImportStatement):
      permissions.check_import(statement.module, line)
      if error := explain_import(statement.module, line):
        raise error
      import_module(statement.module, line)
      found.append(Import(statement.format()))
  return found


def parsed(text: str, where: str) -> Iterator[tuple[Any, str]]:
  """Yields gin's statements, each with its location for messages."""
  statements, error = _parsed_once(text)
  for statement in statements:
    location = getattr(statement, "location", None)
    line = f"{where}:{location.line_num}" if location and not where.startswith("--") else where
    if isinstance(getattr(statement, "value", None), (list, dict, tuple)):  # callers may change it
      statement = statement._replace(value=copy.deepcopy(statement.value))
    yield statement, line
  if isinstance(error, SyntaxError):
    message = str(error.msg).strip().split("\n")[0]
    raise UserError(
      "gin syntax error", file=f"{where}:{error.lineno}", line=(error.text or "").strip(), because=message
    ) from None
  if isinstance(error, tokenize.TokenError):
    message, (line, _) = error.args
    raise UserError("gin syntax error", file=f"{where}:{line}", because=f"{message}: is a bracket open?") from None
  if error is not None:
    raise UserError(f"gin cannot parse {where}", because=str(error) or type(error).__name__) from None


@functools.lru_cache(maxsize=256)  # the runs of a sweep or a suite include the same files
def _parsed_once(text: str) -> tuple[list[Any], Exception | None]:
  """Returns gin's statements up to the first error, and that error."""
  statements = []
  try:
    statements.extend(config_parser.ConfigParser(io.StringIO(text), Recorder()))
  except (
    SyntaxError,
    tokenize.TokenError,
    ValueError,
    RecursionError,
    MemoryError,
  ) as error:  # unbalanced or deeply nested brackets
    return statements, error.with_traceback(None)
  return statements, None


def read_file(
  name: str, permissions: Permissions, requested_by: str = "--gin_file", seen: tuple[str, ...] = ()
) -> list[Statement]:
  path = find(name, permissions.folders, requested_by)
  if str(path) in seen:
    raise UserError("circular include of gin files", files=" -> ".join([*seen, str(path)]))
  shipped = not storage.is_remote(path) and path.resolve().is_relative_to(shipped_folder())
  return read_text(file_text(path), name, permissions, (*seen, str(path)), shipped)


def file_text(path: Path) -> str:
  """Returns the text of a gin file."""
  try:
    size = path.stat().st_size
    if size > _MAX_FILE_BYTES:
      raise UserError(f"the gin file {path} is too large: {size:,} bytes", expected=f"at most {_MAX_FILE_BYTES:,}")
    return path.read_text(encoding="utf-8")
  except (OSError, UnicodeDecodeError) as error:
    raise UserError(f"cannot read the gin file {path}", because=error) from None


def gin_source(statements: Sequence[Statement]) -> str:
  """Returns equivalent gin text without includes, for which gin would log an error per searched folder."""
  return "\n".join(s.source if isinstance(s, Import) else binding_source(s) for s in statements)


def binding_source(binding: Binding) -> str:
  scope = f"{binding.scope}/" if binding.scope else ""
  parameter = f".{binding.parameter}" if binding.parameter else ""
  return f"{scope}{binding.selector}{parameter} = {value_source(binding.value)}"


def value_source(value: Any) -> str:
  if isinstance(value, MacroReference):
    return f"%{value.name}"
  if isinstance(value, ConfigurableReference):
    return value.source
  if isinstance(value, dict):
    return "{" + ", ".join(f"{value_source(k)}: {value_source(v)}" for k, v in value.items()) + "}"
  if isinstance(value, list | tuple):
    inner = ", ".join(map(value_source, value))
    return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
  return {"inf": "1e999", "-inf": "-1e999"}.get(repr(value), repr(value))  # gin cannot parse a bare `inf`


def import_module(module: str, where: str) -> None:
  """Imports a module named in a gin file or option; it may register names for the following lines."""
  try:
    importlib.import_module(module)
  except ImportError as error:
    raise UserError(
      f"cannot import {module!r}", file=where, because=error, try_="run from its folder, or add that to PYTHONPATH"
    ) from None
  except (Exception, SystemExit) as error:
    raise UserError(f"importing {module!r} failed", file=where, because=f"{type(error).__name__}: {error}") from error


def parse_override_value(text: str) -> str:
  """Returns the gin source of a command-line value; anything but a literal becomes a string.

  `--gin.TASK=snli` and `--gin.MODEL_DIR=~/runs/x` need no inner quotes; numbers, lists, dicts,
  `@references()`, `%MACROS` and quoted strings keep their gin meaning.
  """
  words = {"true": "True", "false": "False", "none": "None"}
  if text.lower() in words:
    return words[text.lower()]
  if text.startswith(("@", "%")):
    return text
  try:
    parser = config_parser.ConfigParser(text, Recorder())
    parser.parse_value()
    if parser.current_token.string == "":
      return text
  except Exception:  # the tokenizer has several error types; all mean "not a literal"
    pass
  return repr(text)
