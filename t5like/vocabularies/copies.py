"""Copies a run's vocabulary into its model directory, which can then be moved or shared."""

from __future__ import annotations

from pathlib import Path

from t5like.files import storage
from t5like.vocabularies.base import Vocabulary
from t5like.vocabularies.catalogue import EMBEDDED_FOLDER, ENDINGS, FILES, split_name
from t5like.vocabularies.tokenizer_config import ADDED, SETTINGS

FOLDER = "vocabulary"
_COMPANIONS = ("merges.txt", SETTINGS, ADDED, "special_tokens_map.json")  # optional files next to a vocabulary's file


def copy_vocabulary(name: str, vocabulary: Vocabulary, model_dir: Path) -> str:
  """Copies the files of a vocabulary that is not embedded; returns the name of the copy for `load_vocabulary`.

  The copy keeps the original's name, so that both share token caches, which are named after it.
  """
  path = vocabulary.path
  if path is None or path.parent == EMBEDDED_FOLDER:
    return name
  given = Path(split_name(name)[0]).name
  folder = model_dir / FOLDER
  if given != path.name and path.name in FILES:  # `name` is a folder
    folder = folder / given
  for source in (path, *(path.with_name(companion) for companion in _COMPANIONS)):
    copy = folder / source.name
    if source.is_file() and not (copy.is_file() and copy.read_bytes() == source.read_bytes()):
      storage.write_atomic(copy, source.read_bytes())
  return copied_vocabulary(name, model_dir)


def copied_vocabulary(name: str, model_dir: Path) -> str | None:
  """Returns the name of a model directory's copy of vocabulary `name`, for `load_vocabulary`; None if it has none."""
  given, option = split_name(name)
  copies = (model_dir / FOLDER / f"{Path(given).name}{ending}" for ending in ENDINGS)
  return next((f"{copy}{option}" for copy in copies if copy.exists()), None)
