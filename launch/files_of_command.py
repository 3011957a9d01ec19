#!/usr/bin/env python3
"""Find the local files that a t5like command needs on the workers. The launch scripts call this before they start.

usage: files_of_command.py [--with=PATH]... [--tar=FILE] [--limit=BYTES] [--too_large=ADVICE] [--shared] -- t5like ...

Prints one path a line, relative to the current folder: the user's gin files (not those that ship with t5like), the
gin files they include, the Python modules of TASK_MODULES, of --task_modules and of gin's `import` lines, the modules
of this folder that those import, and what --with names. Addresses such as gs:// are read on the workers as they are.
A file that cannot have the same relative path on a worker is refused: one that does not exist, has an absolute path,
or has a path with `..`.

options:
  --with=PATH         another file or folder to send; may be repeated
  --tar=FILE          also write the files to this tar file (default: none)
  --limit=BYTES       refuse files that are larger than this in sum (default: no limit)
  --too_large=ADVICE  what to do about it, for the error message
  --shared            the workers share this file system: any path is accepted if it exists; folders are not expanded
  --help              print this text

example: files_of_command.py -- t5like train --gin_file=my_run.gin --gin.TASK_MODULES="['my_tasks']"

Only the standard library is used, of Python 3.8 or newer: t5like need not be installed where a job is launched.
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
# argparse accepts the beginning of an option's name, here from these letters on.
_OPTIONS = {"--gin_file": "--gin_f", "--gin_search_paths": "--gin_s", "--task_modules": "--task_"}
# Macros that name local data: it is read on the workers, and is not sent unless --with names it.
_DATA = ("CACHE_DIR", "CORPUS_FILES", "INIT_FROM", "RESTORE_FROM")
_SKIPPED_TOKENS = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


class Refused(Exception):
  """A command that would fail on the workers: what is wrong, and lines such as ("try", "...")."""

  def __init__(self, what: str, *lines: tuple[str, str]):
    super().__init__(what)
    self.lines = lines


class Command(NamedTuple):
  """The options of a t5like command that name files, modules and folders."""

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
      raise Refused(f"{word} has no value", ("expected", f"{word}=..."))
    if name is None:
      command.overrides.append((flag[len("--gin.") :], value))
    elif name in given:
      given[name].append(value)
    else:
      separated[name] += [part for part in value.split(",") if part]
  return command


def gin_lines(text: str, where: str) -> Iterator[list[tokenize.TokenInfo]]:
  """Yields the tokens of each statement. Gin reads its files with Python's tokenizer too."""
  line = []
  try:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
      if token.type == tokenize.NEWLINE:
        yield line
        line = []
      elif token.type not in _SKIPPED_TOKENS and token.string.strip():
        line.append(token)
  except (tokenize.TokenError, SyntaxError) as error:
    raise Refused(f"cannot read the gin file {where}", ("because", str(error))) from None


def strings_of(tokens: list[tokenize.TokenInfo]) -> list[str]:
  strings = [token.string for token in tokens if token.type == tokenize.STRING]
  return [ast.literal_eval(string) for string in strings if string[0] in "'\"rRuU"]


class Finder:
  """Collects the paths to send. `paths` has files, or folders of which everything is sent."""

  def __init__(self, search_paths: list[str], shared: bool):
    self.paths: dict[str, None] = {}  # in the order in which they were found
    self._folders = ["", *search_paths, SHIPPED]
    self._shared = shared
    self._bindings: dict[str, list[tokenize.TokenInfo]] = {}
    self._bound_by_user: set[str] = set()
    self._seen: set[str] = set()

  def add_path(self, given: str, option: str) -> None:
    path = self._place(given, option)
    if not os.path.exists(path):
      raise Refused(f"no file or folder {given}", ("option", option), ("folder", os.getcwd()))
    self._add(path)

  def add_gin_file(self, name: str, option: str = "--gin_file=") -> None:
    """Adds a gin file and what it includes; the statements of a shipped one count, but it is not sent."""
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
      raise Refused(f"cannot read the gin file {path}", ("because", str(error))) from None
    for tokens in gin_lines(text, path):
      self._read_statement(tokens, name, shipped)

  def add_override(self, name: str, text: str) -> None:
    """Adds a --gin.NAME=TEXT. As for t5like, a text without quotes or brackets is a string."""
    source = text if re.search(r"[][(){}'\"%]", text) else repr(text)
    try:
      self._read_statement(next(gin_lines(f"{name} = {source}\n", name), []), "the command", shipped=False)
    except Refused:
      return  # t5like explains it

  def add_task_modules(self, named: list[str]) -> None:
    bound = [name for name in self._bindings if re.search(r"(^|[./])(TASK_MODULES|task_modules)$", name)]
    for module in [*named, *(module for name in bound for module in self._value(name))]:
      self.add_module(module, "TASK_MODULES")

  def add_module(self, module: str, asked_by: str) -> None:
    top, path = module.split(".")[0], module.replace(".", os.sep)
    if top == "t5like":
      return
    exists = os.path.isdir(path) or glob.glob(f"{glob.escape(path)}.*")
    if exists and self._add_local_module(module):
      return
    if os.path.isfile(f"{top}.py") or os.path.isfile(os.path.join(top, "__init__.py")):
      raise Refused(f"no module {module}: {top} is in this folder, {path}.py is not", ("asked by", asked_by))
    note(f"module {module} ({asked_by}) is not in {os.getcwd()}: it must be installed on the workers")

  def note_local_data(self) -> None:
    """Names folders that exist here, are given to the command, and are not sent."""
    for name in _DATA:
      for value in self._value(name) if name in self._bound_by_user else ():
        path = os.path.normpath(os.path.expanduser(value))
        covered = [sent for sent in self.paths if f"{path}/".startswith(f"{sent}/")]
        if not _SCHEME.match(value) and not covered and glob.glob(path):
          advice = "use a bucket (gs://...)" + ("" if os.path.isabs(path) else f" or --with={value}")
          note(f"{name}: {value} is not sent, and each worker uses a folder of its own: {advice}")

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
    """The strings of a binding; %MACROS in it are looked up."""
    tokens = self._bindings.get(name, [])
    found = strings_of(tokens)
    for percent, macro in zip(tokens, tokens[1:]):  # noqa: B905  # Python 3.8
      if percent.string == "%" and macro.string not in seen:
        found += self._value(macro.string, (*seen, name))
    return found

  def _find_gin_file(self, name: str, option: str) -> str:
    name = self._place(name, option)
    for folder in self._folders:
      path = os.path.join(os.path.expanduser(folder), name)
      if os.path.isfile(path):
        return path if folder == SHIPPED else self._place(path, option)
    here = glob.glob("*.gin") + glob.glob("*/*.gin")
    shipped = [os.path.relpath(p, SHIPPED) for p in glob.glob(os.path.join(SHIPPED, "**/*.gin"), recursive=True)]
    lines = [("asked by", f"{option}{name}"), ("searched", ", ".join(f or os.getcwd() for f in self._folders))]
    nearest = difflib.get_close_matches(name, here + shipped, 1, 0.5)
    raise Refused(f"no gin file {name}", *lines, *[("nearest", match) for match in nearest])

  def _place(self, given: str, option: str) -> str:
    """The path that `given` has here and on a worker."""
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
    raise Refused(
      f"{given} would not be found on the workers: they get files with paths relative to the current folder",
      ("asked by", f"{option}{given}"),
      ("try", advice),
      ("or", f"copy it to a bucket, and name it there: gs://BUCKET/{name}"),
    )

  def _add_local_module(self, module: str) -> bool:
    """Adds a module of this folder: its file, or its outermost package. False if there is none."""
    path, parts = "", module.split(".")
    for number, part in enumerate(parts, 1):
      path = os.path.join(path, part)
      if os.path.isfile(os.path.join(path, "__init__.py")):
        found = path
      elif os.path.isfile(f"{path}.py") and number == len(parts):
        found = f"{path}.py"
      else:
        continue  # perhaps a package without __init__.py, of which only the named module is sent
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
      return  # a newer Python may read it
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
      raise Refused(f"a file name has a line break: {path!r}", ("try", "another name"))
    self.paths[path] = None


def files_in(path: str) -> list[str]:
  """The files of a folder, without caches and version control; a file itself."""
  if not os.path.isdir(path):
    return [path]
  found, seen = [], set()
  for folder, folders, names in os.walk(path, followlinks=True):
    folders[:] = sorted(set(folders) - _NOT_SENT)
    if os.path.realpath(folder) in seen:  # links in a circle
      folders[:] = []
      continue
    seen.add(os.path.realpath(folder))
    paths = (os.path.normpath(os.path.join(folder, name)) for name in sorted(names) if not name.endswith(".pyc"))
    found += [p for p in paths if os.path.isfile(p)]
  return found


def expanded(paths: list[str]) -> list[str]:
  files: dict[str, None] = {}
  for path in paths:
    found = files_in(path)
    if not found:
      raise Refused(f"the folder {path} has no files")
    files.update(dict.fromkeys(found))
  for path in files:
    if "\n" in path:
      raise Refused(f"a file name has a line break: {path!r}", ("try", "another name"))
    if not os.access(path, os.R_OK):
      raise Refused(f"cannot read {path}", ("because", "permission denied"))
  return sorted(files)


def check_size(files: list[str], limit: int, advice: str) -> None:
  sizes = {path: os.path.getsize(path) for path in files}
  if sum(sizes.values()) > limit:
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]
    raise Refused(
      f"the files to send are too large: {sum(sizes.values()):,} bytes (at most {limit:,})",
      ("largest", ", ".join(f"{path} ({sizes[path]:,})" for path in largest)),
      ("try", advice or "put the large ones into a bucket (gs://...)"),
    )


def write_tar(files: list[str], target: str) -> None:
  """The same files give the same bytes: owner, permissions of others and times are left out."""
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
    raise Refused("missing: the command after --", ("try", "files_of_command.py -- t5like train --gin_file=..."))
  extra, settings = [], {"--tar": "", "--limit": "", "--too_large": "", "--shared": ""}
  for word in own:
    name, equals, value = word.partition("=")
    if name == "--with" and value:
      extra.append(value)
    elif name in settings and bool(equals) == (name != "--shared"):
      settings[name] = value or "yes"
    else:
      raise Refused(f"invalid option: {word}", ("try", "files_of_command.py --help"))
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
  files = expanded(list(finder.paths))
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
  except (Refused, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    for key, value in getattr(error, "lines", ()):
      print(f"  {key:<8} {value}", file=sys.stderr)
    return BAD_INPUT
  sys.stdout.flush()
  sys.stdout.buffer.write(b"".join(os.fsencode(path) + b"\n" for path in found))
  return 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
