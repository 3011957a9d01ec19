"""Every script of launch/ is valid for bash and shellcheck, is listed in the README, and has --help."""

import os
import re
import shutil
import subprocess

import pytest
from commands import REPOSITORY, put_on_path

SCRIPTS = sorted(
  path.relative_to(REPOSITORY) for path in (REPOSITORY / "launch").rglob("*") if path.suffix in (".sh", ".sbatch")
)


def test_scripts_are_valid_bash():
  for script in SCRIPTS:
    done = subprocess.run(["bash", "-n", script], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_scripts_pass_shellcheck():
  done = subprocess.run(["shellcheck", "-x", *SCRIPTS], cwd=REPOSITORY, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout


def test_lines_are_short():
  for script in SCRIPTS:
    for number, line in enumerate((REPOSITORY / script).read_text().splitlines(), 1):
      assert len(line) <= 120, f"{script}:{number}"


def test_the_readme_lists_every_script():
  text = (REPOSITORY / "launch/README.md").read_text()
  scripts = [str(script) for script in SCRIPTS if script.parent.name != "tpu"]  # those are parts of tpu_pod.sh
  assert len(scripts) > 5
  for script in [*scripts, "launch/Dockerfile"]:
    assert script in text, f"launch/README.md does not list {script}"


COMMANDS = [str(path) for path in SCRIPTS if os.access(REPOSITORY / path, os.X_OK)] + ["launch/files_of_command.py"]
TOOLS = ["gcloud", "kubectl", "xpk", "sbatch", "srun", "pip", "t5like"]


def call(folder, script, *words) -> subprocess.CompletedProcess:
  """Runs a script with tools that leave a trace when they are called."""
  put_on_path(folder / "bin", {tool: ["touch", folder / "trace"] for tool in TOOLS})
  (folder / "home").mkdir(exist_ok=True)
  environment = {
    "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
    "HOME": str(folder / "home"),
    "TMPDIR": str(folder / "home"),
  }
  words = [REPOSITORY / script, *words]
  return subprocess.run(words, env=environment, cwd=folder / "home", capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("words", [[], ["--bogus"]])
def test_packages_need_a_folder(words, tmp_path):
  done = call(tmp_path, "launch/offline.sh", *words)
  assert done.returncode == 2 and "error: no folder for the packages" in done.stderr
  assert not (tmp_path / "home/--bogus").exists()


def test_the_scripts_are_found():
  assert {"launch/tpu_pod.sh", "launch/gke/jobset.sh", "launch/gke/xpk.sh", "launch/slurm.sbatch"} < set(COMMANDS)


@pytest.mark.parametrize("script", COMMANDS)
def test_help_is_printed_and_nothing_else_happens(tmp_path, script):
  for flag in ("--help", "-h"):
    done = call(tmp_path, script, flag)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert "usage: " in done.stdout and "#" not in done.stdout and "set -" not in done.stdout
    assert not (tmp_path / "trace").exists() and not list((tmp_path / "home").iterdir())
  assert re.search("^examples?:", done.stdout, re.M) and done.stdout.count(os.path.basename(script)) > 1
  if script != "launch/tpu/worker.sh":
    assert re.search("^options.*:", done.stdout, re.M) and "--help" in done.stdout


@pytest.mark.parametrize("script", ["launch/tpu_pod.sh", "launch/gke/jobset.sh"])
def test_help_names_every_option_and_step_anywhere_before_the_command(tmp_path, script):
  text = (REPOSITORY / script).read_text()
  if script == "launch/tpu_pod.sh":
    options = " ".join(re.findall(r'^(?:values\+?|switches)="(.*)"$', text, re.M)).split()
  else:
    options = re.findall(r"\[(\w+)\]=", text[: text.index("with=()")])
  assert len(options) > 12
  done = call(tmp_path, script, "delete", "demo", "--help", "--", "t5like")
  assert done.returncode == 0 and not (tmp_path / "trace").exists()
  for option in [*options, "with"]:
    assert f"--{option}" in done.stdout, option
  for step in re.search(r"^  ((?:\w+ \| )+\w+)\) shift ;;", text, re.M)[1].split(" | "):
    assert re.search(rf"(^| ){step} ", done.stdout, re.M), step


NO_ARGUMENTS = ("launch/quickstart.sh", "launch/test.sh", "launch/test_gpu.sh")  # none are required


@pytest.mark.parametrize("script", [s for s in COMMANDS if s not in NO_ARGUMENTS])
def test_missing_arguments_are_reported(tmp_path, script):
  done = call(tmp_path, script)
  assert done.returncode == 2 and done.stderr.startswith("error: ") and not done.stdout
  assert "/tpu/" in script or "try" in done.stderr
  assert not list((tmp_path / "home").iterdir())


def test_an_option_is_not_taken_for_an_argument(tmp_path):
  done = call(tmp_path, "launch/quickstart.sh", "--folder=x")
  assert done.returncode == 2 and "invalid option: --folder=x" in done.stderr and not (tmp_path / "trace").exists()
