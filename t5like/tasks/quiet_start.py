"""Loads seqio, and with it TensorFlow, without the screen of hardware remarks that TensorFlow prints."""

import contextlib
import os
import sys
import tempfile


def load_seqio() -> None:
  """To be called by a process before anything else imports TensorFlow. Errors are shown, remarks are not."""
  if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":  # 1 is JAX's doing, perhaps in the process that started this
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
  if "seqio" in sys.modules:
    return
  sys.stderr.flush()
  stderr = os.dup(2)
  with tempfile.TemporaryFile() as remarks:
    os.dup2(remarks.fileno(), 2)  # they come from C++, which knows nothing of sys.stderr
    try:
      import seqio  # noqa: F401
    except BaseException:
      remarks.seek(0)
      with contextlib.suppress(OSError):
        os.write(stderr, remarks.read())
      raise
    finally:
      os.dup2(stderr, 2)
      os.close(stderr)
