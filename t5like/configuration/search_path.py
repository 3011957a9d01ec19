"""Finds gin files: in the current folder, then the user's folders, then the shipped ones."""

from collections.abc import Sequence
from pathlib import Path

import t5like
from t5like.configuration.t5x_errors import explain_include
from t5like.errors import UserError, nearest
from t5like.files import storage


def shipped_folder() -> Path:
  """Returns the gin/ folder of the checkout, or its copy inside an installed wheel."""
  package = Path(t5like.__file__).resolve().parent
  # `models` distinguishes our folder from site-packages/gin, the gin-config library.
  for folder in (package / "gin", package.parent / "gin"):
    if (folder / "models").is_dir():
      return folder
  raise UserError(
    "t5like's gin files are missing",
    searched=f"{package / 'gin'} and {package.parent / 'gin'}",
    try_="pip install --force-reinstall --no-deps t5like",
  )


def search_path(extra: Sequence[str] = ()) -> list[Path]:
  """Returns the folders in search order."""
  return [Path.cwd(), *(Path(p).expanduser() for p in extra), shipped_folder()]


def find(name: str, folders: Sequence[Path], requested_by: str = "--gin_file") -> Path:
  """Returns the file called `name` in the first folder that has it; absolute paths are used as they are."""
  given = storage.as_path(name)
  candidates = [given] if given.is_absolute() else [folder / given for folder in folders]
  for path in candidates:
    if path.is_file():
      return path
  known = {str(p.relative_to(f)): None for f in folders[1:] for p in sorted(f.rglob("*.gin"))}
  same_name = [k for k in known if Path(k).stem == Path(name).stem]
  raise UserError(
    f"gin file not found: {name!r}",
    requested_by=requested_by,
    t5x=explain_include(name),
    nearest=nearest(name, known) or ", ".join(same_name[:3]),
    searched="\n".join(str(f) for f in folders),
    try_="--gin_search_paths=FOLDER to search another folder",
  )
