#!/usr/bin/env python3
"""Find the local files that a t5like command needs on the workers, for the launch scripts.

usage: files_of_command.py [--with=PATH]... [--tar=FILE] [--limit=BYTES] [--too_large=ADVICE] [--shared] -- t5like ...

Prints one path per line, relative to the current folder: the user's gin files (not those of the t5like package), the
gin files they include, the Python modules of TASK_MODULES, of --task_modules and of gin's `import` lines, the local
modules that those import, and the paths of --with. URLs such as gs:// are read directly by the workers. Files that
cannot have the same relative path on a worker are rejected: missing files, absolute paths, and paths with `..`.

options:
  --with=PATH         another file or folder to send; may be repeated
  --tar=FILE          also write the files to this tar file (default: none)
  --limit=BYTES       maximum total size of the files (default: no limit)
  --too_large=ADVICE  advice for the error message if they are larger
  --shared            the workers share this file system: any existing path is accepted; folders are not expanded
  --help              print this text

example: files_of_command.py -- t5like train --gin_file=my_run.gin --gin.TASK_MODULES="['my_tasks']"

Needs only the standard library of Python 3.8 or newer: t5like need not be installed where a job is launched.
"""

from __future__ import annotations

import ast
import difflib
import glob
import io
import os
import re
import sys
import tarfile
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

SHIPPED = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "gin")
BAD_INPUT = 2
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_NOT_SENT = {"__pycache__", ".git", ".venv", ".ipynb_checkpoints"}
# argparse accepts unambiguous prefixes of options; these are the shortest.
_OPTIONS = {"--gin_file": "--gin_f", "--gin_search_paths": "--gin_s", "--task_modules": "--task_"}
# Macros with paths of data, which are not sent unless --with includes them.
_DATA = ("CACHE_DIR", "CORPUS_FILES", "INIT_FROM", "RESTORE_FROM")
_SKIPPED_TOKENS = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


class InvalidCommand(Exception):
  """Raised for a command that would fail on the workers, with labeled lines such as ("try", "...")."""

  def __init__(self, what: str, *lines: tuple[str, str]):
    super().__init__(what)
    self.lines = lines


class Command(NamedTuple):
  """The options of a t5like command that refer to files, modules and folders."""

  gin_files: list[str]
  search_paths: list[str]
  task_modules: list[str]
  overrides: list[tuple[str, str]]


def read_command(words: list[str]) -> Command:
  command = Command([], [], [], [])
  given = {"--gin_file": command.gin_files}
  separated = {"--gin_search_paths": command.search_paths, "--task_modules": command.task_modules}
  pending = iter(words)
  for word in pending:
    flag, equals, value = word.partition("=")
    name = next((n for n, first in _OPTIONS.items() if flag.startswith(first) and n.startswith(flag)), None)
    if name is None and not flag.startswith("--gin."):
      continue
    if not equals:
      value = next(pending, "")
    if not value and not equals:
      raise InvalidCommand(f"{word} has no value", ("expected", f"{word}=..."))
    if name is None:
      command.overrides.append((flag[len("--gin.") :], value))
    elif name in given:
      given[name].append(value)
    else:
      separated[name] += [part for part in value.split(",") if part]
  return command


def gin_lines(text: str, where: str) -> Iterator[list[tokenize.TokenInfo]]:
  """Yields the tokens of each statement, with Python's tokenizer, as gin does."""
  line = []
  try:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
      if token.type == tokenize.NEWLINE:
        yield line
        line = []
      elif token.type not in _SKIPPED_TOKENS and token.string.strip():
        line.append(token)
  except (tokenize.TokenError, SyntaxError) as error:
    raise InvalidCommand(f"cannot read the gin file {where}", ("because", str(error))) from None


def strings_of(tokens: list[tokenize.TokenInfo]) -> list[str]:
  strings = [token.string for token in tokens if token.type == tokenize.STRING]
  return [ast.literal_eval(string) for string in strings if string[0] in "'\"rRuU"]


class Finder:
  """Collects the paths to send in `paths`: files, and folders that are sent completely."""

  def __init__(self, search_paths: list[str], shared: bool):
    self.paths: dict[str, None] = {}  # an ordered set
    self._folders = ["", *search_paths, SHIPPED]
    self._shared = shared
    self._bindings: dict[str, list[tokenize.TokenInfo]] = {}
    self._bound_by_user: set[str] = set()
    self._seen: set[str] = set()

  def add_path(self, given: str, option: str) -> None:
    path = self._relative_path(given, option)
    if not os.path.exists(path):
      raise InvalidCommand(f"no file or folder {given}", ("option", option), ("folder", os.getcwd()))
    self._add(path)

  def add_gin_file(self, name: str, option: str = "--gin_file=") -> None:
    """Adds a gin file and its includes; files of the t5like package are read but not sent."""
    if _SCHEME.match(name):
      return
    path = self._find_gin_file(name, option)
    if path in self._seen:
      return
    self._seen.add(path)
    shipped = path.startswith(SHIPPED + os.sep)
    if not shipped:
      self._add(path)
    try:
      with open(path, encoding="utf-8") as file:
        text = file.read()
    except (OSError, UnicodeDecodeError) as error:
      raise InvalidCommand(f"cannot read the gin file {path}", ("because", str(error))) from None
    for tokens in gin_lines(text, path):
      self._read_statement(tokens, name, shipped)

  def add_override(self, name: str, text: str) -> None:
    """Adds a --gin.NAME=TEXT; as in t5like, a text without quotes or brackets is a string."""
    source = text if re.search(r"[][(){}'\"%]", text) else repr(text)
    try:
      self._read_statement(next(gin_lines(f"{name} = {source}\n", name), []), "the command", shipped=False)
    except InvalidCommand:
      return  # t5like will report it

  def add_task_modules(self, named: list[str]) -> None:
    bound = [name for name in self._bindings if re.search(r"(^|[./])(TASK_MODULES|task_modules)$", name)]
    for module in [*named, *(module for name in bound for module in self._value(name))]:
      self.add_module(module, "TASK_MODULES")

  def add_module(self, module: str, source: str) -> None:
    top, path = module.split(".")[0], module.replace(".", os.sep)
    if top == "t5like":
      return
    exists = os.path.isdir(path) or glob.glob(f"{glob.escape(path)}.*")
    if exists and self._add_local_module(module):
      return
    if os.path.isfile(f"{top}.py") or os.path.isfile(os.path.join(top, "__init__.py")):
      raise InvalidCommand(f"no module {module}: {top} is in this folder, {path}.py is not", ("source", source))
    note(f"module {module} ({source}) is not in {os.getcwd()}: it must be installed on the workers")

  def note_local_data(self) -> None:
    """Prints a note for local data of the command that is not sent."""
    for name in _DATA:
      for value in self._value(name) if name in self._bound_by_user else ():
        path = os.path.normpath(os.path.expanduser(value))
        covered = [sent for sent in self.paths if f"{path}/".startswith(f"{sent}/")]
        if not _SCHEME.match(value) and not covered and glob.glob(path):
          advice = "use a bucket (gs://...)" + ("" if os.path.isabs(path) else f" or --with={value}")
          note(f"{name}: {value} is not sent; each worker uses its own folder of that name: {advice}")

  def _read_statement(self, tokens: list[tokenize.TokenInfo], where: str, shipped: bool) -> None:
    words = [token.string for token in tokens]
    if len(words) > 1 and words[0] == "include":
      for name in strings_of(tokens[1:2]):
        self.add_gin_file(name, f"include in {where}: ")
    elif len(words) > 1 and words[0] in ("import", "from") and words[1] != "=":
      parts = []
      for word in words[1:]:
        if word in ("as", "import"):
          break
        parts.append(word)
      self.add_module("".join(parts), f"import in {where}")
    elif "=" in words:
      name = "".join(words[: words.index("=")])
      self._bindings[name] = tokens[words.index("=") + 1 :]
      (self._bound_by_user.discard if shipped else self._bound_by_user.add)(name)

  def _value(self, name: str, seen: tuple[str, ...] = ()) -> list[str]:
    """Returns the strings of a binding, with %MACROS resolved."""
    tokens = self._bindings.get(name, [])
    found = strings_of(tokens)
    for percent, macro in zip(tokens, tokens[1:]):  # noqa: B905  # Python 3.8
      if percent.string == "%" and macro.string not in seen:
        found += self._value(macro.string, (*seen, name))
    return found

  def _find_gin_file(self, name: str, option: str) -> str:
    name = self._relative_path(name, option)
    for folder in self._folders:
      path = os.path.join(os.path.expanduser(folder), name)
      if os.path.isfile(path):
        return path if folder == SHIPPED else self._relative_path(path, option)
    here = glob.glob("*.gin") + glob.glob("*/*.gin")
    shipped = [os.path.relpath(p, SHIPPED) for p in glob.glob(os.path.join(SHIPPED, "**/*.gin"), recursive=True)]
    lines = [("source", f"{option}{name}"), ("searched", ", ".join(f or os.getcwd() for f in self._folders))]
    nearest = difflib.get_close_matches(name, here + shipped, 1, 0.5)
    raise InvalidCommand(f"no gin file {name}", *lines, *[("nearest", match) for match in nearest])

  def _relative_path(self, given: str, option: str) -> str:
    """Returns the path that a file has both here and on a worker."""
    path = os.path.expanduser(given)
    if self._shared or not (os.path.isabs(path) or ".." in path.split("/")):
      return os.path.normpath(path)
    name = os.path.basename(path)
    advice = f"run from its folder: cd {os.path.dirname(os.path.abspath(path))}, then {option}{name}"
    for folder in (os.getcwd(), SHIPPED):
      inside = os.path.relpath(os.path.realpath(path), os.path.realpath(folder))
      if not inside.startswith(".."):
        advice = f"{option}{inside}"
        break
    raise InvalidCommand(
      f"{given} would not be found on the workers: only paths relative to the current folder are sent",
      ("source", f"{option}{given}"),
      ("try", advice),
      ("or", f"copy it to a bucket and use gs://BUCKET/{name}"),
    )

  def _add_local_module(self, module: str) -> bool:
    """Adds a local module: its file, or its outermost package. Returns False if there is none."""
    path, parts = "", module.split(".")
    for number, part in enumerate(parts, 1):
      path = os.path.join(path, part)
      if os.path.isfile(os.path.join(path, "__init__.py")):
        found = path
      elif os.path.isfile(f"{path}.py") and number == len(parts):
        found = f"{path}.py"
      else:
        continue  # possibly a namespace package, of which only the given module is sent
      self._add(found)
      for source in files_in(found):
        if source.endswith(".py"):
          self._follow_imports(source)
      return True
    return False

  def _follow_imports(self, path: str) -> None:
    if path in self._seen:
      return
    self._seen.add(path)
    try:
      with open(path, "rb") as file:
        tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
      return  # a newer Python may be able to parse it
    for node in ast.walk(tree):
      if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
      elif isinstance(node, ast.ImportFrom):
        folders = path.split(os.sep)[: -node.level] if node.level else []
        base = ".".join([*folders, *([node.module] if node.module else [])])
        names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
      else:
        continue
      for name in names:
        if name and not name.startswith("t5like"):
          self._add_local_module(name)

  def _add(self, path: str) -> None:
    if "\n" in path:
      raise InvalidCommand(f"file name with a line break: {path!r}", ("try", "rename the file"))
    self.paths[path] = None


def files_in(path: str) -> list[str]:
  """Returns the files of a folder, without caches and version control; or a file itself."""
  if not os.path.isdir(path):
    return [path]
  found, seen = [], set()
  for folder, folders, names in os.walk(path, followlinks=True):
    folders[:] = sorted(set(folders) - _NOT_SENT)
    if os.path.realpath(folder) in seen:  # circular links
      folders[:] = []
      continue
    seen.add(os.path.realpath(folder))
    paths = (os.path.normpath(os.path.join(folder, name)) for name in sorted(names) if not name.endswith(".pyc"))
    found += [p for p in paths if os.path.isfile(p)]
  return found


def expand_folders(paths: list[str]) -> list[str]:
  files: dict[str, None] = {}
  for path in paths:
    found = files_in(path)
    if not found:
      raise InvalidCommand(f"the folder {path} has no files")
    files.update(dict.fromkeys(found))
  for path in files:
    if "\n" in path:
      raise InvalidCommand(f"file name with a line break: {path!r}", ("try", "rename the file"))
    if not os.access(path, os.R_OK):
      raise InvalidCommand(f"cannot read {path}", ("because", "permission denied"))
  return sorted(files)


def check_size(files: list[str], limit: int, advice: str) -> None:
  sizes = {path: os.path.getsize(path) for path in files}
  if sum(sizes.values()) > limit:
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]
    raise InvalidCommand(
      f"the files to send are too large: {sum(sizes.values()):,} bytes (at most {limit:,})",
      ("largest", ", ".join(f"{path} ({sizes[path]:,})" for path in largest)),
      ("try", advice or "put the large ones into a bucket (gs://...)"),
    )


def write_tar(files: list[str], target: str) -> None:
  """Writes a reproducible tar file, without owners, times and permissions other than execution."""
  with tarfile.open(target, "w", format=tarfile.GNU_FORMAT, dereference=True) as archive:
    for path in files:
      entry = tarfile.TarInfo(path)
      entry.size = os.path.getsize(path)
      entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
      with open(path, "rb") as file:
        archive.addfile(entry, file)


def note(text: str) -> None:
  print(f"note: {text}", file=sys.stderr)


def find(words: list[str]) -> list[str]:
  own, command = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
  if not command:
    raise InvalidCommand("missing command after --", ("try", "files_of_command.py -- t5like train --gin_file=..."))
  extra, settings = [], {"--tar": "", "--limit": "", "--too_large": "", "--shared": ""}
  for word in own:
    name, equals, value = word.partition("=")
    if name == "--with" and value:
      extra.append(value)
    elif name in settings and bool(equals) == (name != "--shared"):
      settings[name] = value or "yes"
    else:
      raise InvalidCommand(f"invalid option: {word}", ("try", "files_of_command.py --help"))
  shared = bool(settings["--shared"])
  given = read_command(command)
  finder = Finder(given.search_paths, shared)
  for name in given.gin_files:
    finder.add_gin_file(name)
  for name, text in given.overrides:
    finder.add_override(name, text)
  finder.add_task_modules(given.task_modules)
  for path in extra:
    finder.add_path(path, "--with=")
  if shared:
    return list(finder.paths)
  finder.note_local_data()
  files = expand_folders(list(finder.paths))
  if settings["--limit"]:
    check_size(files, int(settings["--limit"]), settings["--too_large"])
  if settings["--tar"]:
    write_tar(files, settings["--tar"])
  return files


def main(words: list[str]) -> int:
  if words[:1] in (["-h"], ["--help"]):
    print(__doc__.strip())
    return 0
  try:
    found = find(words)
  except (InvalidCommand, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    for key, value in getattr(error, "lines", ()):
      print(f"  {key:<8} {value}", file=sys.stderr)
    return BAD_INPUT
  sys.stdout.flush()
  sys.stdout.buffer.write(b"".join(os.fsencode(path) + b"\n" for path in found))
  return 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
