"""Runs that are killed, preempted or moved resume exactly. Real processes throughout."""

import random
import signal
import time

import numpy as np
import pytest
from trainers import assert_same_bytes, finish, has_checkpoint, losses, parameters, start, start_pod, wait_for

from t5like.training.checkpoints import checkpoint_steps


def run_and_kill(command, folder, kills, seed):
  """Kills and restarts an endless run at random moments; returns the steps reached and all output."""
  draw = random.Random(seed)
  reached, outputs = [], []
  while len(reached) < kills:
    process = start([*command, "--gin.TRAIN_STEPS=1000000"])
    # During startup, or well into the steps, almost always during a save.
    if draw.random() < 0.3:
      time.sleep(draw.uniform(0.0, 6.0))
    else:
      before = max(checkpoint_steps(folder), default=0)
      wait_for(has_checkpoint(folder, before + 1), process)
      time.sleep(draw.uniform(0.0, 0.5))
    process.send_signal(signal.SIGKILL)
    outputs.append(process.communicate()[0])
    reached.append(max(losses(folder), default=0))
  return reached, outputs


def check_kills(t5like, pretrain, tmp_path, kills, seed):
  """Runs the uninterrupted run, and the end of the other, in this process, with the same number of devices."""
  uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"
  often = [
    *pretrain,
    "--gin.LOG_PERIOD=1",
    f"--gin.MODEL_DIR={killed}",
    "--gin.CHECKPOINT_PERIOD=10",
  ]  # kills hit saves
  reached, outputs = run_and_kill(often, killed, kills, seed)
  print(f"{kills} kills survived; steps reached at each: {reached}")
  steps = max(reached) + 15
  outputs.append(t5like(*often, f"--gin.TRAIN_STEPS={steps}").stdout)
  t5like(*often, f"--gin.TRAIN_STEPS={steps}", f"--gin.MODEL_DIR={uninterrupted}", "--gin.CHECKPOINT_PERIOD=0")
  assert losses(killed) == losses(uninterrupted) and len(losses(uninterrupted)) == steps
  assert_same_bytes(parameters(killed), parameters(uninterrupted))
  assert not any("damaged" in output for output in outputs)


def test_a_killed_run_ends_with_the_bytes_of_an_uninterrupted_one(t5like, pretrain, tmp_path):
  """One kill, during the steps; the twenty kills of the slow test also hit the start."""
  check_kills(t5like, pretrain, tmp_path, kills=1, seed=2)


@pytest.mark.slow  # minutes: twenty restarts
def test_twenty_kills_at_random_moments(t5like, pretrain, tmp_path):
  check_kills(t5like, pretrain, tmp_path, kills=20, seed=20)


@pytest.mark.slow
def test_a_signal_to_one_host_stops_all_at_the_same_step_and_other_hosts_resume(t5like, pretrain, tmp_path):
  """Sends SIGTERM to the second of two hosts; then resumes in this process, on another mesh."""
  common = [*pretrain, "--gin.LOG_PERIOD=1", "--gin.CHECKPOINT_PERIOD=100000", "--gin.BATCH_SIZE=8"]
  alone, pod = tmp_path / "alone", tmp_path / "pod"

  hosts = start_pod([*common, f"--gin.MODEL_DIR={pod}", "--gin.TRAIN_STEPS=100000"], hosts=2)
  wait_for(lambda: len(losses(pod)) >= 5, hosts[0])
  hosts[1].send_signal(signal.SIGTERM)
  outputs = finish(hosts, status=128 + signal.SIGTERM)
  step = max(losses(pod))
  assert f"SIGTERM: stopped and saved at step {step:,} of 100,000" in outputs[0]
  assert has_checkpoint(pod, step)()
  assert "2 of 2 hosts, 2 devices" in outputs[0]

  more = [*common, "--gin.MESH.data=2", "--gin.MESH.fsdp=-1", f"--gin.TRAIN_STEPS={step + 4}"]
  assert f"its own checkpoint of step {step}" in t5like(*more, f"--gin.MODEL_DIR={pod}", devices=4).stdout
  t5like(*more, f"--gin.MODEL_DIR={alone}", devices=4)
  one, many = losses(alone), losses(pod)
  assert one.keys() == many.keys()
  np.testing.assert_allclose(list(many.values()), list(one.values()), rtol=1e-5)


@pytest.mark.slow
def test_the_survivor_of_a_pod_reports_the_cause_and_exits_at_once(pretrain, tmp_path):
  run = [*pretrain, f"--gin.MODEL_DIR={tmp_path}/run", "--gin.TRAIN_STEPS=100000", "--gin.CHECKPOINT_PERIOD=5"]
  hosts = start_pod([*run, "--gin.BATCH_SIZE=8"], hosts=2)
  wait_for(has_checkpoint(tmp_path / "run", 5), hosts[0])
  hosts[1].kill()
  (output,) = finish(hosts[:1], status=1, timeout=20)  # by default Python would wait at least 30 s for the other
  assert "error: the connection to another host is lost" in output and "Gloo" in output
  hosts[1].communicate()


@pytest.mark.slow  # tests/training/guards/test_watchdog.py has processes that hang in other ways
def test_a_stalled_host_ends_the_others_with_status_124(t5like, pretrain, tmp_path):
  run = [*pretrain, f"--gin.MODEL_DIR={tmp_path}/run", "--gin.TRAIN_STEPS=100000", "--gin.CHECKPOINT_PERIOD=5"]
  hosts = start_pod([*run, "--gin.WATCHDOG_MINUTES=0.1"], hosts=2)
  try:
    wait_for(has_checkpoint(tmp_path / "run", 5), hosts[0])
    hosts[1].send_signal(signal.SIGSTOP)
    output = finish(hosts[:1], status=124)[0]
  finally:
    hosts[1].kill()
  assert "no step ended in 0.1 minutes" in output and "train_loop" in output
  assert "train_loop" in (tmp_path / "run/stacks.txt").read_text()
  t5like(*run, f"--gin.TRAIN_STEPS={max(checkpoint_steps(tmp_path / 'run')) + 1}")
