"""The command itself: help, verbs, options, and how soon it answers."""

import subprocess
import sys
from pathlib import Path

import pytest

from t5like.cli import main as command
from t5like.errors import UserError

REPOSITORY = Path(__file__).resolve().parents[2]


def test_help_lists_every_verb_with_a_line(t5like_process):
  output = t5like_process("--help").stdout
  for verb, summary in command.VERBS.items():
    assert f"{verb} " in output and summary in output


@pytest.mark.parametrize("verb", command.VERBS)
def test_every_verb_has_its_own_help(t5like, verb):
  output = t5like(verb, "--help").stdout
  assert f"usage: t5like {verb}" in output and "--verbose" in output


def test_help_imports_nothing_heavy():
  script = (
    "import sys; from t5like.cli.main import main; main(['--help']);"
    "print(sorted({'jax', 'flax', 'gin', 'tensorflow', 'seqio', 'numpy'} & set(sys.modules)))"
  )
  done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True)
  assert done.stdout.strip().endswith("[]")


def test_a_misspelled_verb_is_answered_with_the_nearest(t5like):
  message = t5like("trian", status=2).stderr
  assert "no verb 'trian'" in message and "nearest  train" in message


def test_a_misspelled_option_is_answered_with_the_nearest(t5like):
  message = t5like("train", "--gin_fil=models/t5/tiny.gin", "--dry_rum", status=2).stderr
  assert "--dry_run" in message and "Traceback" not in message


def test_verbose_shows_the_traceback(t5like):
  assert "Traceback" in t5like("train", "--gin_file=nowhere.gin", "--verbose", status=2).stderr


def test_overrides_are_taken_out_with_and_without_equals_sign():
  rest, overrides = command.split_overrides(["--gin.A=1", "--gin_file=x", "--gin.MESH.tensor", "2", "--gin.B=c=d"])
  assert rest == ["--gin_file=x"]
  assert overrides == [("A", "1"), ("MESH.tensor", "2"), ("B", "c=d")]
  with pytest.raises(UserError, match="has no value"):
    command.split_overrides(["--gin.A"])


def test_a_verb_without_gin_refuses_overrides(t5like):
  assert "takes no --gin options" in t5like("cache", "novels", "--gin.SEED=1", status=2).stderr
