"""Says what to do where data are missing or cannot be read, instead of what TFDS, tf.data or the network says."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import seqio
import tensorflow as tf

from t5like.errors import UserError
from t5like.tasks.caching.code_closure import LIBRARIES as _LIBRARIES


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
  told = None
  try:
    yield
  except UserError:
    raise
  except tf.errors.OpError as error:
    told = told_by_reader(error) or UserError(
      f"the text of task {task.name!r} cannot be read", because=first_line(error)
    )
    # tf.data's threads call Python. An iterator that is left to the end of the process waits for them, and they for
    # Python, for ever: it has to go before.
    traceback.clear_frames(error.__traceback__)
  except (OSError, AssertionError, LookupError, ValueError) as error:
    if name is None:
      raise
    raise UserError(
      f"the data set {name!r} of task {task.name!r} cannot be read, nor downloaded",
      because=(str(error).strip() or type(error).__name__).split("\n")[0][:300],
      looked_in=folder,
      try_=prepare,
    ) from error
  if told is not None:
    gc.collect()
    raise told


def told_by_reader(error: tf.errors.OpError) -> UserError | None:
  """What the reader of a file said: TensorFlow, which called it, hands on only the text of its error."""
  told = re.search(r"UserError: (.+)\n((?:  \S.*\n)*)", str(error))
  if told is None:
    return None
  rows = (row.strip().partition("  ") for row in told[2].splitlines())
  return UserError(told[1], **{label: text.strip() for label, _, text in rows})


def first_line(error: tf.errors.OpError) -> str:
  return reason(error)


@contextlib.contextmanager
def pipeline_explained(name: str) -> Iterator[None]:
  """Errors of a task's own steps, which come wrapped in TensorFlow's, become the user's."""
  try:
    yield
  except UserError:
    raise
  except StopIteration:
    raise UserError(f"task {name!r} has no examples: its data are empty") from None
  except Exception as error:  # whatever a user's step raises
    raise UserError(f"the examples of task {name!r} cannot be made", because=reason(error), at=_place(error)) from error


def reason(error: Exception) -> str:
  """What our own code said inside the pipeline, else the line that says most."""
  text = re.sub(
    r"\{\{.*?\}\} | \[Op:.*?\] name: *$", "", error.message if isinstance(error, tf.errors.OpError) else str(error)
  )
  _, marker, ours = text.partition("UserError: ")
  if marker:
    return ours.partition("\nTraceback")[0].strip()
  # TensorFlow begins with it; an error while a pipeline is put together ends with it, behind where it was.
  lines = [line for line in text.split("\n") if line.strip()] or [type(error).__name__]
  return lines[0 if isinstance(error, tf.errors.OpError) else -1].strip()[:300]


def _place(error: Exception) -> str:
  """The line of the user's own code that raised it; '' where none did."""
  frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_LIBRARIES)]
  own = Path(__file__).parents[1]
  frames = [frame for frame in frames if own not in Path(frame.filename).parents and Path(frame.filename).is_file()]
  return f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
