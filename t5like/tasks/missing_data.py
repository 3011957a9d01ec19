"""Turns the errors of TFDS, tf.data and the network about missing or unreadable data into actionable ones."""

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

_REWRITTEN = "__autograph_generated_file"


def tfds_name(task: seqio.Task) -> str | None:
  """Returns the TFDS data set that a task reads, such as glue/sst2, or None."""
  if not isinstance(task.source, seqio.TfdsDataSource):
    return None
  return task.source.tfds_dataset.name.partition(":")[0]


@contextlib.contextmanager
def explain_data_errors(task: seqio.Task) -> Iterator[None]:
  """Raises errors of reading a task's data as UserError, and those of its own code, such as preprocessors.

  TFDS has many types for "missing, cannot download".
  """
  name, folder = tfds_name(task), os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
  prepare = f"t5like tasks prepare {name} --from DIR   (DIR: folder with its original files)"
  if name and not (Path(folder).expanduser() / name).is_dir():
    from t5like.tasks.preparation.catalogue import NOT_IN_TFDS  # imports much

    # Without a network TFDS retries for minutes before it gives up.
    download = "" if name.partition("/")[0] in NOT_IN_TFDS else ": TFDS will try to download it. Offline"
    print(f"{name} is not in {folder}{download}: {prepare}", file=sys.stderr, flush=True)
  read_error = None
  try:
    yield
  except UserError:
    raise
  except tf.errors.OpError as error:
    read_error = reader_error(error) or UserError(f"cannot read the text of task {task.name!r}", because=reason(error))
    # tf.data's threads call Python. An iterator still alive at interpreter exit waits for them while they wait for
    # Python, a deadlock: release it first.
    traceback.clear_frames(error.__traceback__)
  except Exception as error:
    if line := _user_line(error):
      raise UserError(f"the code of task {task.name!r} failed", because=reason(error), at=line) from error
    if name is None or not isinstance(error, OSError | AssertionError | LookupError | ValueError):
      raise
    raise UserError(
      f"cannot read or download the data set {name!r} of task {task.name!r}",
      because=(str(error).strip() or type(error).__name__).split("\n")[0][:300],
      looked_in=folder,
      try_=prepare,
    ) from error
  if read_error is not None:
    gc.collect()
    raise read_error


def reader_error(error: tf.errors.OpError) -> UserError | None:
  """Recovers the UserError that a file reader raised inside tf.data, which passes on only its text."""
  found = re.search(r"UserError: (.+)\n((?:  \S.*\n)*)", str(error))
  if found is None:
    return None
  rows = (row.strip().partition("  ") for row in found[2].splitlines())
  return UserError(found[1], **{label: text.strip() for label, _, text in rows})


@contextlib.contextmanager
def explain_pipeline_errors(name: str) -> Iterator[None]:
  """Raises errors of a task's preprocessors, which TensorFlow wraps, as UserError."""
  try:
    yield
  except UserError:
    raise
  except StopIteration:
    raise UserError(f"task {name!r} has no examples: its data is empty") from None
  except Exception as error:  # whatever a user's step raises
    raise UserError(f"cannot preprocess task {name!r}", because=reason(error), at=_user_line(error)) from error


def reason(error: Exception) -> str:
  """Returns the message of a UserError raised inside the pipeline, or else the most informative line."""
  text = re.sub(
    r"\{\{.*?\}\} | \[Op:.*?\] name: *$", "", error.message if isinstance(error, tf.errors.OpError) else str(error)
  )
  _, marker, message = text.partition("UserError: ")
  if marker:
    return message.partition("\nTraceback")[0].strip()
  # TensorFlow's runtime errors start with it; errors of building a pipeline end with it, after the location.
  lines = [line for line in text.split("\n") if line.strip()] or [type(error).__name__]
  line = lines[0 if isinstance(error, tf.errors.OpError) else -1].strip()[:300]
  is_key = isinstance(error, LookupError) and "Error: " not in line  # its message is only the key
  return f"{type(error).__name__}: {line}" if is_key else line


def _user_line(error: Exception) -> str:
  """Returns the line of the user's code that raised the error, or ''."""
  frames = [(frame.filename, frame.lineno, frame.line) for frame in traceback.extract_tb(error.__traceback__)]
  # Of code that TensorFlow has rewritten, the message has the original lines.
  frames += re.findall(r'File "([^"]+)", line (\d+), in .*\n\s*(.+)', str(error))
  frames = [frame for frame in frames if not frame[0].startswith(_LIBRARIES) and _REWRITTEN not in frame[0]]
  own = Path(__file__).parents[1]
  frames = [frame for frame in frames if own not in Path(frame[0]).parents and Path(frame[0]).is_file()]
  return "{}:{}: {}".format(*frames[-1]) if frames else ""
