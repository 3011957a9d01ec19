"""The rules of the house: which room may import which, no cycles, names that say something."""

import ast
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

PACKAGE = REPOSITORY / "t5like"
FLOORS = [
  {"kernels", "objectives", "decoding", "parallel", "vocabularies", "configuration"},
  {"models", "data", "tasks", "training"},
  {"interop", "planning", "evaluation", "finetuning", "ablations"},
  {"cli"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS, 1) for room in rooms}
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> set[str]:
  found = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
  return found


def room_of(path: Path) -> str | None:
  parts = path.relative_to(PACKAGE).parts
  return parts[0] if len(parts) > 1 else None


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down_the_floors(path):
  room = room_of(path)
  for name in imports(path):
    parts = name.split(".")
    if room is None or parts[0] != "t5like" or len(parts) < 2 or parts[1] not in FLOOR or parts[1] == room:
      continue
    assert FLOOR[parts[1]] <= FLOOR[room], f"{path} imports {name}, a floor above"
    assert not FLOOR[parts[1]] == FLOOR[room] == 2, f"{path} imports {name}, sideways on floor 2"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_tasks_imports_tensorflow_and_only_configurables_import_gin(path):
  libraries = {name.split(".")[0] for name in imports(path)}
  if room_of(path) != "tasks":
    assert not libraries & {"tensorflow", "seqio", "tensorflow_datasets", "tensorflow_text"}
  if "gin" in libraries:
    assert path.name in ("configurables.py", "experiment.py") or room_of(path) == "configuration"


def test_names_say_something():
  assert not {p.name for p in FILES} & {"utils.py", "util.py", "common.py", "misc.py", "helpers.py"}
  assert not (REPOSITORY / "gin/__init__.py").exists()
