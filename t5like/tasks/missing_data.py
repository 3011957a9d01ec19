"""Says what to do where a data set is not on this machine, instead of what TFDS or the network says."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import seqio

from t5like.errors import UserError


def tfds_name(task: seqio.Task) -> str | None:
  """The TFDS data set that a task reads, such as glue/sst2."""
  if not isinstance(task.source, seqio.TfdsDataSource):
    return None
  return task.source.tfds_dataset.name.partition(":")[0]


@contextlib.contextmanager
def data_explained(task: seqio.Task) -> Iterator[None]:
  """Errors of reading a task's data become the user's: TFDS has many kinds for "not here, and not to be fetched"."""
  name, folder = tfds_name(task), os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
  prepare = f"t5like tasks prepare {name} --from DIR   (DIR holds its original files)"
  if name and not (Path(folder).expanduser() / name).is_dir():
    # Without a network TFDS tries for minutes before it gives up.
    print(f"{name} is not in {folder}: TFDS tries to download it. Offline: {prepare}", file=sys.stderr, flush=True)
  try:
    yield
  except UserError:
    raise
  except (OSError, AssertionError, LookupError, ValueError) as error:
    if name is None:
      raise
    raise UserError(
      f"the data set {name!r} of task {task.name!r} cannot be read, nor downloaded",
      because=(str(error).strip() or type(error).__name__).split("\n")[0][:300],
      looked_in=folder,
      try_=prepare,
    ) from error
