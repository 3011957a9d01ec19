"""Failing saves raise an error and lose nothing: full disks, read-only folders, kill -9; and saves on two hosts."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checkpoint_states import FINGERPRINT, bits, make_state, parameters, save
from ports import free_port

from t5like.errors import UserError
from t5like.training.checkpoints import (
  Checkpoints,
  SaveError,
  checkpoint_bytes,
  checkpoint_steps,
  load_parameters,
  newest_intact,
  restore_state,
  save_parameters,
)
from t5like.training.checkpoints.integrity import find_damage
from t5like.training.guards.run_lock import LOCK, sole_trainer

REPOSITORY = Path(__file__).resolve().parents[3]


def start(action, folder, **env):
  # stderr is shown only if the process fails.
  return subprocess.Popen(
    [sys.executable, Path(__file__).with_name("checkpoint_process.py"), action, folder],
    env={**os.environ, "JAX_NUM_CPU_DEVICES": "2", "PYTHONPATH": str(REPOSITORY), **env},
    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
  )  # fmt: skip


def results(process):
  out, err = process.communicate(timeout=300)
  assert process.returncode == 0, err
  assert "ERROR:absl" not in err  # the error is raised, without Orbax's tracebacks
  return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def test_an_error_in_the_background_ends_the_run_and_earlier_checkpoints_are_intact(tmp_path):
  (error,) = results(start("too_large_files", tmp_path))
  assert error["kind"] == "SaveError" and error["what"] == "checkpoint 3 could not be written"
  assert error["lines"]["because"] == "File too large"
  # Parameters and two moments of 2 x (256*32 + 32) + 64*256 floats and 256 in half precision; 3 scalars.
  needed = 3 * (4 * (2 * (256 * 32 + 32) + 64 * 256) + 2 * 256) + 12
  assert f"a checkpoint needs {needed / 1e3:.1f} kB" in error["lines"]["disk"]
  assert error["lines"]["intact"] == "checkpoint 2: the same command resumes from there"
  assert error["steps"] == checkpoint_steps(tmp_path) == [1, 2]
  # Once the disk has space, the same command resumes.
  save(tmp_path, make_state(parameters(seed=3, width=256), 3)[0])
  assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["1", "2", "3"]
  for step in (1, 2, 3):
    assert find_damage(tmp_path / f"checkpoints/{step}") is None
    assert bits(load_parameters(tmp_path, step)) == bits(parameters(seed=step, width=256))


@pytest.fixture
def small_disk(tmp_path):
  """A disk of 2 MB."""
  done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", tmp_path], capture_output=True, text=True)
  if done.returncode:
    pytest.skip(f"cannot mount a disk: {done.stderr.strip()}")
  yield tmp_path
  subprocess.run(["umount", "--lazy", tmp_path], check=True)  # threads of a failed save may still hold it


def leave_free(folder, count):
  disk = os.statvfs(folder)
  (folder / "filler").write_bytes(bytes(disk.f_bavail * disk.f_frsize - count))


def test_a_disk_that_fills_up_during_a_save(small_disk):
  (state, _), (later, _) = (make_state(parameters(width=256), step) for step in (1, 2))
  save(small_disk, state)
  # Space for the arrays, which can be checked in advance, but not for the small files next to them.
  leave_free(small_disk, checkpoint_bytes(state) + 8192)
  checkpoints = Checkpoints(small_disk)
  with pytest.raises(SaveError) as error:
    checkpoints.save(later, FINGERPRINT)
    checkpoints.close()
  assert error.value.lines["because"].endswith("No space left on device")
  assert " free when it failed; a checkpoint needs 395.5 kB" in error.value.lines["disk"]
  assert error.value.lines["intact"].startswith("checkpoint 1")
  assert checkpoint_steps(small_disk) == [1] and find_damage(small_disk / "checkpoints/1") is None


def test_parameters_that_do_not_fit_are_not_written(small_disk):
  leave_free(small_disk, 65536)
  with pytest.raises(OSError, match=r"No space left on device: 65.5 kB free, 131.8 kB needed"):
    save_parameters(small_disk, parameters(width=256))
  assert checkpoint_steps(small_disk) == []


def test_a_disk_that_takes_no_more_files(small_disk):
  (state, _), (later, _) = (make_state(parameters(width=8), step) for step in (1, 2))
  save(small_disk, state)
  disk = os.statvfs(small_disk)
  few = f"remount,nr_inodes={disk.f_files - disk.f_ffree + 5}"
  subprocess.run(["mount", "-o", few, small_disk], check=True)
  checkpoints = Checkpoints(small_disk)
  with pytest.raises(SaveError) as error:
    checkpoints.save(later, FINGERPRINT)
    checkpoints.close()
  assert "all inodes are in use" in error.value.lines["disk"]
  assert checkpoint_steps(small_disk) == [1] and find_damage(small_disk / "checkpoints/1") is None


def test_a_disk_without_space_for_the_next_checkpoint(small_disk):
  (state, _), (later, _) = (make_state(parameters(width=256), step) for step in (1, 2))
  save(small_disk, state)
  leave_free(small_disk, checkpoint_bytes(state) - 8192)
  checkpoints = Checkpoints(small_disk)
  with pytest.raises(SaveError, match="checkpoint 2 was not written: not enough disk space") as error:
    checkpoints.save(later, FINGERPRINT)
  assert error.value.lines["needed"] == "395.5 kB"
  assert error.value.lines["intact"].startswith("checkpoint 1")
  assert [p.name for p in (small_disk / "checkpoints").iterdir()] == ["1"]  # the save was not started


def test_a_disk_that_becomes_read_only(small_disk):
  checkpoints = Checkpoints(small_disk)
  subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
  with pytest.raises(SaveError, match="Read-only file system") as error:
    checkpoints.save(make_state()[0], FINGERPRINT)
  assert error.value.lines["intact"] == "none before it" and "disk" not in error.value.lines
  with pytest.raises(UserError, match="MODEL_DIR cannot be written"), sole_trainer(small_disk):
    pass
  with pytest.raises(UserError, match="checkpoints cannot be written"):
    Checkpoints(small_disk / "elsewhere")


def test_a_folder_that_cannot_be_created_is_an_error_at_once(tmp_path):
  (tmp_path / "checkpoints").write_text("a file")
  with pytest.raises(UserError, match="checkpoints cannot be written"):
    Checkpoints(tmp_path)


def test_kill_9_during_saves_leaves_an_intact_checkpoint_and_a_free_directory(tmp_path):
  process, worker = start("save_forever", tmp_path), None
  try:
    while not (line := process.stdout.readline()).startswith('{"worker'):
      assert line or process.poll() is None, process.stderr.read()
    worker = json.loads(line)["worker"]
    while not (line := process.stdout.readline()).startswith('{"step": 4'):
      assert line or process.poll() is None, process.stderr.read()
    holder = json.loads((tmp_path / LOCK).read_text())
    with pytest.raises(UserError, match="another run is training in this directory") as error, sole_trainer(tmp_path):
      pass
    assert error.value.lines["by"] == f"process {process.pid} on {socket.gethostname()}"
    assert error.value.lines["since"] == holder["since"]
  finally:
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    process.stderr.close()
  with sole_trainer(tmp_path):  # at once, although a child of the dead trainer survives
    os.kill(worker, signal.SIGKILL)
    newest = newest_intact(tmp_path)
    assert newest.step >= 3 and not newest.messages
    assert bits(load_parameters(tmp_path, newest.step)) == bits(parameters(seed=newest.step, width=256))
    Checkpoints(tmp_path).close()
    assert all(p.name.isdigit() for p in (tmp_path / "checkpoints").iterdir())


@pytest.mark.slow
def test_two_hosts_save_what_one_restores(tmp_path):
  coordinator = f"localhost:{free_port()}"
  environments = [
    dict(T5LIKE_COORDINATOR=coordinator, T5LIKE_NUM_PROCESSES="2", T5LIKE_PROCESS_ID=str(number)) for number in (0, 1)
  ]
  processes = [start("one_of_two", tmp_path, **environment) for environment in environments]
  try:
    first, second = [results(process)[-1] for process in processes]
  finally:
    for process in processes:
      process.kill()
      process.wait()
  assert first["step"] == second["step"] == first["int_step"] == 2
  assert first["same"] == second["same"] == [True, True]
  assert "checkpoint 3 is damaged" in first["messages"][0] and not second["messages"]

  state, spec = make_state(parameters(seed=2, width=256), 2, axes=dict(data=2, fsdp=4))
  assert checkpoint_steps(tmp_path) == [2, 4] and (tmp_path / "checkpoints/damaged-3").is_dir()
  restored = restore_state(newest_intact(tmp_path).checkpoint, spec, FINGERPRINT)
  assert bits(restored) == bits(state.replace(step=np.int32(4)))
