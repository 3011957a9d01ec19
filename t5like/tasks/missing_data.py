"""Says what to do where a data set is not on this machine, instead of what TFDS or the network says."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

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
  try:
    yield
  except UserError:
    raise
  except (OSError, AssertionError, LookupError, ValueError) as error:
    name = tfds_name(task)
    if name is None:
      raise
    raise UserError(
      f"the data set {name!r} of task {task.name!r} cannot be read, nor downloaded",
      because=(str(error).strip() or type(error).__name__).split("\n")[0][:300],
      looked_in=os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets"),
      try_=f"t5like tasks prepare {name} --from DIR   (DIR holds its original files)",
    ) from error
