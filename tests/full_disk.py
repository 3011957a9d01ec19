"""A full disk, simulated without root."""

import contextlib
import resource


@contextlib.contextmanager
def full_disk(size: int):
  """Limits the size of files to `size` bytes."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
