"""What process 0 decides, on all processes."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from t5like.errors import UserError


def run_on_process_zero(action: Callable[[], int]) -> int:
  """Process 0 alone runs `action`; all get its number. Where it fails, all fail: none waits for ever.

  To be called by all processes. On one process it is a plain call.
  """
  if jax.process_count() == 1:
    return action()
  number, error = 0, None
  if jax.process_index() == 0:
    try:
      number = action()
    except Exception as raised:
      error = raised
  failed, number = multihost_utils.broadcast_one_to_all(np.array([error is not None, number], np.int32))
  if error is not None:
    raise error
  if failed:
    raise UserError("process 0 cannot go on", because="its own output says why")
  return int(number)


def on_all_processes(good: bool) -> bool:
  """Whether it is so on all: what one host could not read must not leave the others waiting for it."""
  if jax.process_count() == 1:
    return good
  return bool(np.all(multihost_utils.process_allgather(np.array(good))))
