"""A run's vocabulary, copied into its model directory: the directory can then be moved, or given to somebody else."""

from __future__ import annotations

from pathlib import Path

from t5like.files import storage
from t5like.vocabularies.base import Vocabulary
from t5like.vocabularies.beside import ADDED, SETTINGS
from t5like.vocabularies.catalogue import EMBEDDED_FOLDER, ENDINGS, FILES, split_name

FOLDER = "vocabulary"
_BESIDE = ("merges.txt", SETTINGS, ADDED, "special_tokens_map.json")  # what belongs to a vocabulary's file


def copy_vocabulary(name: str, vocabulary: Vocabulary, model_dir: Path) -> str:
  """Copies the files of a vocabulary that does not ship with t5like; returns the name to load the copy by.

  The copy keeps the name of the original: token caches, which are named after it, serve both.
  """
  path = vocabulary.path
  if path is None or path.parent == EMBEDDED_FOLDER:
    return name
  given = Path(split_name(name)[0]).name
  folder = model_dir / FOLDER
  if given != path.name and path.name in FILES:  # the folder of a vocabulary was given
    folder = folder / given
  for source in (path, *(path.with_name(beside) for beside in _BESIDE)):
    copy = folder / source.name
    if source.is_file() and not (copy.is_file() and copy.read_bytes() == source.read_bytes()):
      storage.write_whole(copy, source.read_bytes())
  return copied_vocabulary(name, model_dir)


def copied_vocabulary(name: str, model_dir: Path) -> str | None:
  """The name to load the copy by that a model directory has of its vocabulary `name`; None where it has none."""
  given, option = split_name(name)
  copies = (model_dir / FOLDER / f"{Path(given).name}{ending}" for ending in ENDINGS)
  return next((f"{copy}{option}" for copy in copies if copy.exists()), None)
