"""Checks gin files and command-line overrides and loads them into gin."""

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gin

from t5like.configuration.checks import (
  check_macros,
  check_names,
  check_own_names,
  check_scopes,
  drop_unset_macros,
  registered,
  with_short_names,
)
from t5like.configuration.renamed import replace_old_names
from t5like.configuration.search_path import search_path
from t5like.configuration.statements import (
  Binding,
  Import,
  MacroReference,
  Permissions,
  Statement,
  gin_source,
  parse_override_value,
  read_file,
  read_text,
)
from t5like.configuration.value_types import check_values
from t5like.errors import UserError
from t5like.files.module_files import is_inside


def load(
  files: Sequence[str],
  overrides: Sequence[tuple[str, str]] = (),
  search_paths: Sequence[str] = (),
) -> None:
  """Makes `files`, then `overrides` (pairs of name and text), the current gin configuration.

  The `configurables` modules with the names that the files use must be imported before. Raises UserError for a missing
  file, an unknown name, an unused or missing macro, or a value of the wrong type.
  """
  statements = _read(files, overrides, search_paths)
  imported = (s.module for s in statements if isinstance(s, Import))  # code of the user's may use any scope
  _activate(statements, all_scopes=all(is_inside(module, ("t5like",)) for module in imported))


def _read(files: Sequence[str], overrides: Sequence[tuple[str, str]], search_paths: Sequence[str]) -> list[Statement]:
  permissions = Permissions(search_path(search_paths))
  with gin.unlock_config():  # imports in files may register more names, even after an earlier configuration was loaded
    statements = [s for name in files for s in read_file(name, permissions)]
    for name, text in overrides:
      statements += read_text(f"{name} = {parse_override_value(text)}", f"--gin.{name}", permissions)
  return statements


def read_parameters(
  selector: str,
  files: Sequence[str],
  overrides: Sequence[tuple[str, str]] = (),
  search_paths: Sequence[str] = (),
) -> dict[str, Any]:
  """Returns the values that files and overrides bind to a configurable, following macros; loads and checks nothing."""
  bindings = [s for s in _read(files, overrides, search_paths) if isinstance(s, Binding)]
  macros = {b.macro_name: b.value for b in bindings if b.is_macro}
  found = {b.parameter: b.value for b in bindings if b.selector == selector and not b.is_macro}
  for name, value in found.items():
    while isinstance(value, MacroReference) and value.name in macros:
      value = macros.pop(value.name)  # a circular macro ends, and is reported when the files are loaded
    found[name] = value
  return found


def load_data(config: Path, modules: Sequence[str] = ()) -> None:
  """Makes the config.gin of a model directory the current gin configuration.

  Unlike `load`, it treats the file as untrusted data: it runs no code except `modules`, which the user named (see
  `Permissions`).
  """
  permissions = Permissions.for_data(modules)
  with gin.unlock_config():
    statements = read_file(str(config), permissions)
  check_own_names([s for s in statements if isinstance(s, Binding)], modules)
  _activate(statements)


def _activate(statements: Sequence[Statement], all_scopes: bool = False) -> None:
  """Checks statements and makes them current; with `all_scopes` also that no scope is unused."""
  statements = with_short_names(replace_old_names(statements))
  bindings = [s for s in statements if isinstance(s, Binding)]
  check_names(bindings)
  if all_scopes:
    check_scopes(bindings)
  statements = drop_unset_macros(statements)
  bindings = [s for s in statements if isinstance(s, Binding)]
  check_macros(bindings)
  check_values(bindings, registered())
  gin.clear_config()
  with gin.unlock_config():
    gin.parse_config(gin_source(statements))
  gin.finalize()


# As Python says it.
_MISSING = re.compile(r"(\w+)(?:\.__init__)?\(\) missing \d+ required (?:positional|keyword-only) arguments?: (.*)")


class NotConfigured(UserError):
  """A configurable lacks parameters that nothing sets."""


def build(name: str) -> object:
  """Calls the configurable `name` with its configured parameters."""
  target = registered()[name]
  bound = gin.get_bindings(name, resolve_references=False)
  missing = [
    p.name
    for p in inspect.signature(target).parameters.values()
    if p.default is p.empty and p.kind is not p.VAR_KEYWORD and p.name not in bound
  ]
  if missing:
    raise NotConfigured(
      f"{name!r} is not configured: {', '.join(missing)} missing",
      try_="--gin_file=runs/pretrain.gin, or another file in gin/runs",
    )
  try:
    return gin.get_configurable(name)()
  except UserError as error:
    raise _without_call_stack(error) from error.__cause__
  except (TypeError, ValueError) as error:  # building only assembles what was configured
    what, *called = str(error).strip().split("\n")  # gin appends the configurable
    if missing := _MISSING.search(what):
      called, needed = missing[1], re.findall(r"'(\w+)'", missing[2])
      raise UserError(
        f"{called} needs {' and '.join(needed)}", try_=" ".join(f"--gin.{called}.{name}=..." for name in needed)
      ) from error
    raise UserError(
      f"invalid configuration: {what}",
      where=re.sub(r" \(<.*?>\)", "", called[-1]).strip() if called else None,
      try_="--verbose to see the line; the parameters of an optimizer or schedule are set in its file in gin/",
    ) from error


def _without_call_stack(error: UserError) -> UserError:
  """Returns an error without the call stack that gin appends to the text of exceptions that pass through it."""
  kind = next(k for k in type(error).__mro__ if "__getattr__" not in vars(k))  # not one of gin's proxies
  found = kind.__new__(kind, error.what)
  found.__dict__ |= {"what": error.what, "lines": error.lines}
  return found


def resolved_config() -> str:
  """Returns all bindings as given, macros included."""
  return gin.config_str(max_line_length=100)


def operative_config() -> str:
  """Returns the values in use, defaults included: enough to rerun without the original files."""
  return gin.operative_config_str(max_line_length=100)
