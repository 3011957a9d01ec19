"""Agreement between processes: results of process 0, conditions that must hold on all, the lowest of their values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from t5like.errors import UserError


def run_on_process_zero(action: Callable[[], int | None]) -> int:
  """Runs `action` on process 0 and returns its number on all; 0 if it returns none.

  If it fails, all processes fail instead of hanging.

  All processes must call it.
  """
  if jax.process_count() == 1:
    return action() or 0
  number, error = 0, None
  if jax.process_index() == 0:
    try:
      number = action() or 0
    except Exception as raised:
      error = raised
  failed, number = multihost_utils.broadcast_one_to_all(np.array([error is not None, number], np.int32))
  if error is not None:
    raise error
  if failed:
    raise UserError("process 0 failed", because="see its log")
  return int(number)


def check_same_on_all_processes(what: str, value: Any) -> None:
  """Raises UserError on all processes unless they all have the same value, which JSON can hold."""
  if jax.process_count() == 1:
    return
  digest = np.frombuffer(hashlib.sha256(json.dumps(value).encode()).digest()[:8], np.uint8)
  found = [bytes(row).hex() for row in multihost_utils.process_allgather(digest)]
  if len(set(found)) > 1:
    raise UserError(
      f"{what} differs between hosts",
      **{f"process {number}": value for number, value in enumerate(found)},
      try_="the same files on every host",
    )


def true_on_all_processes(condition: bool) -> bool:
  """Returns whether `condition` holds on all processes, so that one host's failure does not leave others waiting."""
  if jax.process_count() == 1:
    return condition
  return bool(np.all(multihost_utils.process_allgather(np.array(condition))))


def lowest_on_all_processes(value: float) -> float:
  """Returns the lowest value of all processes; of several, rounded to 32 bits."""
  if jax.process_count() == 1:
    return value
  return float(np.min(multihost_utils.process_allgather(np.float32(value))))
