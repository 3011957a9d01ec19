"""Where gin files are looked for: here, then the user's folders, then the shipped ones."""

from collections.abc import Sequence
from pathlib import Path

import t5like
from t5like.configuration.t5x_errors import explain_include
from t5like.errors import UserError, nearest
from t5like.files import storage


def shipped_folder() -> Path:
  """The gin/ folder of the checkout, or its copy inside an installed wheel."""
  package = Path(t5like.__file__).resolve().parent
  # `models` tells our folder from site-packages/gin, the gin-config library itself.
  for folder in (package / "gin", package.parent / "gin"):
    if (folder / "models").is_dir():
      return folder
  raise UserError(
    "the gin files that ship with t5like are missing",
    looked=f"{package / 'gin'} and {package.parent / 'gin'}",
    try_="reinstall: pip install --force-reinstall --no-deps t5like",
  )


def search_path(extra: Sequence[str] = ()) -> list[Path]:
  """Folders in the order they are tried."""
  return [Path.cwd(), *(Path(p).expanduser() for p in extra), shipped_folder()]


def find(name: str, folders: Sequence[Path], asked_by: str = "--gin_file") -> Path:
  """The file called `name` in the first folder that has it; absolute paths are taken as they are."""
  given = storage.as_path(name)
  candidates = [given] if given.is_absolute() else [folder / given for folder in folders]
  for path in candidates:
    if path.is_file():
      return path
  known = {str(p.relative_to(f)): None for f in folders[1:] for p in sorted(f.rglob("*.gin"))}
  same_name = [k for k in known if Path(k).stem == Path(name).stem]
  raise UserError(
    f"no gin file {name!r}",
    asked_by=asked_by,
    t5x=explain_include(name),
    nearest=nearest(name, known) or ", ".join(same_name[:3]),
    searched="\n".join(str(f) for f in folders),
    try_="--gin_search_paths=FOLDER adds a folder to the search",
  )
