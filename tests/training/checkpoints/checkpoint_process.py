"""A trainer process for tests: `checkpoint_process.py ACTION MODEL_DIR`. Prints JSON lines."""

import json
import os
import resource
import sys
import time
from pathlib import Path

import jax
import numpy as np
from checkpoint_states import FINGERPRINT, bits, make_state, parameters, save

from t5like import parallel
from t5like.errors import UserError
from t5like.training.checkpoints import CheckpointRetention, Checkpoints, checkpoint_steps, newest_intact, restore_state
from t5like.training.guards.run_lock import sole_trainer


def report(**values):
  print(json.dumps(values), flush=True)


def large_state(step, axes=None):
  return make_state(parameters(seed=step, width=256), step, axes=axes)


def too_large_files(folder: Path) -> None:
  """The third save fails in the background, as on a full disk."""
  save(folder, large_state(1)[0], large_state(2)[0])
  checkpoints = Checkpoints(folder)
  unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, unlimited[1]))
  checkpoints.save(large_state(3)[0], FINGERPRINT)
  deadline = time.monotonic() + 240
  try:
    while time.monotonic() < deadline:  # as a loop does after every step
      checkpoints.raise_errors()
      time.sleep(0.01)
  except UserError as error:
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    report(kind=type(error).__name__, what=error.what, lines=error.lines, steps=checkpoint_steps(folder))
  checkpoints.close()  # the error is raised only once


def save_forever(folder: Path) -> None:
  with sole_trainer(folder):
    worker = os.fork()  # such as a data loader's, which survives when the trainer is killed
    if worker == 0:
      time.sleep(600)
      os._exit(0)
    report(worker=worker)
    checkpoints = Checkpoints(folder, CheckpointRetention(last=2))
    for step in range(1, 10_000):
      checkpoints.save(large_state(step)[0], FINGERPRINT)
      report(step=step)


def one_of_two(folder: Path) -> None:
  """Saves on two hosts, damages the newest checkpoint, agrees on the previous one and continues."""
  parallel.start(timeout=240, config="the same")
  axes = dict(fsdp=2, tensor=2)
  with sole_trainer(folder):
    checkpoints = Checkpoints(folder, CheckpointRetention(last=2))
    for step in (1, 2, 3):
      assert checkpoints.save(large_state(step, axes)[0], FINGERPRINT)
    assert not checkpoints.save(large_state(3, axes)[0], FINGERPRINT)
    checkpoints.close()
    if jax.process_index() == 0:
      os.truncate(folder / "checkpoints/3/params/_METADATA", 0)
    newest = newest_intact(folder)
    _, spec = large_state(0, axes)
    state = restore_state(newest.checkpoint, spec, FINGERPRINT, verified=True)
    mine = [bits(shard.data)[""] == bits(large_state(2)[0].params["embedding"][shard.index])[""]
            for shard in state.params["embedding"].addressable_shards]  # fmt: skip
    again = Checkpoints(folder, CheckpointRetention(last=2))
    again.save(state.replace(step=jax.device_put(np.int32(4), spec.shardings.step)), FINGERPRINT)
    again.close()
    report(step=newest.step, messages=newest.messages, same=mine, int_step=int(state.step))


if __name__ == "__main__":
  actions = {"too_large_files": too_large_files, "save_forever": save_forever, "one_of_two": one_of_two}
  actions[sys.argv[1]](Path(sys.argv[2]))
