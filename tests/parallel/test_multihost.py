"""Multi-host start-up with missing or inconsistent hosts, training and coordinated stopping.

Hosts are processes on this machine, connected over TCP and gloo.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import numpy as np
import pytest
from ports import free_port
from tiny_runs import ONE_DEVICE, losses

from t5like import parallel
from t5like.errors import UserError
from t5like.parallel import multihost
from t5like.parallel.roll_call import Host, check_consistent, check_present, roll_call

REPOSITORY = Path(__file__).resolve().parents[2]


class Pod:
  """Processes that act as hosts; they end with the test."""

  def __init__(self, action, processes, *, present=None, configs=None, timeout=300, devices=1, meshes=""):
    self.processes = {}
    port = free_port()
    for number in range(processes) if present is None else present:
      env = {
        **os.environ,
        "T5LIKE_COORDINATOR": f"localhost:{port}",
        "T5LIKE_NUM_PROCESSES": str(processes),
        "T5LIKE_PROCESS_ID": str(number),
        "JAX_NUM_CPU_DEVICES": str(devices),
        "PYTHONPATH": str(REPOSITORY),
        "MESHES": meshes,
      }
      config = (configs or {}).get(number, "the same")
      self.processes[number] = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("host_process.py"), action, config, str(timeout)],
        env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
      )  # fmt: skip
    # All start at the same time, so that slow imports do not make a host seem missing.
    self.wait_for("loaded")
    for process in self.processes.values():
      process.stdin.write("\n")
      process.stdin.flush()

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    for process in self.processes.values():
      process.kill()
      process.wait()
      process.stdin.close()
      process.stdout.close()

  def wait_for(self, word):
    """Waits until every process has printed a line that starts with `word`."""
    for process in self.processes.values():
      while not (line := process.stdout.readline()).startswith(word):
        assert line, f"ended before it printed {word!r}"

  def results(self, status=0):
    """Returns the output of each process after all have ended with `status`."""
    outputs = {number: process.communicate(timeout=300)[0] for number, process in self.processes.items()}
    for number, process in self.processes.items():
      assert process.returncode == status, f"process {number}: status {process.returncode}\n{outputs[number]}"
    return outputs


@pytest.mark.slow
def test_four_hosts_connect_and_compute_together():
  with Pod("collective", 4, devices=2) as pod:
    outputs = pod.results()
  for output in outputs.values():
    assert "report 4 of 4 hosts, 8 devices" in output
    assert all(f"process {n} on {socket.gethostname()}: 2 devices" in output for n in range(4))
    assert f"configuration {multihost.config_hash('the same')}" in output and "jaxlib" in output
    assert "sum 1111" in output  # 1 + 10 + 100 + 1000


def test_hosts_whose_data_differs_are_refused():
  with Pod("compare", 2) as pod:
    outputs = pod.results(status=2)
  for output in outputs.values():
    assert "refused the second text differs between hosts" in output and "process 1" in output


def test_the_code_is_part_of_the_version(tmp_path, monkeypatch):
  shutil.copytree(REPOSITORY / "t5like/decoding", tmp_path / "t5like")
  monkeypatch.setattr(multihost.t5like, "__file__", str(tmp_path / "t5like/__init__.py"))
  before = multihost.versions()
  assert before == multihost.versions() and before["t5like"].startswith(f"{multihost.t5like.__version__}+")
  path = tmp_path / "t5like/beams.py"
  path.write_text(path.read_text() + "#")
  after = multihost.versions()
  assert after["t5like"] != before["t5like"] and {**after, "t5like": ""} == {**before, "t5like": ""}


# Axes (data, fsdp, tensor) within a process and across: processes share all rows, or a process has devices of two
# batch shards (3 devices per process, pairs of them in a tensor group).
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  ("processes", "devices", "meshes"), [(2, 3, "3,1,2"), (2, 4, "2,4,1 2,1,4"), (4, 1, "1,1,4 2,1,2 1,2,2")]
)
def test_hosts_train_as_one(processes, devices, meshes):
  with Pod("train", processes, devices=devices, meshes=meshes) as pod:
    outputs = pod.results()
  expected = losses("gpt", parallel.MeshAxes(), ONE_DEVICE, steps=3)
  for output in outputs.values():
    found = re.findall("losses (.*)", output)
    assert len(found) == len(meshes.split())
    for values in found:
      np.testing.assert_allclose([float(x) for x in values.split()], expected, atol=1e-5)


@pytest.mark.slow
def test_a_host_that_computes_longer_than_gloo_waits_is_waited_for():
  """Hosts that compile on busy cores reach their first step more than 30 seconds apart."""
  with Pod("late", 2, devices=2, meshes="2,2,1") as pod:
    outputs = pod.results()
  for output in outputs.values():
    assert re.findall("sums (.*)", output) == ["6.0", "2.0 4.0", "1.0 5.0"], output


@pytest.mark.slow
def test_every_device_has_the_rows_of_its_shard():
  """By hand: the rows of a batch of 48 that each of 4 processes with 3 devices loads, for several meshes."""
  quarters = [list(range(n, n + 12)) for n in (0, 12, 24, 36)]
  expected = {
    "12,1,1": quarters,
    "4,1,3": quarters,
    "2,2,3": quarters,
    "1,4,3": quarters,
    "2,1,6": [[*range(24)], [*range(24)], [*range(24, 48)], [*range(24, 48)]],
    "1,1,12": [list(range(48))] * 4,
    # Groups of two devices, so that the devices of a process belong to two shards.
    "6,1,2": [[*range(16)], [*range(8, 24)], [*range(24, 40)], [*range(32, 48)]],
    # Groups of four: 0-3 | 4-7 | 8-11 over processes 0-2 | 3-5 | 6-8 | 9-11.
    "3,1,4": [[*range(16)], [*range(32)], [*range(16, 48)], [*range(32, 48)]],
  }
  with Pod("rows", 4, devices=3, meshes=" ".join(expected)) as pod:
    outputs = pod.results()
  for process, output in outputs.items():
    found = re.findall("rows (.*) (right|wrong)", output)
    assert [verdict for _, verdict in found] == ["right"] * len(expected)
    assert [[int(n) for n in rows.split()] for rows, _ in found] == [rows[process] for rows in expected.values()]


def test_a_missing_host_is_named_within_the_timeout():
  with Pod("none", 3, present=(0, 2), timeout=4) as pod:
    outputs = pod.results(status=2)
  for output in outputs.values():
    assert "only 2 of 3 hosts connected within 4 s" in output
    assert "missing  process 1\n" in output and "process 2 on" in output
    assert float(re.search(r"failed after ([\d.]+) s", output)[1]) < 60  # JAX alone would take minutes


def test_a_host_with_a_different_configuration_is_named():
  with Pod("none", 2, configs={0: "STEPS = 1\nRATE = 0.1", 1: "STEPS = 1\nRATE = 0.2"}) as pod:
    outputs = pod.results(status=2)
  for output in outputs.values():
    assert f"mismatched configuration on process 1 on {socket.gethostname()}" in output
    assert "RATE = 0.1" in output and "RATE = 0.2" in output and "STEPS" not in output


@pytest.mark.slow
@pytest.mark.parametrize("trigger", ["SIGTERM to one", "requested by one"])
def test_all_hosts_stop_at_the_same_step(trigger):
  with Pod("loop" if trigger == "SIGTERM to one" else "stop_itself", 2) as pod:
    pod.wait_for("running")
    if trigger == "SIGTERM to one":
      pod.processes[1].send_signal(signal.SIGTERM)
    outputs = pod.results()
  steps = {re.search(r"stopped (\d+)", output)[1] for output in outputs.values()}
  assert len(steps) == 1 and int(steps.pop()) < 1999


# Below, hosts are threads of one process.


def host(number, processes=3, config="c", **versions):
  return Host(number, processes, f"host{number}", config, {"jax": "1", **versions})


def call_all(hosts, timeout=60.0, before=None):
  """Returns the result or error of the roll call for each host."""
  port, answers = free_port(), {}

  def join(own):
    try:
      answers[own.host] = roll_call(f"localhost:{port}", own, timeout)
    except UserError as error:
      answers[own.host] = error

  threads = [threading.Thread(target=join, args=(own,)) for own in hosts]
  for thread in threads:
    thread.start()
  if before:
    before(port)
  for thread in threads:
    thread.join()
  return answers


def knock(port):
  """Connects as an unrelated client, as soon as the coordinator listens."""
  deadline = time.monotonic() + 60
  while time.monotonic() < deadline:
    try:
      with socket.create_connection(("localhost", port), timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return
    except OSError:
      time.sleep(0.01)


def test_all_hosts_get_the_same_list_despite_unrelated_clients():
  def knock_then_join(port):
    knock(port)
    assert roll_call(f"localhost:{port}", host(2), 60.0) == [host(0), host(1), host(2)]

  answers = call_all([host(0), host(1)], before=knock_then_join)
  assert answers == {"host0": [host(0), host(1), host(2)], "host1": [host(0), host(1), host(2)]}


def test_the_shortest_timeout_applies_to_all():
  began = time.monotonic()
  port, answers = free_port(), {}
  thread = threading.Thread(target=lambda: answers.update(zero=roll_call(f"localhost:{port}", host(0), 300.0)))
  thread.start()
  knock(port)
  answers["one"] = roll_call(f"localhost:{port}", host(1), 1.5)
  thread.join()
  assert time.monotonic() - began < 150 and answers["zero"] == answers["one"] == [host(0), host(1)]
  with pytest.raises(UserError, match="2 of 3 hosts") as error:
    check_present(answers["one"], 3, 1.5)
  assert "missing  process 2" in str(error.value)


def test_a_missing_coordinator_is_named():
  began = time.monotonic()
  answers = call_all([host(1)], timeout=1.0)
  assert "process 0, the coordinator at localhost" in str(answers["host1"]) and time.monotonic() - began < 30


def test_two_coordinators_on_one_machine():
  with socket.socket() as taken:
    taken.bind(("", 0))
    taken.listen()
    with pytest.raises(UserError, match="cannot open the coordinator's port"):
      roll_call(f"localhost:{taken.getsockname()[1]}", host(0), 1.0)


def test_a_duplicate_process_id_is_rejected():
  with pytest.raises(UserError, match="2 processes have the id 1"):
    check_present([host(0), host(1), host(1)], 3, 1.0)


@pytest.mark.parametrize(
  ("hosts", "message"),
  [
    ([host(0), host(1, jax="2"), host(2)], "mismatched version of jax on process 1 on host1"),
    ([host(0, config="d"), host(1), host(2)], "mismatched configuration on process 0 on host0"),
    ([host(0), host(1, processes=4)], "mismatched number of processes on process 1"),
    ([host(0), host(1, libtpu="1"), host(2)], "mismatched version of libtpu on process 1"),
  ],
)
def test_hosts_in_the_minority_are_named(hosts, message):
  with pytest.raises(UserError, match=message):
    check_consistent(hosts)


def test_a_host_with_fewer_devices_is_named(monkeypatch):
  owners = [0, 0, 1, 2, 2]
  devices = [types.SimpleNamespace(process_index=owner, device_kind="fake") for owner in owners]
  monkeypatch.setattr(multihost.jax, "devices", lambda: devices)
  with pytest.raises(UserError, match="different numbers of devices") as error:
    multihost._count_devices([host(0), host(1), host(2)])
  assert "2 devices" in str(error.value) and "process 1 on host1: 1" in str(error.value)


# Settings of this process.


@pytest.fixture
def environment(monkeypatch):
  for name in list(os.environ):
    if name.startswith(("T5LIKE_", "SLURM_", "OMPI_", "KUBERNETES_")):
      monkeypatch.delenv(name)
  return monkeypatch.setenv


def test_nothing_happens_on_a_single_machine(environment):
  assert multihost.start() is None
  environment("T5LIKE_NUM_PROCESSES", "1")
  assert multihost.start(coordinator="localhost:1", process_id=0) is None


def test_arguments_take_precedence_over_the_environment(environment):
  environment("T5LIKE_COORDINATOR", "a:1")
  environment("T5LIKE_NUM_PROCESSES", "4")
  environment("T5LIKE_PROCESS_ID", "3")
  assert multihost.resolve_process() == multihost.ProcessConfig("a:1", 4, 3)
  assert multihost.resolve_process("b:2", process_id=0) == multihost.ProcessConfig("b:2", 4, 0)


def test_slurm_is_detected(environment):
  environment("SLURM_JOB_ID", "70000")
  environment("SLURM_STEP_NODELIST", "node[003-006]")
  environment("SLURM_STEP_NUM_TASKS", "4")
  environment("SLURM_NTASKS", "4")
  environment("SLURM_PROCID", "2")
  environment("SLURM_LOCALID", "0")
  process = multihost.resolve_process()
  assert (process.processes, process.process_id) == (4, 2) and re.fullmatch(r"node003:\d+", process.coordinator)


@pytest.mark.parametrize(
  ("given", "message"),
  [
    (dict(T5LIKE_COORDINATOR="a:1"), "T5LIKE_NUM_PROCESSES=... T5LIKE_PROCESS_ID=..."),
    (dict(T5LIKE_NUM_PROCESSES="two"), "invalid T5LIKE_NUM_PROCESSES: two"),
    (dict(T5LIKE_COORDINATOR="a", T5LIKE_NUM_PROCESSES="2", T5LIKE_PROCESS_ID="0"), "invalid coordinator: 'a'"),
    (dict(T5LIKE_COORDINATOR="a:1", T5LIKE_NUM_PROCESSES="2", T5LIKE_PROCESS_ID="2"), "invalid process id: 2"),
  ],
)
def test_incomplete_or_invalid_settings_are_rejected(environment, given, message):
  for name, value in given.items():
    environment(name, value)
  with pytest.raises(UserError) as error:
    multihost.resolve_process()
  assert message in str(error.value)


def test_a_single_machine_stops_on_request():
  assert parallel.any_host_requested_stop(1, requested_here=True)
  assert not parallel.any_host_requested_stop(1)
  assert parallel.stop_signals() == (signal.SIGINT, signal.SIGTERM)
