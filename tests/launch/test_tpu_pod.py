"""`launch/tpu_pod.sh` against a stand-in for gcloud that takes no flag the real one does not, and fails as it does.

The workers are folders in which the real launch/tpu/worker.sh runs; uv and the trainer there are stand-ins too.
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
    """Exactly so many trainers were started; they take a moment to say so."""
    deadline = time.monotonic() + 200
    while len(self.started()) < number and time.monotonic() < deadline:
      time.sleep(0.05)
    assert len(self.started()) == number

  def wait_for(self, path):
    deadline = time.monotonic() + 200
    while not (self.folder / path).exists():
      assert time.monotonic() < deadline, f"{path} did not come"
      time.sleep(0.05)


@pytest.fixture
def cloud(tmp_path):
  cloud = Cloud(tmp_path)
  yield cloud
  for pid in tmp_path.glob("workers/*/t5like-pod/pid"):  # none outlives its test
    try:
      os.killpg(int(pid.read_text()), signal.SIGKILL)
    except ProcessLookupError:
      continue


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
  """The folder of a cloud with a pod that has t5like on it."""
  cloud = Cloud(tmp_path_factory.mktemp("cloud"))
  cloud.run("create", "demo", *V5E)
  cloud.run("install", "demo", f"--from={cloud.wheel}")
  return cloud.folder


@pytest.fixture
def pod(cloud, installed):
  shutil.copytree(installed, cloud.folder, symlinks=True, dirs_exist_ok=True)
  return Cloud(cloud.folder)


# The commands themselves


@pytest.mark.parametrize(
  ("options", "expected"),
  [
    (["--accelerator=v4-32"], ["--runtime-version=tpu-ubuntu2204-base", "--node-id=demo"]),
    (["--accelerator=v5litepod-256", "--spot"], ["--runtime-version=v2-alpha-tpuv5-lite", "--spot"]),
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
def test_a_dry_run_prints_commands_that_gcloud_takes(cloud, options, expected):
  output = cloud.run("up", "demo", *WHERE, *options, "--dry_run", *TRAIN, "--gin.LENGTHS={'inputs': 512}")
  commands = [shlex.split(line[2:]) for line in output.splitlines() if line.startswith("+ gcloud")]
  create = next(command for command in commands if "create" in command)
  assert set(expected) <= set(create) and {"--project=p", "--zone=us-west4-a"} <= set(create)
  steps = [next(w for w in c if w in ("describe", "create", "scp", "ssh", "delete")) for c in commands]
  assert steps == ["describe", "create", "scp", "ssh", "scp", "ssh", "ssh", "ssh", "delete"]
  assert "exec t5like train --restarts=10 --gin.MODEL_DIR=gs://bucket/run" in output and not cloud.pods
  assert not (cloud.folder / "calls.jsonl").exists() and not (cloud.folder / "memory").exists()
  # The stand-in takes what was printed: every flag is one of the real tool's.
  checked = subprocess.run(create, env=cloud.environment, capture_output=True, text=True)
  assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (["fly", "demo"], "'fly' is no step"),
    (["create", "My_Pod", *V5E], "'My_Pod' cannot be the name of a pod"),
    (["create", "demo", "--zone=z"], "which project?"),
    (["create", "demo", "--project=p"], "which zone?"),
    (["create", "demo", *WHERE], "which TPU?"),
    (["create", "demo", *WHERE, "--accelerator=v9-8"], "no image is known for 'v9-8'"),
    (["create", "demo", *V5E, "--spott"], "there is no option --spott"),
    (["create", "demo", *V5E, "--slices=two"], "--slices=two is not a number"),
    (["up", "demo", *V5E], "what to run? nothing comes after --"),
    (["up", "demo", *V5E, "--", "python", "x.py"], "the command is python"),
    (["up", "demo", *V5E, "--", "t5like", "train", "--gin.MODEL_DIR=/home/me/run"], "would be lost with the pod"),
    (["up", "demo", *V5E, "--from=git+https://example.com/t5like", *TRAIN], "may be another version tomorrow"),
    (["up", "demo", *V5E, *TRAIN, "--gin_file=models/t5/tinny.gin"], "no gin file models/t5/tinny.gin"),
    (["up", "demo", *V5E, *TRAIN, "--gin_file", "/tmp/my.gin"], "/tmp/my.gin would not be found on the workers"),
    (["up", "demo", *V5E, "--with=absent", *TRAIN], "no file or folder absent"),
    (["create", "demo", *V5E, "--with=my words"], "only start and up take --with"),
    (["up", "demo", *V5E, "--with", *TRAIN], "--with needs a value"),
  ],
)  # fmt: skip
def test_what_cannot_work_costs_nothing(cloud, words, message):
  output = cloud.run(*words, status=2)
  assert f"error: {message}" in output or message in output
  assert not cloud.pods and "BILLED" not in output


# The whole way


def test_up_takes_all_steps_and_leaves_nothing_behind(cloud):
  """Two slices of two workers."""
  output = cloud.run("up", "demo", *V5E, "--slices=2", f"--from={cloud.wheel}", *TRAIN, "--steps=3")
  assert "demo is WAITING_FOR_RESOURCES" in output and "demo is ACTIVE" in output
  assert "the same packages on 4 workers" in output and "started on 4 workers" in output
  assert {line.split()[0] for line in cloud.started()} == {f"demo-{s}-w-{w}" for s in range(2) for w in range(2)}
  assert all("train --restarts=10 --gin.MODEL_DIR=gs://bucket/run --steps=3" in line for line in cloud.started())
  assert [line for line in output.splitlines() if line.startswith("worker 0 | step")] == [
    f"worker 0 | step {n}" for n in (1, 2, 3)
  ]
  assert "the run has ended with status 0" in output
  assert not cloud.pods and "demo is deleted: nothing of it is billed any more" in output and "BILLED" not in output


def test_a_preempted_run_goes_on_from_its_last_checkpoint_with_the_same_packages(cloud):
  (cloud.here / "other.gin").write_text("SEED = 4\n")
  output = cloud.run(
    "up", "demo", *V5E, "--spot", f"--from={cloud.wheel}", *TRAIN, "--steps=6", "--preempt_at=3", "--gin_file=other.gin"
  )
  assert "demo was preempted: asking for another" in output
  assert len(cloud.calls("create")) == 2 and not cloud.pods
  assert len(cloud.started()) == 4 and "worker 0 | starting at step 4" in output
  for worker in range(2):  # the files too
    assert files_in(cloud.folder / f"workers/demo-w-{worker}/t5like-pod/work") == {"other.gin": "SEED = 4\n"}
  installs = [call for call in cloud.calls("install") if "pip" in call]
  assert len(installs) == 4 and len({call[call.index("--exclude-newer") + 1] for call in installs}) == 1


def test_a_run_that_fails_gives_its_status_and_its_last_words(pod):
  output = pod.run("up", "demo", *V5E, f"--from={pod.wheel}", *TRAIN, "--worker_fails=demo-w-1", status=1)
  assert "demo-w-1 | error: the moon is full" in output and "the run has ended with status 1" in output
  assert "the moon is full" in (pod.folder / "memory/demo/last_words.log").read_text() and not pod.pods


# Every step alone, and again


def test_a_step_whose_pod_is_not_there_says_so(cloud):
  assert "demo is not there (its request is NONE)" in cloud.run("start", "demo", *V5E, *TRAIN, status=1)
  cloud.run("create", "demo")
  assert "t5like is not installed on demo" in cloud.run("start", "demo", *TRAIN, status=2)


def test_steps_can_be_taken_alone_and_again(pod):
  assert "demo is ACTIVE" in pod.run("create", "demo") and len(pod.calls("create")) == 1
  pod.run("install", "demo")
  assert len([call for call in pod.calls("install") if "pip" in call]) == 2  # nothing was left to do
  pod.run("start", "demo", *TRAIN, "--steps=1000")
  pod.run("start", "demo", *TRAIN, "--steps=1000")
  pod.wait_for_starts(2)  # one a worker
  assert "another command is running" in pod.run("start", "demo", *TRAIN, "--steps=2", status=1)
  output = pod.run("status", "demo")
  assert "demo-w-0 status running" in output and "demo-w-1 status running" in output
  os.killpg(int((pod.folder / "workers/demo-w-1/t5like-pod/pid").read_text()), signal.SIGKILL)  # as a restart would
  assert "demo-w-1 status vanished" in pod.run("status", "demo")
  pod.run("start", "demo", *TRAIN, "--steps=1000")
  pod.wait_for_starts(3)
  output = pod.run("stop", "demo")
  assert "the run has saved and ended; the pod stays" in output and "STILL BILLED: demo (v5litepod-8" in output
  assert "demo-w-1 status ended 143 stopped" in pod.run("status", "demo")
  assert "worker 0 | SIGTERM: saved" in pod.run("logs", "demo", status=143)
  assert "BILLED" not in pod.run("delete", "demo") and not pod.pods
  assert "demo is deleted" in pod.run("delete", "demo", *WHERE)


def test_the_users_files_reach_all_workers_and_are_found_there(pod):
  command = ["start", "demo", "--with=my words", "--", "t5like", "train", *PROJECT_OPTIONS, "--steps=1000"]
  output = pod.run(*command)
  assert f"{len(PROJECT)} files of {pod.here} go to the workers" in output and "  it's $HOME/deep.gin" in output
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


def test_up_can_be_left_and_taken_up_again_and_stopped_from_elsewhere(pod):
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
  assert len(cloud.started()) == 2  # it was never started again


# When things go wrong

QUOTA = "ERROR: RESOURCE_EXHAUSTED: Quota limit 'TPUV5sLitepodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0."


def test_quota_denied_is_final_and_nothing_is_billed(cloud):
  cloud.fail("queued-resources create", QUOTA)
  output = cloud.run("create", "demo", *V5E, status=2)
  assert "error: the project has no quota for this" in output and "TPUV5sLitepod" in output
  assert len(cloud.calls("create")) == 1 and "BILLED" not in output


def test_a_request_that_fails_in_the_queue_does_not_stay_there(cloud):
  why = {"T5LIKE_STAND_IN_GRANT": "FAILED", "T5LIKE_STAND_IN_WHY": "Quota 'TPUV5s' exhausted. Limit 16 in region"}
  output = cloud.run("create", "demo", *V5E, status=2, **why)
  assert "no quota" in output and "Limit 16" in output and not cloud.pods and "BILLED" not in output


@pytest.mark.parametrize(
  ("message", "expected"),
  [
    ("ERROR: (gcloud) UNAUTHENTICATED: Request had invalid authentication credentials.", "gcloud auth login"),
    ("ERROR: (gcloud) PERMISSION_DENIED: Permission 'tpu.queuedResources.create' denied", "roles/tpu.admin"),
    ("ERROR: (gcloud) INVALID_ARGUMENT: Unknown accelerator type", "gcloud does not take this request"),
  ],
)
def test_what_will_not_pass_is_not_tried_again(cloud, message, expected):
  cloud.fail("queued-resources create", message, times=9)
  output = cloud.run("create", "demo", *V5E, status=2)
  assert expected in output and len(cloud.calls("create")) == 1 and "BILLED" not in output


def test_a_bad_minute_passes(cloud):
  cloud.fail("queued-resources create", "ERROR: (gcloud) UNAVAILABLE: The service is currently unavailable.", times=2)
  output = cloud.run("create", "demo", *V5E)
  assert "try 2 of 3 failed" in output and "demo is ACTIVE" in output and "STILL BILLED: demo" in output


def test_a_bad_hour_does_not_and_says_what_may_be_billed(cloud):
  cloud.fail("queued-resources create", "ERROR: (gcloud) UNAVAILABLE: deadline exceeded", times=9)
  output = cloud.run("create", "demo", *V5E, status=1)
  assert "the pod could not be asked for" in output and "MAY STILL BE BILLED: demo" in output


@pytest.mark.slow  # seconds
def test_a_request_that_was_made_after_all_is_taken_up(cloud):
  """The answer got lost, the request did not: the second try finds it there."""
  cloud.run("create", "demo", *V5E)
  cloud.fail("queued-resources describe", "ERROR: (gcloud) NOT_FOUND: Resource 'demo' was not found")
  assert "demo is ACTIVE" in cloud.run("create", "demo") and len(cloud.pods) == 1


def test_ssh_that_times_out_is_tried_again(pod):
  pod.fail("queued-resources ssh", "ERROR: ssh: connect to host 10.0.0.1 port 22: Connection timed out", times=2)
  output = pod.run("start", "demo", *TRAIN, "--steps=2")
  assert "start: 0 of 2 workers answered (try 1 of 3)" in output and "started on 2 workers" in output


@pytest.mark.slow  # of these checks there are enough in every run; this one and those marked so below take seconds each
def test_packages_that_cannot_be_installed_are_told_of(cloud):
  cloud.run("create", "demo", *V5E)
  cloud.fail("pip install", "error: No solution found: t5like needs jax<0.13", times=99)
  output = cloud.run("install", "demo", f"--from={cloud.wheel}", status=1, T5LIKE_RETRIES="1")
  assert "demo-w-1 install failed: error: No solution found: t5like needs jax<0.13" in output


@pytest.mark.parametrize("unreachable", ["demo-w-1", "demo-1"])
def test_a_worker_that_cannot_be_reached_is_named(cloud, unreachable):
  """One worker of a slice; or a whole slice, of which gcloud only warns, with status 0."""
  slices = "--slices=2" if unreachable == "demo-1" else "--slices=1"
  cloud.run("create", "demo", *V5E, slices)
  (cloud.folder / "unreachable").write_text(unreachable)
  output = cloud.run("install", "demo", f"--from={cloud.wheel}", status=1)
  assert "error: not all workers of demo could" in output and "STILL BILLED: demo" in output
  assert ("worker 1 of demo\n" if slices == "--slices=1" else "worker 0 of demo-1,worker 1 of demo-1") in output
  (cloud.folder / "unreachable").unlink()
  cloud.run("install", "demo")


@pytest.mark.slow  # seconds
def test_a_pod_that_is_lost_while_it_is_installed_is_replaced(pod):
  """A slice is gone, of which the request knows nothing yet."""
  path = pod.folder / "cloud.json"
  path.write_text(path.read_text().replace("READY", "PREEMPTED"))
  output = pod.run("up", "demo", f"--from={pod.wheel}", *TRAIN)
  assert "demo was preempted" in output and len(pod.calls("create")) == 2 and not pod.pods


@pytest.mark.parametrize("message", ["ERROR: (gcloud) INTERNAL: an internal error", "ERROR: PERMISSION_DENIED: no"])
def test_a_pod_that_cannot_be_deleted_is_not_forgotten(pod, message):
  pod.fail("queued-resources delete", message, times=9)
  status = 2 if "PERMISSION" in message else 1
  output = pod.run("delete", "demo", status=status)
  assert "error: " in output and "BILLED: demo (v5litepod-8" in output
  assert "launch/tpu_pod.sh delete demo --project=p --zone=us-west4-a" in output
  (pod.folder / "failures.json").unlink()
  pod.run("delete", "demo")  # all that is needed is remembered
