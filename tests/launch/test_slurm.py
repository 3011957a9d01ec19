"""`launch/slurm.sbatch` with stand-ins for Slurm's commands: exit status, requeueing and files."""

import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest
from commands import PROJECT_OPTIONS, REPOSITORY, STAND_INS, make_project, put_on_path

SCRIPT = REPOSITORY / "launch/slurm.sbatch"


class Job:
  def __init__(self, folder):
    self.folder = folder
    self.here = make_project(folder / "the user's folder")
    tools = {name: [STAND_INS / "slurm.py", name] for name in ("sbatch", "srun", "scancel", "scontrol")}
    put_on_path(folder / "bin", {**tools, "t5like": [STAND_INS / "worker/trainer"]})
    self.environment = {
      **{name: value for name, value in os.environ.items() if name[:6] not in ("SLURM_", "T5LIKE")},
      "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "T5LIKE_STAND_IN": str(folder),
      "SLURM_JOB_ID": "70000", "SLURM_NTASKS": "2", "SLURM_SUBMIT_DIR": str(folder),
    }  # fmt: skip

  def start(self, *arguments) -> subprocess.Popen:
    return subprocess.Popen(
      [SCRIPT, *arguments], env=self.environment, cwd=self.here,
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip

  def run(self, *arguments, status=0) -> str:
    script = self.start(*arguments)
    output = script.communicate(timeout=300)[0]
    assert script.returncode == status, output
    return output

  def wait_for_step(self):
    deadline = time.monotonic() + 200
    while not (self.folder / "bucket/step").exists():
      assert time.monotonic() < deadline
      time.sleep(0.05)

  def calls(self) -> list[list[str]]:
    assert not (self.folder / "refused.txt").exists(), (self.folder / "refused.txt").read_text()
    if not (self.folder / "calls.jsonl").exists():
      return []
    return [json.loads(line) for line in (self.folder / "calls.jsonl").read_text().splitlines()]


@pytest.fixture
def job(tmp_path):
  return Job(tmp_path)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("status", [0, 1, 2])
def test_the_job_has_the_exit_status_of_the_run(job, status):
  script = job.start("--gin.MODEL_DIR=/shared/run", "--gin.LENGTHS={'inputs': 32}", f"--end_with={status}")
  output = script.communicate(timeout=300)[0]
  assert script.returncode == status, output
  (srun,) = job.calls()  # and no requeue
  assert srun[-6:] == [
    "t5like", "train", "--restarts=10", "--gin.MODEL_DIR=/shared/run", "--gin.LENGTHS={'inputs': 32}",
    f"--end_with={status}",
  ]  # fmt: skip
  assert output.count("step 3") == 2


def test_how_the_tasks_are_started(job):
  """Output is labeled by task; when a task exits, the others get a deadline; T5LIKE_RESTARTS and T5LIKE_VENV apply."""
  for folder in (".venv", "custom_venv"):
    (job.folder / folder / "bin").mkdir(parents=True)
    put_on_path(job.folder / folder / "bin", {"t5like": ["echo", f"from {folder}:"]})
  expected = ["srun", "--kill-on-bad-exit=0", "--wait=300", "--label", "t5like", "train"]
  assert "from .venv: train --restarts=10 two words" in job.start("two words").communicate(timeout=300)[0]
  job.environment |= {
    "T5LIKE_RESTARTS": "3",
    "T5LIKE_VENV": str(job.folder / "custom_venv"),
    "SLURM_RESTART_COUNT": "2",
  }
  output = job.start("two words").communicate(timeout=300)[0]
  assert "job 70000, start 2: 2 processes on" in output and "from custom_venv: train --restarts=3 two words" in output
  assert job.calls() == [[*expected, f"--restarts={count}", "two words"] for count in (10, 3)]


def test_before_the_time_limit_the_run_saves_and_the_job_is_requeued(job):
  script = job.start("--steps=1000")
  job.wait_for_step()
  script.send_signal(signal.SIGUSR1)  # what --signal=B:USR1@600 sends
  output = script.communicate(timeout=300)[0]
  assert script.returncode == 143 and output.count("SIGTERM: saved") == 2
  assert job.calls()[1:] == [["scancel", "--signal=TERM", "70000"], ["scontrol", "requeue", "70000"]]


def test_a_job_that_slurm_stops_is_not_requeued_by_the_script(job):
  """After a preemption Slurm requeues it, after a cancellation it does not."""
  script = job.start("--steps=1000")
  job.wait_for_step()
  for task in (job.folder / "tasks").read_text().split():
    os.kill(int(task), signal.SIGTERM)
  assert "SIGTERM: saved" in script.communicate(timeout=300)[0]
  assert script.returncode == 143 and len(job.calls()) == 1


def test_a_failure_after_the_signal_is_not_requeued(job):
  script = job.start("--steps=1000", "--term_status=1")
  job.wait_for_step()
  script.send_signal(signal.SIGUSR1)
  script.communicate(timeout=300)
  assert script.returncode == 1 and ["scontrol", "requeue", "70000"] not in job.calls()


def test_the_users_files_are_checked_on_all_nodes(job):
  output = job.run("--with=my words", *PROJECT_OPTIONS)
  check, train = job.calls()
  gin_files = {"my conf/run.gin", "my conf/shared.gin", "it's $HOME/deep.gin"}
  assert {*gin_files, "my_tasks.py", "pack/age", "my words"} <= set(check) and "--ntasks-per-node=1" in check
  assert train[-5:] == ["t5like", "train", "--restarts=10", *PROJECT_OPTIONS]
  assert output.count("step 3") == 2 and (job.folder / "bucket/folders").read_text() == f"{job.here}\n" * 2


def test_a_folder_that_nodes_do_not_share_is_rejected(job):
  job.environment["T5LIKE_STAND_IN_ALONE"] = "yes"
  output = job.run(*PROJECT_OPTIONS, status=2)
  assert "my conf/run.gin is not visible on" in output and f"do not share {job.here}" in output
  assert len(job.calls()) == 1 and "step" not in output


def test_a_missing_gin_file_ends_the_job_before_its_processes_start(job):
  assert "no gin file absent.gin" in job.run("--gin_file=absent.gin", status=2) and not job.calls()
  # On a shared file system any existing path is accepted.
  job.run(f"--gin_file={job.here / 'my conf/shared.gin'}", f"--gin_search_paths={job.here}")
  job.run("--gin_file=../the user's folder/my conf/shared.gin")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inside", ["a job", "no job"])
def test_it_submits_itself_after_checking_the_files(job, inside):
  if inside == "no job":
    del job.environment["SLURM_JOB_ID"]
  assert "no gin file absent.gin" in job.run("--", "t5like", "train", "--gin_file=absent.gin", status=2)
  assert "contain a --" in job.run("--", "t5like", "train", "--", "x", status=2)  # it would submit itself forever
  assert not job.calls()
  job.run("--nodes=4", "--job-name=my job", "--with=my words", "--", "t5like", "train", *PROJECT_OPTIONS)
  (sbatch,) = job.calls()
  assert sbatch == ["sbatch", "--nodes=4", "--job-name=my job", str(SCRIPT), "--with=my words", *PROJECT_OPTIONS]


def test_the_options_in_the_file_are_options_of_sbatch():
  known = json.loads((STAND_INS.parent / "flags/slurm.json").read_text())["commands"]["sbatch"]["flags"]
  options = dict(re.findall(r"^#SBATCH (--[a-z-]+)(?:=(\S+))?$", SCRIPT.read_text(), re.M))
  assert len(options) == SCRIPT.read_text().count("#SBATCH") and set(options) <= set(known)
  assert options["--ntasks-per-node"] == options["--gpus-per-node"]  # one process per GPU
  assert options["--signal"] == "B:USR1@600" and "--requeue" in options  # ten minutes, as documented
  assert options["--open-mode"] == "append"  # a requeued job keeps its log


def test_outside_of_slurm_and_without_t5like(job):
  del job.environment["SLURM_JOB_ID"]
  output = job.run(status=2)
  assert "missing command: -- t5like train" in output and "sbatch launch/slurm.sbatch --gin_file=" in output
  assert "missing command: -- t5like train" in job.run("--nodes=1", status=2)
  assert "invalid command: python x.py" in job.run("--", "python", "x.py", status=2)
  job = Job(job.folder)
  (job.folder / "bin/t5like").unlink()
  job.environment["PATH"] = f"{job.folder / 'bin'}:/usr/bin:/bin"
  if shutil.which("t5like", path="/usr/bin:/bin"):
    pytest.skip("t5like is installed for everyone here")
  script = job.start()
  assert "t5like is not installed on" in script.communicate()[0] and script.returncode == 2
