"""Decides whether a run copies a token cache to its hosts or reads it in place.

The order of rows depends on it, so all hosts and all starts of a run must decide the same.
"""

from __future__ import annotations

from pathlib import Path

from t5like.data.in_place import UNIT
from t5like.data.mirror import MANIFEST
from t5like.errors import UserError
from t5like.experiments.experiment import Experiment
from t5like.files import storage
from t5like.parallel.process_zero import run_on_process_zero
from t5like.training.records.model_dir import RUN_CARD_DATA

POOLS = "pools"  # in the run card: the units of a pool by folder of a corpus that is read in place
_LARGEST = 1 << 30  # bytes of a pool
_POOLS = 4  # that must fit on the local disk


def choose_pool(experiment: Experiment, folder: Path, size: int, caches: int = 1) -> int:
  """Returns the bytes of a pool of a cache that is read in place, or 0. All processes must call it.

  Args:
    experiment: the run.
    folder: the cache.
    size: its bytes.
    caches: the number of caches that the run mixes, which share the room.
  """
  return UNIT * run_on_process_zero(lambda: _units(experiment, folder, size, caches))


def _units(experiment: Experiment, folder: Path, size: int, caches: int) -> int:
  recorded = _recorded(experiment.model_dir)
  if recorded is not None:
    return recorded.get(str(folder), 0)
  limit = experiment.cache_local_gb
  if limit is not None:
    limit = limit * 1e9
  elif storage.is_remote(folder) and not (storage.mirror_folder(folder) / MANIFEST).is_file():  # not copied yet
    limit = storage.free_bytes(storage.mirror_folder(folder)) / 2
  if limit is None or size <= limit / caches:
    return 0
  return max(int(min(limit / _POOLS, _LARGEST) / caches) // UNIT, 1)


def _recorded(model_dir: str) -> dict[str, int] | None:
  """Returns the decision of the run's first start; None for a new run."""
  path = storage.as_path(model_dir) / RUN_CARD_DATA
  try:
    return storage.read_json(path).get(POOLS, {})
  except FileNotFoundError:
    return None
  except ValueError as error:
    raise UserError(
      f"{path} is damaged: it says in which order the run reads its rows",
      because=error,
      try_="restore it from a backup, or use another --gin.MODEL_DIR with RESTORE_FROM",
    ) from None
