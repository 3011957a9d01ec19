"""How the end of a process is described."""

import signal

import pytest

from t5like.files.child_processes import ending


@pytest.mark.parametrize(
  ("status", "text"),
  [
    (-signal.SIGKILL, "SIGKILL, possibly out of memory"),
    (-signal.SIGTERM, "SIGTERM"),
    (3, "status 3"),
    (0, "status 0"),
  ],
)
def test_a_signal_is_named(status, text):
  assert ending(status) == text
