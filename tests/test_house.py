"""The rules of the house: which room may import which, no cycles, names that say something."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

PACKAGE = REPOSITORY / "t5like"
# From the bottom to the top; none imports another of its own floor (errors apart).
FLOORS = [
  {"errors"},
  {"console", "files"},
  {"kernels", "objectives", "decoding", "parallel", "vocabularies", "configuration"},
  {"models", "data", "tasks", "training"},
  {"interop", "planning", "finetuning"},
  {"experiments"},
  {"inference"},
  {"evaluation"},
  {"runs"},
  {"ablations", "bench"},
  {"cli"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {
  ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES
}


def imported(tree: ast.AST) -> Iterator[str]:
  """Every module that is imported anywhere in a file, in functions too; what is only for type checkers is not."""
  for node in ast.iter_child_nodes(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      for alias in node.names:
        whole = f"{node.module}.{alias.name}"
        yield whole if whole in MODULES else node.module
    elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
      yield from imported(node)


@functools.cache
def imports(path: Path) -> frozenset[str]:
  return frozenset(imported(ast.parse(path.read_text())))


def room_of(path: Path) -> str:
  return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def name_of(path: Path) -> str:
  return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_point_down_the_floors(path):
  room = room_of(path)
  if room not in FLOOR:  # the door and __main__ may open everything
    return
  for name in imports(path):
    parts = name.split(".")
    if parts[0] == "t5like" and len(parts) > 1 and parts[1] in FLOOR and parts[1] != room:
      assert FLOOR[parts[1]] < FLOOR[room], f"{path} imports {name}: not a floor below"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_tasks_imports_tensorflow_and_only_configurables_import_gin(path):
  libraries = {name.split(".")[0] for name in imports(path)}
  if room_of(path) != "tasks":
    assert not libraries & {"tensorflow", "seqio", "tensorflow_datasets", "tensorflow_text"}
  if "gin" in libraries:
    assert path.name in ("configurables.py", "experiment.py") or room_of(path) == "configuration"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_below_the_command_line_functions_take_values_and_raise(path):
  """No options of a parser, no exit of the process: a notebook calls what the command line calls."""
  if room_of(path) in ("cli", "__main__"):
    return
  text = path.read_text().partition('if __name__ == "__main__"')[0]
  assert "argparse" not in {name.split(".")[0] for name in imports(path)} and "argparse." not in text
  # The process that streams is one of its own.
  assert "os._exit" not in text.replace("`os._exit`", "") or name_of(path) == "experiments/streaming.py"
  assert "sys.exit(" not in text and "SystemExit(" not in text, "raise an error that a caller can handle"


def test_files_do_not_import_each_other_in_a_circle():
  """Imports in functions count: they hide a circle, they do not open it."""
  below = {module: imports(path) & set(MODULES) - {module} for module, path in MODULES.items()}
  # The door of a package shows what its files hold: an import through it is not one of the door by the file.
  state: dict[str, int] = {}
  trail: list[str] = []

  def visit(module: str) -> None:
    state[module] = 1
    trail.append(module)
    for other in sorted(below[module]):
      assert state.get(other) != 1, " -> ".join([*trail[trail.index(other) :], other])
      if other not in state:
        visit(other)
    trail.pop()
    state[module] = 2

  for module in sorted(MODULES):
    if module not in state:
      visit(module)


def test_names_say_something():
  assert not {p.name for p in FILES} & {"utils.py", "util.py", "common.py", "misc.py", "helpers.py"}
  assert not (REPOSITORY / "gin/__init__.py").exists()


def test_folders_and_files_stay_small():
  folders = {path.parent for path in FILES}
  assert not {str(folder): n for folder in folders if (n := len(list(folder.glob("*.py")))) > 21}
  assert not {name_of(path): n for path in FILES if (n := len(path.read_text().splitlines())) > 450}
