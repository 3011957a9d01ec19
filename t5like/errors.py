"""Errors that a user can fix: one readable block and an exit status, without a traceback."""

import ast
import contextlib
import difflib
import re
import sys
from collections.abc import Iterable, Iterator

_commands = 0  # running in this process, possibly in several threads; 0: the user's own Python


@contextlib.contextmanager
def command_line() -> Iterator[None]:
  """Within it, errors name settings as options of the command line: --gin.EPOCHS=2; else as in Python: EPOCHS=2."""
  global _commands
  _commands += 1
  try:
    yield
  finally:
    _commands -= 1


class UserError(Exception):
  """An error in what the user provided.

  `what` is the headline; each keyword argument becomes an aligned line below it. A trailing
  underscore allows labels that are Python keywords:

      raise UserError("24 heads cannot be split over 16 devices",
                      mesh="data=4 tensor=16", try_="--gin.MESH.tensor=8")

  prints

      error: 24 heads cannot be split over 16 devices
        mesh   data=4 tensor=16
        try    --gin.MESH.tensor=8
  """

  status = 2  # exit status of the command: nothing was started

  def __init__(self, what: str, **lines: object):
    super().__init__(what)
    self.what = what
    self.lines = {k.rstrip("_"): str(v) for k, v in lines.items() if v not in (None, "")}

  def render(self) -> str:
    """Returns the full message."""
    width = max((len(label) for label in self.lines), default=0)
    rows = [self.what]
    for label, text in self.lines.items():
      first, *rest = text.split("\n")
      rows.append(f"  {label:<{width}}  {first}")
      rows.extend(f"  {'':<{width}}  {line}" for line in rest)
    return for_caller("\n".join(rows))

  __str__ = render


def for_caller(text: str) -> str:
  """Returns a message in which settings are named as in the user's Python, unless a command is running."""
  return text if _commands else _OPTION.sub(_as_in_python, text)


# A dict may hold others. A plain value ends before punctuation of the sentence around it.
_DICT = r"\{(?:[^{}]|\{[^{}]*\})*\}"
_VALUE = rf"""\"[^"]*"|'[^']*'|{_DICT}|\[[^]]*\]|@[\w./]+(?:\(\))?|[^\s,;)]*[^\s,;:)]"""
_OPTION = re.compile(
  rf"(?P<command>\bt5like [a-z]+ .*)|"  # a line of the shell stays as it is
  rf"(?<![\w=-])--(?:gin\.(?P<name>[\w.]+)|gin_(?P<list>file|search_path)s?|(?P<plain>[a-z]\w*))(?:=(?P<value>{_VALUE}))?"
)


def _as_in_python(option: re.Match) -> str:
  """Writes an option as an argument: of `read_experiment` those of gin, of other functions the rest."""
  if option["command"]:
    return option["command"]
  lists = {"file": "files", "search_path": "search_paths"}
  name, value = option["name"] or option["plain"] or lists[option["list"]], option["value"]
  if value is None:
    return name
  value = value[1:-1] if value[0] == value[-1] == '"' else value  # of the shell
  try:
    ast.literal_eval(value)
  except (ValueError, SyntaxError):
    value = f'"{value}"'
  return f"{name}=[{value}]" if option["list"] else f"{name}={value}"


# The environment variable of a file for the error of a command that another one has started, which reports it.
ERROR_FILE = "T5LIKE_ERROR_FILE"


class RunError(UserError):
  """A running job failed. Its checkpoints are kept."""

  status = 1


class InvalidSetting(UserError):
  """A setting has an invalid value. The message starts with the setting's name."""

  def as_option(self) -> UserError:
    """Returns the same error with the setting as a command-line option."""
    return UserError(f"--{self.what}", **self.lines)


def is_integer(value: object) -> bool:
  """Returns whether a setting is an integer; to Python, True is one, too."""
  return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool)


def is_finite(value: object) -> bool:
  """Returns whether a setting is a number that a float can hold."""
  return is_number(value) and abs(value) <= sys.float_info.max


def nearest(name: object, candidates: Iterable[str], count: int = 3) -> str:
  """Returns the valid names closest to `name`, joined for an error line; '' if none is close."""
  by_folded = {c.casefold(): c for c in candidates}
  close = difflib.get_close_matches(str(name).casefold(), by_folded, n=count, cutoff=0.6)
  return ", ".join(by_folded[c] for c in close)


def in_columns(names: Iterable[str]) -> str:
  """Formats names in aligned columns, from left to right, in lines of about 100 characters."""
  names = list(names)
  column = max(map(len, names), default=0) + 2
  each = max(100 // column, 1)
  lines = (names[first : first + each] for first in range(0, len(names), each))
  return "\n".join("".join(f"{name:<{column}}" for name in line).rstrip() for line in lines)
