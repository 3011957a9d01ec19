"""`launch/local_pod.sh`: labeled processes that stop together, with the exit status of the first failure."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import put_on_path

from t5like.training.checkpoints import checkpoint_steps
from t5like.training.records.metrics import read_metrics

REPOSITORY = Path(__file__).resolve().parents[2]
# Shell commands in place of a trainer, which start quickly.
TALKS = """
  trap 'echo stopping; sleep 0.3; printf "the last word"; exit 143' TERM
  trap 'printf interrupted; exit 130' INT
  echo "process $T5LIKE_PROCESS_ID of $T5LIKE_NUM_PROCESSES, $JAX_NUM_CPU_DEVICES devices, $T5LIKE_COORDINATOR"
"""
WAITS = TALKS + "for i in {1..300}; do sleep 0.1; done; exit 9"


def start(processes, command, *options, **environment) -> subprocess.Popen:
  """Starts the script, with stdout and stderr in one stream."""
  return subprocess.Popen(
    [REPOSITORY / "launch/local_pod.sh", str(processes), *options, "--", *map(str, command)],
    env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1,
  )  # fmt: skip


def run(processes, command, *options, status=0, **environment) -> str:
  pod = start(processes, command, *options, **environment)
  output = pod.communicate(timeout=300)[0]
  assert pod.returncode == status, f"status {pod.returncode}\n{output}"
  return output


def alive(marker: str) -> bool:
  """Returns whether any process has `marker` in its command line."""
  return any(marker.encode() in path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())


def test_processes_have_ids_and_their_output_is_labeled():
  output = run(3, ["bash", "-c", TALKS + "echo to stderr >&2; printf 'no newline'"], "--devices=2")
  places = dict(re.findall(r"\[(\d)\] process (\d of 3, 2 devices, localhost:\d+)", output))
  assert [place[0] for _, place in sorted(places.items())] == ["0", "1", "2"]
  assert len({place.split(", ")[-1] for place in places.values()}) == 1  # the same coordinator for all
  for i in range(3):
    assert output.splitlines().count(f"[{i}] to stderr") == output.splitlines().count(f"[{i}] no newline") == 1


def test_arguments_environment_and_input_of_a_process(monkeypatch):
  monkeypatch.delenv("JAX_PLATFORMS", raising=False)
  prints = 'echo "$JAX_PLATFORMS $JAX_NUM_CPU_DEVICES $PYTHONUNBUFFERED <$1> <$2> $(wc -c)"'
  assert run(1, ["bash", "-c", prints, "name", "two  words", "a'b"]) == "[0] cpu 4 1 <two  words> <a'b> 0\n"
  assert run(1, ["bash", "-c", prints, "name"], JAX_PLATFORMS="cuda") == "[0] cuda 4 1 <> <> 0\n"
  typed = [REPOSITORY / "launch/local_pod.sh", "1", "--", "wc", "-c"]
  assert subprocess.run(typed, input=b"to the terminal", capture_output=True).stdout == b"[0] 0\n"
  ports = {run(1, ["bash", "-c", "echo $T5LIKE_COORDINATOR"]).split(":")[1].strip() for _ in range(3)}
  assert all(20_000 <= int(port) < 32_000 for port in ports)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("status", [1, 2, 124])
def test_a_failed_process_stops_all_and_its_status_is_kept(status):
  started = time.monotonic()
  fails = f"[ $T5LIKE_PROCESS_ID != 1 ] || {{ sleep 1; exit {status}; }};"
  output = run(3, ["bash", "-c", fails + WAITS], status=status)
  assert f"process 1 exited with status {status}" in output and time.monotonic() - started < 200
  for i in (0, 2):
    assert f"[{i}] stopping" in output and f"[{i}] the last word" in output
  assert "Terminated" not in output


def test_an_immediate_failure_stops_processes_that_have_just_started():
  for _ in range(3):  # to cover both orders
    # A signal between fork and exec is lost now and then: that process is killed after this time.
    run(4, ["bash", "-c", "[ $T5LIKE_PROCESS_ID != 0 ] || exit 1;" + WAITS], status=1, T5LIKE_STOP_SECONDS="2")


def test_a_process_that_does_not_stop_is_killed_with_its_children():
  seconds = f"3{os.getpid()}"  # no other process sleeps as long
  stubborn = f"trap '' TERM; [ $T5LIKE_PROCESS_ID != 0 ] || {{ sleep 1; exit 1; }}; setsid sleep {seconds} & wait"
  output = run(2, ["bash", "-c", stubborn], status=1, T5LIKE_STOP_SECONDS="1")
  assert "killed the processes that did not stop in time" in output
  assert not alive(f"sleep\0{seconds}")


def test_the_killed_process_is_named_and_not_one_that_failed_without_it(tmp_path):
  """All have ended when the script looks; the first by its number has failed as a consequence."""
  ends = (
    "echo ready; while [ ! -e $1 ]; do sleep 0.1; done; echo $$ >> $1; [ $T5LIKE_PROCESS_ID != 2 ] || kill -KILL $$;"
  )
  pod = start(3, ["bash", "-c", ends + "exit $((1 + T5LIKE_PROCESS_ID * 133))", "name", tmp_path / "end"])
  for _ in range(3):
    assert "ready" in pod.stdout.readline()
  pod.send_signal(signal.SIGSTOP)
  (tmp_path / "end").touch()
  while len((tmp_path / "end").read_text().split()) < 3:
    time.sleep(0.1)
  time.sleep(1)
  pod.send_signal(signal.SIGCONT)
  output = pod.communicate(timeout=300)[0]
  assert pod.returncode == 137 and "process 2 exited with status 137" in output


@pytest.mark.parametrize("again", [False, True])
def test_processes_that_ignore_a_signal_are_killed_in_time_or_by_a_second_one(again):
  pod = start(2, ["bash", "-c", "trap '' TERM; echo ready; sleep 300 & wait; exit 9"],
              T5LIKE_STOP_SECONDS="200" if again else "1")  # fmt: skip
  assert {pod.stdout.readline() for _ in range(2)} == {"[0] ready\n", "[1] ready\n"}
  began = time.monotonic()
  pod.send_signal(signal.SIGTERM)
  if again:
    time.sleep(1)
    pod.send_signal(signal.SIGTERM)
  output = pod.communicate(timeout=300)[0]
  assert pod.returncode == 137 and time.monotonic() - began < 100
  assert "killed the processes that did not stop in time" in output


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("number", "word"), [(signal.SIGTERM, "the last word"), (signal.SIGINT, "interrupted")])
def test_a_signal_reaches_each_process_once(number, word):
  pod = start(2, ["bash", "-c", WAITS])
  assert {pod.stdout.readline()[:12] for _ in range(2)} == {"[0] process ", "[1] process "}
  pod.send_signal(number)
  output = pod.communicate(timeout=300)[0]
  assert pod.returncode == 128 + number
  assert all(output.splitlines().count(f"[{i}] {word}") == 1 for i in range(2))


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["two", "--", "true"], "invalid number of processes: 'two'"),
    (["0", "--", "true"], "invalid number of processes: '0'"),
    (["2", "--devices=x", "--", "true"], "invalid --devices: x"),
    (["2", "--device=4", "--", "true"], "unknown option --device=4"),
    (["2", "t5like"], "the command to run comes after --"),
    (["2"], "no command to run"),
  ],
)
def test_invalid_arguments_are_rejected_before_anything_starts(arguments, message):
  done = subprocess.run([REPOSITORY / "launch/local_pod.sh", *arguments], capture_output=True, text=True)
  assert done.returncode == 2 and message in done.stderr and "try  launch/local_pod.sh" in done.stderr


def test_the_command_is_found_without_activating_an_environment(tmp_path):
  """It is searched in T5LIKE_VENV, then on the PATH, then in the checkout's .venv."""
  script = tmp_path / "checkout/launch/local_pod.sh"
  script.parent.mkdir(parents=True)
  for name in ("local_pod.sh", "help.sh"):
    shutil.copy(REPOSITORY / "launch" / name, script.parent)
  plain = {**{k: v for k, v in os.environ.items() if k != "T5LIKE_VENV"}, "PATH": "/usr/bin:/bin"}

  def output_of(**environment):
    done = subprocess.run(
      [script, "1", "--", "t5like", "train"], env=plain | environment, capture_output=True, text=True, timeout=100
    )
    return done.returncode, done.stdout or done.stderr

  status, error = output_of()
  assert status == 2 and "command t5like not found" in error and "try  launch/quickstart.sh" in error
  for folder in ("checkout/.venv/bin", "on_path", "custom_venv/bin"):
    (tmp_path / folder).mkdir(parents=True)
    put_on_path(tmp_path / folder, {"t5like": ["echo", folder]})
  on_path = f"{tmp_path / 'on_path'}:/usr/bin:/bin"
  assert output_of() == (0, "[0] checkout/.venv/bin train\n")
  assert output_of(PATH=on_path) == (0, "[0] on_path train\n")
  assert output_of(PATH=on_path, T5LIKE_VENV=str(tmp_path / "custom_venv")) == (0, "[0] custom_venv/bin train\n")


@pytest.mark.slow
def test_a_pod_trains_and_saves_on_sigterm(pretrain, tmp_path):
  """Trains the tiny model in two processes; sends SIGTERM to the script after a step."""
  train = [sys.executable, "-m", "t5like", *pretrain, f"--gin.MODEL_DIR={tmp_path}", "--gin.CHECKPOINT_PERIOD=100000"]
  pod = start(2, [*train, "--gin.TRAIN_STEPS=100000", "--gin.LOG_PERIOD=1"], "--devices=2")
  while not read_metrics(tmp_path):
    assert pod.poll() is None, pod.communicate()[0]
    time.sleep(0.1)
  pod.send_signal(signal.SIGTERM)
  output = pod.communicate(timeout=300)[0]
  assert pod.returncode == 143, output
  (step,) = checkpoint_steps(tmp_path)
  assert "[0] 2 of 2 hosts, 4 devices" in output and "[1] 2 of 2 hosts" not in output  # only process 0 logs
  assert f"[0] SIGTERM: stopped and saved at step {step:,} of 100,000" in output


def test_a_process_that_never_joins_does_not_block_the_others(pretrain, tmp_path):
  """Process 1 exits before it joins: process 0, a real trainer that waits for it, is stopped."""
  train = f'"{sys.executable}" -m t5like "$@"'
  command = ["bash", "-c", f"[ $T5LIKE_PROCESS_ID = 0 ] || {{ sleep 2; exit 7; }}; exec {train}", "trainer"]
  started = time.monotonic()
  output = run(2, [*command, *pretrain, f"--gin.MODEL_DIR={tmp_path}"], status=7)
  assert "process 1 exited with status 7" in output and time.monotonic() - started < 290
