"""Every script of launch/: bash can read it, shellcheck has nothing to say, and the README tells when to use it."""

import shutil
import subprocess

import pytest
from commands import REPOSITORY

SCRIPTS = sorted(
  path.relative_to(REPOSITORY) for path in (REPOSITORY / "launch").rglob("*") if path.suffix in (".sh", ".sbatch")
)


def test_bash_reads_them():
  for script in SCRIPTS:
    done = subprocess.run(["bash", "-n", script], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say():
  done = subprocess.run(["shellcheck", "-x", *SCRIPTS], cwd=REPOSITORY, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout


def test_lines_are_short():
  for script in SCRIPTS:
    for number, line in enumerate((REPOSITORY / script).read_text().splitlines(), 1):
      assert len(line) <= 120, f"{script}:{number}"


def test_the_readme_names_every_way_to_launch():
  text = (REPOSITORY / "launch/README.md").read_text()
  ways = [str(script) for script in SCRIPTS if script.parent.name != "tpu"]  # those are parts of tpu_pod.sh
  assert len(ways) > 5
  for script in [*ways, "launch/Dockerfile"]:
    assert script in text, f"launch/README.md does not tell of {script}"
