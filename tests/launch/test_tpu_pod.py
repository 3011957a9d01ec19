"""`launch/tpu_pod.sh` with a stand-in for gcloud that accepts only real flags and fails like the real one.

The workers are folders in which the real launch/tpu/worker.sh runs; uv and the trainer are stand-ins too.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from commands import (
  PROJECT,
  PROJECT_OPTIONS,
  REPOSITORY,
  STAND_INS,
  check_t5like_finds_the_project,
  files_in,
  make_project,
  put_on_path,
)

WHERE = ["--project=p", "--zone=us-west4-a"]
V5E = [*WHERE, "--accelerator=v5litepod-8"]
TRAIN = ["--", "t5like", "train", "--gin.MODEL_DIR=gs://bucket/run"]


class Cloud:
  """A cloud in a folder, and the script that uses it."""

  def __init__(self, folder: Path):
    self.folder = folder
    self.here = make_project(folder / "the user's folder")
    self.wheel = folder / "t5like-9.9-py3-none-any.whl"
    self.wheel.write_text("a wheel")
    put_on_path(folder / "bin", {"gcloud": [STAND_INS / "gcloud.py"]})
    put_on_path(
      folder / "bin_of_workers", {"uv": [STAND_INS / "worker/uv.py"], "hostname": [STAND_INS / "worker/hostname"]}
    )
    self.environment = {
      **os.environ,
      "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
      "T5LIKE_STAND_IN": str(folder),
      "T5LIKE_PODS": str(folder / "memory"),
      "T5LIKE_RETRIES": "3",
      "T5LIKE_RETRY_SECONDS": "0",
      "T5LIKE_POLL_SECONDS": "0",
    }

  def start(self, *words, **environment) -> subprocess.Popen:
    return subprocess.Popen(
      [REPOSITORY / "launch/tpu_pod.sh", *words], env={**self.environment, **environment}, cwd=self.here,
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip

  def run(self, *words, status=0, **environment) -> str:
    script = self.start(*words, **environment)
    output = script.communicate(timeout=300)[0]
    assert not (self.folder / "refused.txt").exists(), (self.folder / "refused.txt").read_text()
    assert script.returncode == status, f"status {script.returncode}\n{output}"
    return output

  def fail(self, words, stderr, times=1):
    (self.folder / "failures.json").write_text(json.dumps([{"words": words, "stderr": stderr, "times": times}]))

  @property
  def pods(self) -> dict:
    path = self.folder / "cloud.json"
    return json.loads(path.read_text()) if path.exists() else {}

  def calls(self, word) -> list[list[str]]:
    lines = (self.folder / "calls.jsonl").read_text().splitlines()
    return [call for call in map(json.loads, lines) if word in call]

  def started(self) -> list[str]:
    path = self.folder / "bucket/started"
    return path.read_text().splitlines() if path.exists() else []

  def wait_for_starts(self, number):
    """Waits until exactly `number` trainers have started."""
    deadline = time.monotonic() + 200
    while len(self.started()) < number and time.monotonic() < deadline:
      time.sleep(0.05)
    assert len(self.started()) == number

  def wait_for(self, path):
    deadline = time.monotonic() + 200
    while not (self.folder / path).exists():
      assert time.monotonic() < deadline, f"{path} did not appear"
      time.sleep(0.05)


@pytest.fixture
def cloud(tmp_path):
  cloud = Cloud(tmp_path)
  yield cloud
  for pid in tmp_path.glob("workers/*/t5like-pod/pid"):  # no process outlives its test
    try:
      os.killpg(int(pid.read_text()), signal.SIGKILL)
    except ProcessLookupError:
      continue


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
  """Returns the folder of a cloud with a pod on which t5like is installed."""
  cloud = Cloud(tmp_path_factory.mktemp("cloud"))
  cloud.run("create", "demo", *V5E)
  cloud.run("install", "demo", f"--from={cloud.wheel}")
  return cloud.folder


@pytest.fixture
def pod(cloud, installed):
  shutil.copytree(installed, cloud.folder, symlinks=True, dirs_exist_ok=True)
  return Cloud(cloud.folder)


# Commands


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  ("options", "expected"),
  [
    (["--accelerator=v4-32"], ["--runtime-version=tpu-ubuntu2204-base", "--node-id=demo"]),
    (["--accelerator=v5litepod-256", "--spot"], ["--runtime-version=v2-alpha-tpuv5-lite", "--spot"]),
    (["--accelerator=v5e-16"], ["--runtime-version=v2-alpha-tpuv5-lite", "--accelerator-type=v5litepod-16"]),
    (["--accelerator=v5p-128", "--reserved"], ["--runtime-version=v2-alpha-tpuv5", "--reserved"]),
    (["--accelerator=v6e-8", "--slices=4"], ["--runtime-version=v2-alpha-tpuv6e", "--node-count=4"]),
    (["--type=v5p", "--topology=2x2x4", "--valid_until=6h"], ["--type=v5p", "--valid-until-duration=6h"]),
    (["--accelerator=v6e-8", "--reservation=r"], ["alpha", "--reservation=r"]),
    (
      ["--accelerator=v4-8", "--network=n", "--subnetwork=s", "--service_account=a", "--internal_ips"],
      ["--network=n", "--subnetwork=s", "--service-account=a", "--internal-ips"],
    ),
  ],
)  # fmt: skip
def test_a_dry_run_prints_commands_that_gcloud_accepts(cloud, options, expected):
  output = cloud.run("up", "demo", *WHERE, *options, "--dry_run", *TRAIN, "--gin.LENGTHS={'inputs': 512}")
  commands = [shlex.split(line[2:]) for line in output.splitlines() if line.startswith("+ gcloud")]
  create = next(command for command in commands if "create" in command)
  assert set(expected) <= set(create) and {"--project=p", "--zone=us-west4-a"} <= set(create)
  steps = [next(w for w in c if w in ("describe", "create", "scp", "ssh", "delete")) for c in commands]
  assert steps == ["describe", "create", "scp", "ssh", "scp", "ssh", "ssh", "ssh", "delete"]
  assert "exec t5like train --restarts=10 --gin.MODEL_DIR=gs://bucket/run" in output and not cloud.pods
  assert not (cloud.folder / "calls.jsonl").exists() and not (cloud.folder / "memory").exists()
  # The stand-in accepts the printed command: all flags are real.
  checked = subprocess.run(create, env=cloud.environment, capture_output=True, text=True)
  assert checked.returncode == 0, checked.stderr


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
  ("words", "message"),
  [
    (["fly", "demo"], "unknown step 'fly'"),
    (["create", "My_Pod", *V5E], "invalid name of a pod: 'My_Pod'"),
    (["create", "demo", "--zone=z"], "--project is required"),
    (["create", "demo", "--project=p"], "--zone is required"),
    (["create", "demo", *WHERE], "--accelerator is required"),
    (["create", "demo", *WHERE, "--accelerator=v9-8"], "no default image for 'v9-8'"),
    (["create", "demo", *V5E, "--spott"], "unknown option --spott"),
    (["create", "demo", *V5E, "--slices=two"], "invalid --slices: two (expected a number)"),
    (["create", "demo", *V5E, "--slices=0"], "invalid --slices: 0 (expected 1 or more)"),
    (["up", "demo", *V5E], "missing command after --"),
    (["up", "demo", *V5E, "--", "python", "x.py"], "invalid command: python"),
    (["up", "demo", *V5E, "--", "t5like", "train", "--gin.MODEL_DIR=/home/me/run"], "would be lost with the pod"),
    (["up", "demo", *V5E, "--from=git+https://example.com/t5like", *TRAIN], "has no revision"),
    (["up", "demo", *V5E, *TRAIN, "--gin_file=models/t5/tinny.gin"], "no gin file models/t5/tinny.gin"),
    (["up", "demo", *V5E, *TRAIN, "--gin_file", "/tmp/my.gin"], "/tmp/my.gin would not be found on the workers"),
    (["up", "demo", *V5E, "--with=absent", *TRAIN], "no file or folder absent"),
    (["create", "demo", *V5E, "--with=my words"], "only start and up take --with"),
    (["up", "demo", *V5E, "--with", *TRAIN], "--with needs a value"),
  ],
)  # fmt: skip
def test_invalid_requests_cost_nothing(cloud, words, message):
  output = cloud.run(*words, status=2)
  assert f"error: {message}" in output or message in output
  assert not cloud.pods and "BILLED" not in output


# End to end


@pytest.mark.slow
def test_up_runs_all_steps_and_leaves_nothing_behind(cloud):
  """With two slices of two workers."""
  output = cloud.run("up", "demo", *V5E, "--slices=2", f"--from={cloud.wheel}", *TRAIN, "--steps=3")
  assert "demo is WAITING_FOR_RESOURCES" in output and "demo is ACTIVE" in output
  assert "identical packages on 4 workers" in output and "started on 4 workers" in output
  assert {line.split()[0] for line in cloud.started()} == {f"demo-{s}-w-{w}" for s in range(2) for w in range(2)}
  assert all("train --restarts=10 --gin.MODEL_DIR=gs://bucket/run --steps=3" in line for line in cloud.started())
  assert [line for line in output.splitlines() if line.startswith("worker 0 | step")] == [
    f"worker 0 | step {n}" for n in (1, 2, 3)
  ]
  assert "the run has ended with status 0" in output
  assert not cloud.pods and "demo is deleted and no longer billed" in output and "BILLED" not in output


def test_a_preempted_run_resumes_from_its_last_checkpoint_with_the_same_packages(cloud):
  (cloud.here / "other.gin").write_text("SEED = 4\n")
  output = cloud.run(
    "up", "demo", *V5E, "--spot", f"--from={cloud.wheel}", *TRAIN, "--steps=6", "--preempt_at=3", "--gin_file=other.gin"
  )
  assert "demo was preempted: requesting another" in output
  assert len(cloud.calls("create")) == 2 and not cloud.pods
  assert len(cloud.started()) == 4 and "worker 0 | starting at step 4" in output
  for worker in range(2):  # the files too
    assert files_in(cloud.folder / f"workers/demo-w-{worker}/t5like-pod/work") == {"other.gin": "SEED = 4\n"}
  installs = [call for call in cloud.calls("install") if "pip" in call]
  assert len(installs) == 4 and len({call[call.index("--exclude-newer") + 1] for call in installs}) == 1


@pytest.mark.slow
def test_a_failed_run_returns_its_status_and_saves_its_logs(pod):
  output = pod.run("up", "demo", *V5E, f"--from={pod.wheel}", *TRAIN, "--worker_fails=demo-w-1", status=1)
  assert "demo-w-1 | error: the moon is full" in output and "the run has ended with status 1" in output
  assert "the moon is full" in (pod.folder / "memory/demo/last_words.log").read_text() and not pod.pods


# Single steps


def test_a_step_without_a_pod_fails(cloud):
  assert "demo is not ready (its request is NONE)" in cloud.run("start", "demo", *V5E, *TRAIN, status=1)
  cloud.run("create", "demo")
  assert "t5like is not installed on demo" in cloud.run("start", "demo", *TRAIN, status=2)


@pytest.mark.slow
def test_steps_can_be_run_alone_and_repeated(pod):
  assert "demo is ACTIVE" in pod.run("create", "demo") and len(pod.calls("create")) == 1
  pod.run("install", "demo")
  assert len([call for call in pod.calls("install") if "pip" in call]) == 2  # not installed again
  pod.run("start", "demo", *TRAIN, "--steps=1000")
  pod.run("start", "demo", *TRAIN, "--steps=1000")
  pod.wait_for_starts(2)  # one per worker
  assert "another command is running" in pod.run("start", "demo", *TRAIN, "--steps=2", status=1)
  output = pod.run("status", "demo")
  assert "demo-w-0 status running" in output and "demo-w-1 status running" in output
  os.killpg(int((pod.folder / "workers/demo-w-1/t5like-pod/pid").read_text()), signal.SIGKILL)  # like a restart
  assert "demo-w-1 status vanished" in pod.run("status", "demo")
  pod.run("start", "demo", *TRAIN, "--steps=1000")
  pod.wait_for_starts(3)
  output = pod.run("stop", "demo")
  assert "the run has saved and exited; the pod stays" in output and "STILL BILLED: demo (v5litepod-8" in output
  assert "demo-w-1 status ended 143 stopped" in pod.run("status", "demo")
  assert "worker 0 | SIGTERM: saved" in pod.run("logs", "demo", status=143)
  assert "BILLED" not in pod.run("delete", "demo") and not pod.pods
  assert "demo is deleted" in pod.run("delete", "demo", *WHERE)


@pytest.mark.slow
def test_the_users_files_are_found_on_all_workers(pod):
  command = ["start", "demo", "--with=my words", "--", "t5like", "train", *PROJECT_OPTIONS, "--steps=1000"]
  output = pod.run(*command)
  assert f"sending {len(PROJECT)} files of {pod.here} to the workers" in output and "  it's $HOME/deep.gin" in output
  pod.wait_for_starts(2)
  work = [pod.folder / f"workers/demo-w-{worker}/t5like-pod/work" for worker in range(2)]
  assert files_in(work[0]) == files_in(work[1]) == PROJECT
  assert set((pod.folder / "bucket/folders").read_text().splitlines()) == set(map(str, work))
  assert all("train --restarts=10 --gin_file=my conf/run.gin" in line for line in pod.started())
  check_t5like_finds_the_project(work[1])

  pod.run(*command)  # the same files, the same run
  (pod.here / "helper.py").write_text("ready = 'new'\n")
  assert "the files of the run have changed, stop it first" in pod.run(*command, status=1, T5LIKE_RETRIES="1")
  assert files_in(work[0]) == PROJECT
  pod.run("stop", "demo")
  (work[0] / "made by the run").touch()
  pod.run("start", "demo", "--", "t5like", "train", "--gin.TASK_MODULES=['helper']", "--steps=1000")
  assert files_in(work[0]) == {"helper.py": "ready = 'new'\n", "made by the run": ""}


@pytest.mark.slow
def test_up_can_be_interrupted_resumed_and_stopped_from_elsewhere(pod):
  cloud = pod
  words = ["up", "demo", *V5E, f"--from={cloud.wheel}", *TRAIN, "--steps=1000"]
  watcher = cloud.start(*words)
  cloud.wait_for("bucket/step")
  watcher.send_signal(signal.SIGTERM)
  output = watcher.communicate(timeout=300)[0]
  assert watcher.returncode == 143 and "STILL BILLED: demo" in output
  assert "delete it  launch/tpu_pod.sh delete demo --project=p --zone=us-west4-a" in output
  (cloud.folder / "bucket/step").unlink()

  watcher = cloud.start(*words)
  lines = [""]
  while not lines[-1].startswith("worker 0 | "):
    lines.append(watcher.stdout.readline())
    assert lines[-1], "".join(lines)
  cloud.run("stop", "demo")
  output = watcher.communicate(timeout=300)[0]
  assert watcher.returncode == 143 and "the run was stopped; the pod stays" in output and "STILL BILLED" in output
  assert len(cloud.started()) == 2  # it was not restarted


# Failures

QUOTA = "ERROR: RESOURCE_EXHAUSTED: Quota limit 'TPUV5sLitepodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0."


def test_missing_quota_is_final_and_nothing_is_billed(cloud):
  cloud.fail("queued-resources create", QUOTA)
  output = cloud.run("create", "demo", *V5E, status=2)
  assert "error: the project has no quota for this" in output and "TPUV5sLitepod" in output
  assert len(cloud.calls("create")) == 1 and "BILLED" not in output


def test_a_request_that_fails_in_the_queue_is_deleted(cloud):
  why = {"T5LIKE_STAND_IN_GRANT": "FAILED", "T5LIKE_STAND_IN_WHY": "Quota 'TPUV5s' exhausted. Limit 16 in region"}
  output = cloud.run("create", "demo", *V5E, status=2, **why)
  assert "no quota" in output and "Limit 16" in output and not cloud.pods and "BILLED" not in output


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  ("message", "expected"),
  [
    ("ERROR: (gcloud) UNAUTHENTICATED: Request had invalid authentication credentials.", "gcloud auth login"),
    ("ERROR: (gcloud) PERMISSION_DENIED: Permission 'tpu.queuedResources.create' denied", "roles/tpu.admin"),
    ("ERROR: (gcloud) INVALID_ARGUMENT: Unknown accelerator type", "gcloud rejected the request"),
  ],
)
def test_permanent_errors_are_not_retried(cloud, message, expected):
  cloud.fail("queued-resources create", message, times=9)
  output = cloud.run("create", "demo", *V5E, status=2)
  assert expected in output and len(cloud.calls("create")) == 1 and "BILLED" not in output


def test_transient_errors_are_retried(cloud):
  cloud.fail("queued-resources create", "ERROR: (gcloud) UNAVAILABLE: The service is currently unavailable.", times=2)
  output = cloud.run("create", "demo", *V5E)
  assert "attempt 2 of 3 failed" in output and "demo is ACTIVE" in output and "STILL BILLED: demo" in output


def test_after_all_retries_what_may_be_billed_is_reported(cloud):
  cloud.fail("queued-resources create", "ERROR: (gcloud) UNAVAILABLE: deadline exceeded", times=9)
  output = cloud.run("create", "demo", *V5E, status=1)
  assert "cannot request the pod" in output and "MAY STILL BE BILLED: demo" in output


@pytest.mark.slow  # seconds
def test_a_request_whose_answer_was_lost_is_found(cloud):
  """The second attempt finds the request of the first."""
  cloud.run("create", "demo", *V5E)
  cloud.fail("queued-resources describe", "ERROR: (gcloud) NOT_FOUND: Resource 'demo' was not found")
  assert "demo is ACTIVE" in cloud.run("create", "demo") and len(cloud.pods) == 1


def test_ssh_timeouts_are_retried(pod):
  pod.fail("queued-resources ssh", "ERROR: ssh: connect to host 10.0.0.1 port 22: Connection timed out", times=2)
  output = pod.run("start", "demo", *TRAIN, "--steps=2")
  assert "start: 0 of 2 workers responded (attempt 1 of 3)" in output and "started on 2 workers" in output


@pytest.mark.slow  # seconds
def test_packages_that_cannot_be_installed_are_reported(cloud):
  cloud.run("create", "demo", *V5E)
  cloud.fail("pip install", "error: No solution found: t5like needs jax<0.13", times=99)
  output = cloud.run("install", "demo", f"--from={cloud.wheel}", status=1, T5LIKE_RETRIES="1")
  assert "demo-w-1 install failed: error: No solution found: t5like needs jax<0.13" in output


@pytest.mark.sampled(1)
@pytest.mark.parametrize("unreachable", ["demo-w-1", "demo-1"])
def test_an_unreachable_worker_is_named(cloud, unreachable):
  """One worker of a slice; or all workers of a slice, for which gcloud only prints a warning, with status 0."""
  slices = "--slices=2" if unreachable == "demo-1" else "--slices=1"
  cloud.run("create", "demo", *V5E, slices)
  (cloud.folder / "unreachable").write_text(unreachable)
  output = cloud.run("install", "demo", f"--from={cloud.wheel}", status=1)
  assert "failed on some workers of demo" in output and "STILL BILLED: demo" in output
  assert ("worker 1 of demo\n" if slices == "--slices=1" else "worker 0 of demo-1,worker 1 of demo-1") in output
  (cloud.folder / "unreachable").unlink()
  cloud.run("install", "demo")


@pytest.mark.slow  # seconds
def test_a_pod_that_is_preempted_during_installation_is_replaced(pod):
  """A slice is preempted, but the state of the request has not changed yet."""
  path = pod.folder / "cloud.json"
  path.write_text(path.read_text().replace("READY", "PREEMPTED"))
  output = pod.run("up", "demo", f"--from={pod.wheel}", *TRAIN)
  assert "demo was preempted" in output and len(pod.calls("create")) == 2 and not pod.pods


@pytest.mark.sampled(1)
@pytest.mark.parametrize("message", ["ERROR: (gcloud) INTERNAL: an internal error", "ERROR: PERMISSION_DENIED: no"])
def test_a_pod_that_cannot_be_deleted_is_not_forgotten(pod, message):
  pod.fail("queued-resources delete", message, times=9)
  status = 2 if "PERMISSION" in message else 1
  output = pod.run("delete", "demo", status=status)
  assert "error: " in output and "BILLED: demo (v5litepod-8" in output
  assert "launch/tpu_pod.sh delete demo --project=p --zone=us-west4-a" in output
  (pod.folder / "failures.json").unlink()
  pod.run("delete", "demo")  # its options are remembered
