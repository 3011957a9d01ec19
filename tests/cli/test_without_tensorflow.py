"""Training, decoding and scoring from a token cache work without TensorFlow and seqio."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BLOCKED = ("tensorflow", "tensorflow_datasets", "tensorflow_text", "seqio")

# Every finder ignores these names, as if they were not installed: neither import nor find_spec finds them.
BLOCK = f"""
import sys
class Absent:
  def __init__(self, finder):
    self.finder = finder
  def find_spec(self, name, path=None, target=None):
    if name.split(".")[0] not in {BLOCKED!r}:
      return self.finder.find_spec(name, path, target)
  def __getattr__(self, name):
    return getattr(self.finder, name)
sys.meta_path[:] = [Absent(finder) for finder in sys.meta_path]
"""


def run(script, status=0):
  env = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
  done = subprocess.run(
    [sys.executable, "-c", BLOCK + script], cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=900
  )
  assert done.returncode == status, done.stdout + done.stderr
  return done.stdout


def test_blocked_packages_cannot_be_imported():
  run("import seqio", status=1)
  run("import importlib.util; assert importlib.util.find_spec('tensorflow') is None; import numpy")


@pytest.mark.slow
def test_every_package_but_tasks_can_be_imported():
  packages = [
    "configuration", "data", "decoding", "evaluation", "interop", "kernels", "models", "objectives", "parallel",
    "planning", "training", "training.loop", "training.checkpoints", "vocabularies", "tasks.metrics",
    "tasks.postprocessors",
  ]  # fmt: skip
  run("".join(f"import t5like.{package}\n" for package in packages))


@pytest.mark.slow
def test_a_run_from_a_token_cache_trains_decodes_and_scores(finetune, tmp_path):
  arguments = [*finetune, f"--gin.MODEL_DIR={tmp_path}/run", "--gin.TRAIN_STEPS=2"]
  score = ["eval", f"--model_dir={tmp_path}/run", "--examples=20"]
  out = run(f"from t5like.cli.main import main\nsys.exit(main({arguments!r}) or main({score!r}))")
  assert out.count("20 examples) at step 2: accuracy") == 2
