"""Architecture rules: which package may import which, no import cycles, descriptive names."""

import ast
import collections
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

PACKAGE = REPOSITORY / "t5like"
# From the bottom to the top; packages in one layer do not import each other.
LAYERS = [
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
LAYER = {package: number for number, packages in enumerate(LAYERS) for package in packages}
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {
  ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES
}


def imported(tree: ast.AST) -> Iterator[str]:
  """Yields every module imported in a file, also within functions, but not under TYPE_CHECKING."""
  for node in ast.iter_child_nodes(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      for alias in node.names:
        name = f"{node.module}.{alias.name}"
        yield name if name in MODULES else node.module
    elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
      yield from imported(node)


@functools.cache
def imports(path: Path) -> frozenset[str]:
  return frozenset(imported(ast.parse(path.read_text())))


def package_of(path: Path) -> str:
  return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def name_of(path: Path) -> str:
  return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_packages_only_import_from_lower_layers(path):
  package = package_of(path)
  if package not in LAYER:  # t5like/__init__.py and __main__.py may import everything
    return
  for name in imports(path):
    parts = name.split(".")
    if parts[0] == "t5like" and len(parts) > 1 and parts[1] in LAYER and parts[1] != package:
      assert LAYER[parts[1]] < LAYER[package], f"{path} imports {name}, which is not in a lower layer"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_tasks_imports_tensorflow_and_only_configurables_import_gin(path):
  libraries = {name.split(".")[0] for name in imports(path)}
  if package_of(path) != "tasks":
    assert not libraries & {"tensorflow", "seqio", "tensorflow_datasets", "tensorflow_text"}
  if "gin" in libraries:
    assert path.name in ("configurables.py", "experiment.py") or package_of(path) == "configuration"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_cli_parses_arguments_and_exits(path):
  """Functions below cli can be called from a notebook: they take values and raise errors."""
  if package_of(path) in ("cli", "__main__"):
    return
  text = path.read_text().partition('if __name__ == "__main__"')[0]
  assert "argparse" not in {name.split(".")[0] for name in imports(path)} and "argparse." not in text
  # The streaming process is a separate one.
  assert "os._exit" not in text.replace("`os._exit`", "") or name_of(path) == "experiments/streaming.py"
  assert "sys.exit(" not in text and "SystemExit(" not in text, "raise an error that a caller can handle"


def test_there_are_no_import_cycles():
  """Imports within functions count, too: they only hide a cycle."""
  below = {module: imports(path) & set(MODULES) - {module} for module, path in MODULES.items()}
  # A package's __init__ re-exports its files: importing a name through it is not an import of __init__ by the file.
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


def test_file_names_are_descriptive():
  assert not {p.name for p in FILES} & {"utils.py", "util.py", "common.py", "misc.py", "helpers.py"}
  assert not (REPOSITORY / "gin/__init__.py").exists()


def test_folders_and_files_stay_small():
  files = [path for path in (*FILES, *(REPOSITORY / "tests").rglob("*.py")) if path.name != "__init__.py"]
  sizes = collections.Counter(str(path.parent.relative_to(REPOSITORY)) for path in files)
  assert not {folder: n for folder, n in sizes.items() if n > 20}
  assert not {name_of(path): n for path in FILES if (n := len(path.read_text().splitlines())) > 450}


def test_test_files_have_different_names():
  """pytest imports them by their base name: the second of two is not collected."""
  names = [path.name for path in (REPOSITORY / "tests").rglob("test_*.py")]
  assert not {name for name in names if names.count(name) > 1}
