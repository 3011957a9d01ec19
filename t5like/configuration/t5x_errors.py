"""Errors for T5X users: a T5X name is answered with its t5like equivalent."""

from __future__ import annotations

from t5like.configuration.t5x_defaults import model_file, run_kind
from t5like.configuration.t5x_names import entries_of_configurable, lookup
from t5like.errors import UserError

_CONVERT = "t5like convert gin FILE translates a T5X gin file"
_PAGE = "gin/README.md, Coming from T5X"
# Modules that T5X's gin files import, and that are not needed in a gin file here.
_T5X_MODULES = ("t5x", "flaxformer", "seqio", "t5")


def explain_name(name: str, where: str) -> UserError | None:
  """Returns the error for a name of T5X that t5like does not have; None for any other name."""
  entry = lookup(name)
  if entry is None or entry.ours == name:
    return None
  ours = entry.ours.split(" ")[0]
  option = f"{ours}=..." if entry.is_option else f"--gin.{ours}=..." if ours else "remove it"
  return UserError(
    entry.answer,
    file=None if where.startswith("--") else where,
    note=entry.note if entry.ours else "",
    try_=option,
    see=f"{_PAGE}; {_CONVERT}",
  )


def explain_configurable(name: str, where: str) -> UserError | None:
  """Returns the error for a configurable of T5X, such as `utils.DatasetConfig`, or None."""
  entries = entries_of_configurable(name)
  if not entries:
    return None
  pairs = [f"{entry.theirs.split('.')[1]} -> {entry.ours}" for entry in entries if entry.ours]
  return UserError(
    f"{name!r} is a T5X configurable: its parameters have different names here",
    file=where,
    names=", ".join(pairs),
    see=f"{_PAGE}; {_CONVERT}",
  )


def explain_import(module: str, where: str) -> UserError | None:
  """Returns the error for an import of T5X's gin files; None for the user's modules."""
  if module.startswith("__gin__"):
    return UserError(
      "`from __gin__ import dynamic_registration` is T5X's way to register configurables",
      file=where,
      here="t5like registers its names itself: remove this line and the imports of t5x, seqio and __main__",
      try_=_CONVERT,
      see=_PAGE,
    )
  if module == "__main__" or module.split(".")[0] in _T5X_MODULES:
    tasks = module.startswith("t5.")
    return UserError(
      f"the gin file imports {module!r}, as in T5X: t5like does not need this import",
      file=where,
      here=f"register your tasks with TASK_MODULES = [{module!r}]" if tasks else "remove the line",
      try_=_CONVERT,
      see=_PAGE,
    )
  return None


def explain_include(name: str) -> str:
  """Returns what to include instead of a T5X file; '' for any other file."""
  if ours := model_file(name):
    return f"T5X's {name} is {ours} here"
  kind = run_kind(name) if name.startswith("t5x/") else None
  if kind in ("pretrain", "finetune"):
    return f"T5X's {name} is runs/{kind}.gin here"
  return f"T5X's {name} is the command `t5like {kind}` here" if kind else ""
