"""The supervisor restarts only if a restart can help. Real processes throughout."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest
from ports import free_port
from trainers import REPOSITORY, finish, has_checkpoint, losses, start, wait_for

from t5like.cli.supervisor import HOSTS_MISSING, Ending, Policy, supervise
from t5like.training.records.model_dir import check_model_dir

# In its first, second, ... attempt the child reaches a step, then ends with a status or by a signal.
CHILD = textwrap.dedent("""
  import os, signal, sys, time
  from pathlib import Path
  from t5like.training.guards.step_file import StepFile
  folder = Path(sys.argv[1])
  plan = (folder / "plan").read_text().split()
  (folder / "plan").write_text(" ".join(plan[1:]))
  step, end = plan[0].split(":")
  file = StepFile(folder)
  if step != "-":
    file.write(int(step))
  if end == "wait":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    (folder / "waiting").touch()
    time.sleep(600)
  if int(end) < 0:
    os.kill(os.getpid(), -int(end))
  sys.exit(int(end))
""")


@pytest.fixture
def run_child(tmp_path):
  """`run_child("3:1 5:0")`: step 3 and status 1, then step 5 and status 0. Returns the status and all decisions."""

  def run(plan, restarts=5):
    (tmp_path / "plan").write_text(plan)
    status = supervise([sys.executable, "-c", CHILD, str(tmp_path)], restarts, first_wait=0.01)
    log = tmp_path / "supervisor.jsonl"
    return status, [json.loads(line) for line in log.read_text().splitlines()]

  return run


def test_crashes_kills_and_stalls_are_restarted_until_the_run_finishes(run_child, tmp_path, capfd):
  status, decisions = run_child("3:1 7:-9 12:124 19:143 20:0")
  assert status == 0
  assert [(d["attempt"], d["status"], d["step"], d["restart"]) for d in decisions] == [
    (1, 1, 3, True), (2, -9, 7, True), (3, 124, 12, True), (4, 143, 19, True), (5, 0, 20, False),
  ]  # fmt: skip
  assert all(d["host"] == socket.gethostname() for d in decisions)
  lines = capfd.readouterr().err.splitlines()
  assert lines[1].startswith("supervisor: attempt 2 killed by SIGKILL") and "out of memory" in lines[1]
  assert "at step 7, 3 restarts left: restarting in 0.01 s" in lines[1]
  assert "stalled at step 12 (status 124)" in lines[2]


def test_a_folder_with_only_the_log_is_accepted(tmp_path):
  (tmp_path / "supervisor.jsonl").write_text("{}\n")
  assert check_model_dir(tmp_path) == tmp_path


def test_invalid_input_is_never_restarted(run_child):
  status, decisions = run_child("-:2")
  assert (status, len(decisions)) == (2, 1)
  assert "invalid input" in decisions[0]["reason"]


def test_three_failures_at_the_same_step_end_the_restarts(run_child):
  status, decisions = run_child("50:1 50:1 50:-6 90:0")
  assert status == 128 + 6
  assert decisions[-1]["reason"] == "killed by SIGABRT at step 50, 3 consecutive failures at step 50"
  assert len(decisions) == 3


def test_restarts_are_limited(run_child):
  status, decisions = run_child("10:1 20:1 30:1", restarts=2)
  assert (status, len(decisions)) == (1, 3)
  assert "no restarts left" in decisions[-1]["reason"]


def test_waits_double_and_are_reset_by_progress():
  policy = Policy(restarts=100, first_wait=5.0)
  waits = [policy.decide(Ending(1, step)).wait for step in (10, 1, 5, 20, 16, 1)]
  assert waits == [5.0, 10.0, 20.0, 5.0, 10.0, 20.0]
  alone = [policy.decide(Ending(HOSTS_MISSING, None)) for _ in range(20)]
  assert all(d.restart for d in alone), "missing hosts are not a failure"
  assert [d.wait for d in alone][-1] == 300.0


def test_failures_a_step_or_two_apart_count_as_the_same_step():
  policy = Policy(restarts=100, first_wait=1.0)
  assert [policy.decide(Ending(1, step)).restart for step in (500, 502, 501)] == [True, True, False]
  policy = Policy(restarts=100, first_wait=1.0)
  assert [policy.decide(Ending(1, step)).restart for step in (500, None, 500, None, None, None)] == [True] * 5 + [False]


def supervisor_of_waiting_child(folder) -> subprocess.Popen:
  """Starts a supervisor process whose child waits at step 4."""
  (folder / "plan").write_text("4:wait 5:0")
  command = [sys.executable, "-c", CHILD, str(folder)]
  process = subprocess.Popen(
    [sys.executable, "-c", f"import t5like.cli.supervisor as s, sys; sys.exit(s.supervise({command!r}, 5, 0.01))"],
    env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    stderr=subprocess.PIPE,
    text=True,
  )
  wait_for((folder / "waiting").exists, process)
  return process


def test_a_supervisor_that_is_killed_leaves_no_trainer_behind(tmp_path):
  process = supervisor_of_waiting_child(tmp_path)
  child = child_of(process)
  process.kill()
  process.wait()
  wait_for(lambda: not os.path.exists(f"/proc/{child}/exe") or "Z" in status_of(child), timeout=200)


def test_a_trainer_that_is_killed_leaves_no_builder_of_its_token_cache_behind(tmp_path):
  builder = (
    "import time; from t5like.files.child_processes import exit_with_parent\n"
    f"exit_with_parent(); open({str(tmp_path / 'builds')!r}, 'w'); time.sleep(400)"
  )
  trainer = (
    "import subprocess, sys; from t5like.files.child_processes import bound_environment\n"
    f"subprocess.run([sys.executable, '-c', {builder!r}], env=bound_environment())"
  )
  env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
  process = subprocess.Popen([sys.executable, "-c", trainer], env=env)
  wait_for((tmp_path / "builds").exists, process)
  child = child_of(process)
  process.kill()
  process.wait()
  wait_for(lambda: "Z" in status_of(child), timeout=200)
  # A builder whose parent is already gone (here: another pid) ends on its own.
  late = subprocess.run([sys.executable, "-c", builder], env={**env, "T5LIKE_PARENT": str(child)}, timeout=200)
  assert late.returncode == -signal.SIGTERM


def status_of(pid) -> str:
  try:
    with open(f"/proc/{pid}/stat") as file:
      return file.read().rpartition(")")[2].split()[0]
  except FileNotFoundError:
    return "Z"


def test_a_signal_to_the_supervisor_reaches_the_child_and_ends_both(tmp_path):
  process = supervisor_of_waiting_child(tmp_path)
  process.send_signal(signal.SIGTERM)
  error = process.communicate(timeout=400)[1]
  assert process.returncode == 143, error
  assert "stopped by SIGTERM, saved, at step 4 (status 143), after SIGTERM to the supervisor" in error


def test_a_signal_repeated_at_once_is_one_request(tmp_path):
  """The platform signals every process, and the supervisor forwards its own: a run must have time to save."""
  code = (
    "import time; from t5like.training.guards.interruption import Interruption\n"
    "with Interruption() as interruption:\n"
    "  print('ready', flush=True)\n"
    "  while not interruption.requested: time.sleep(0.01)\n"
    "  time.sleep(0.3); print('saved', flush=True); time.sleep(30)"
  )
  env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "T5LIKE_STEP_FILE": str(tmp_path / "step")}
  process = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
  assert process.stdout.readline() == "ready\n"
  for _ in range(2):
    process.send_signal(signal.SIGTERM)
    time.sleep(0.02)
  assert process.stdout.readline() == "saved\n"
  time.sleep(0.9)
  process.send_signal(signal.SIGTERM)  # a later one ends the process
  assert process.wait(timeout=200) == -signal.SIGTERM


def child_of(process) -> int:
  return int((subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)).stdout)


@pytest.mark.slow
def test_a_killed_trainer_resumes_and_its_supervisor_uses_no_device(pretrain, tmp_path):
  folder = tmp_path / "run"
  supervised = start(
    [*pretrain, f"--gin.MODEL_DIR={folder}", "--gin.TRAIN_STEPS=200", "--gin.CHECKPOINT_PERIOD=10",
     "--gin.LOG_PERIOD=1", "--restarts=3", "--restart_wait=0.1"]
  )  # fmt: skip
  wait_for((folder / "metrics.jsonl").exists, supervised)
  trainer = child_of(supervised)
  wait_for(has_checkpoint(folder, 10), supervised)
  os.kill(trainer, signal.SIGKILL)  # at once, before it finishes
  maps = open(f"/proc/{supervised.pid}/maps").read()
  assert "jaxlib" not in maps and "tensorflow" not in maps
  output = finish([supervised])[0]
  decisions = [json.loads(line) for line in (folder / "supervisor.jsonl").read_text().splitlines()]
  assert [(d["status"], d["restart"]) for d in decisions] == [(-9, True), (0, False)]
  assert decisions[0]["step"] >= 10 and decisions[1]["step"] == 200
  assert sorted(losses(folder)) == list(range(1, 201))
  assert "its own checkpoint of step" in output


@pytest.mark.slow  # two hosts start twice, and the survivor may wait for its watchdog
def test_a_pod_joins_again_after_one_host_was_killed(pretrain, tmp_path):
  folder = tmp_path / "run"
  port = free_port()
  command = [
    *pretrain, f"--gin.MODEL_DIR={folder}", "--gin.TRAIN_STEPS=400", "--gin.CHECKPOINT_PERIOD=20", "--gin.LOG_PERIOD=1",
    "--gin.WATCHDOG_MINUTES=0.5", "--restarts=9", "--restart_wait=0.5", "--start_timeout=60",
  ]  # fmt: skip
  hosts = [start(command, host=host, hosts=2, port=port) for host in range(2)]
  try:
    wait_for(has_checkpoint(folder, 20), hosts[0])
    os.kill(child_of(hosts[1]), signal.SIGKILL)
    outputs = finish(hosts)
  finally:
    for host in hosts:
      host.kill()
  assert "killed by SIGKILL" in outputs[1]
  assert all("supervisor: attempt 1 " in output and "restarting" in output for output in outputs)
  assert "2 of 2 hosts" in outputs[0]
  assert sorted(losses(folder)) == list(range(1, 401))
