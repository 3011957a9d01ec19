"""Loads gin files and command-line overrides into gin, or says what is wrong with them."""

import inspect
import re
from collections.abc import Sequence
from pathlib import Path

import gin

from t5like.configuration.checks import check_macros, check_names, check_own_names, registered, without_open_macros
from t5like.configuration.renamed import with_new_names
from t5like.configuration.search_path import search_path
from t5like.configuration.statements import (
  Binding,
  Permissions,
  Statement,
  gin_source,
  parse_override_value,
  read_file,
  read_text,
)
from t5like.configuration.value_types import check_values
from t5like.errors import UserError


def load(
  files: Sequence[str],
  overrides: Sequence[tuple[str, str]] = (),
  search_paths: Sequence[str] = (),
) -> None:
  """Makes `files` and then `overrides` (pairs of name and text) the current gin configuration.

  The rooms whose names the files use must have been registered (their `configurables` modules
  imported). Raises UserError for a missing file, an unknown name, an unused or missing macro, a value that cannot
  be what its parameter takes.
  """
  permissions = Permissions(search_path(search_paths))
  with gin.unlock_config():  # what files import may register more names, after a configuration before this one too
    statements = [s for name in files for s in read_file(name, permissions)]
    for name, text in overrides:
      statements += read_text(f"{name} = {parse_override_value(text)}", f"--gin.{name}", permissions)
  _activate(statements)


def load_data(config: Path, modules: Sequence[str] = ()) -> None:
  """Makes the config.gin of a model directory the current gin configuration.

  Unlike `load`, it takes the file for data that somebody else may have written: it runs no code but that of
  `modules`, which the user named (see `Permissions`).
  """
  permissions = Permissions.of_data(modules)
  with gin.unlock_config():
    statements = read_file(str(config), permissions)
  check_own_names([s for s in statements if isinstance(s, Binding)], modules)
  _activate(statements)


def _activate(statements: Sequence[Statement]) -> None:
  statements = with_new_names(statements)
  bindings = [s for s in statements if isinstance(s, Binding)]
  check_names(bindings)
  statements = without_open_macros(statements)
  bindings = [s for s in statements if isinstance(s, Binding)]
  check_macros(bindings)
  check_values(bindings, registered())
  gin.clear_config()
  with gin.unlock_config():
    gin.parse_config(gin_source(statements))
  gin.finalize()


def build(name: str) -> object:
  """Calls the configurable `name` with the parameters the configuration gives it."""
  target = registered()[name]
  bound = gin.get_bindings(name, resolve_references=False)
  missing = [
    p.name
    for p in inspect.signature(target).parameters.values()
    if p.default is p.empty and p.kind is not p.VAR_KEYWORD and p.name not in bound
  ]
  if missing:
    raise UserError(
      f"{name!r} is not configured: nothing sets {', '.join(missing)}",
      try_="--gin_file=runs/pretrain.gin (or another file of gin/runs) binds them",
    )
  try:
    return gin.get_configurable(name)()
  except (TypeError, ValueError) as error:  # building only puts together what was configured
    what, *called = str(error).strip().split("\n")  # gin adds who was called
    raise UserError(
      f"the configuration cannot be built: {what}",
      where=re.sub(r" \(<.*?>\)", "", called[-1]).strip() if called else None,
      try_="--verbose, which shows the line; what an optimizer or a schedule needs is bound in its file of gin/",
    ) from error


def resolved_config() -> str:
  """All bindings as given, macros included."""
  return gin.config_str(max_line_length=100)


def operative_config() -> str:
  """What was really used, defaults included: enough to run again without the files it came from."""
  return gin.operative_config_str(max_line_length=100)
