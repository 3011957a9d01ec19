"""Imports seqio, and with it TensorFlow, without TensorFlow's startup messages."""

import contextlib
import logging
import os
import sys
import tempfile

from absl import logging as absl_logging


def load_seqio() -> None:
  """Imports seqio quietly; call it before anything else imports TensorFlow. Errors are still shown."""
  absl_logging.get_absl_logger().addFilter(_is_shown)
  if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":  # JAX sets it to 1, perhaps in the parent process
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
  if "seqio" in sys.modules:
    return
  sys.stderr.flush()
  stderr = os.dup(2)
  with tempfile.TemporaryFile() as messages:
    os.dup2(messages.fileno(), 2)  # they come from C++, which bypasses sys.stderr
    try:
      import seqio  # noqa: F401
    except BaseException:
      messages.seek(0)
      with contextlib.suppress(OSError):
        os.write(stderr, messages.read())
      raise
    finally:
      os.dup2(stderr, 2)
      os.close(stderr)


def _is_shown(record: logging.LogRecord) -> bool:
  """Returns False for seqio's note that a task of a mixture is not in its own cache, which token caches replace."""
  return not str(record.msg).startswith("Task '%s' not cached so using number of input examples")
