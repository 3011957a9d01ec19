"""A wheel of this checkout is self-contained: it includes gin files, embedded data and the command."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
  folder = tmp_path_factory.mktemp("wheel")
  # With the setuptools that is here: installing another one takes longer than building.
  here = ["--no-build-isolation"] if importlib.util.find_spec("setuptools") else []
  line = ["-m", "pip", "wheel", "--quiet", "--no-deps", *here, "--wheel-dir", folder, REPOSITORY]
  subprocess.run([sys.executable, *line], check=True)
  return next(folder.glob("t5like-*.whl"))


def test_the_wheel_contains_all_data_files(wheel):
  names = set(zipfile.ZipFile(wheel).namelist())
  for path in (REPOSITORY / "gin").rglob("*.gin"):
    assert f"t5like/gin/{path.relative_to(REPOSITORY / 'gin')}" in names
  assert "t5like/tasks/embedded/snli.train.jsonl.gz" in names
  assert "t5like/vocabularies/embedded/t5.model" in names
  assert {f"t5like/ablations/{name}" for name in ("measured/mini.json", "report/page.css", "report/page.html")} <= names
  assert not any(name.startswith(("gin/", "tests/")) for name in names)


@pytest.mark.slow
def test_an_installed_wheel_finds_its_gin_files_from_any_directory(wheel, tmp_path):
  zipfile.ZipFile(wheel).extractall(tmp_path / "site")
  done = subprocess.run(
    [sys.executable, "-m", "t5like", "train", "--gin_file=runs/quickstart/pretrain.gin", "--dry_run",
     f"--gin.MODEL_DIR={tmp_path}/run", f"--gin.CACHE_DIR={tmp_path}/tokens"],
    cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "site"), "JAX_NUM_CPU_DEVICES": "1"},
    capture_output=True, text=True,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  assert "T5, 1,459,968 parameters" in done.stdout and "not tokenized yet" in done.stdout
