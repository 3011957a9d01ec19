"""The command line: help, version, commands, options and errors."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from t5like.cli import main as command
from t5like.errors import UserError, command_line

REPOSITORY = Path(__file__).resolve().parents[2]


def test_help_lists_every_command_with_a_summary(t5like_process):
  output = t5like_process("--help").stdout
  for name, summary in command.COMMANDS.items():
    assert f"{name} " in output and summary in output


@pytest.mark.parametrize("name", command.COMMANDS)
def test_every_command_has_its_own_help(t5like, name):
  output = t5like(name, "--help").stdout
  assert f"usage: t5like {name}" in output and "--verbose" in output


def test_the_version_comes_with_those_of_jax_and_flax_and_the_device(t5like_process):
  versions = [f"{package} {importlib.metadata.version(package)}" for package in ("jax", "flax")]
  assert t5like_process("--version", devices=2).stdout.splitlines() == [
    "t5like 0.1.0", *versions, "device 2 x cpu (cpu)"
  ]  # fmt: skip


@pytest.mark.parametrize("missing", ["jax", "device"])
def test_the_version_is_printed_without_jax_and_without_a_device(missing, monkeypatch, capsys):
  def no_version(package):
    raise importlib.metadata.PackageNotFoundError(package)

  def no_device():
    raise RuntimeError("Unable to initialize backend 'tpu'")

  if missing == "jax":
    monkeypatch.setitem(sys.modules, "jax", None)  # `import jax` raises ImportError
    monkeypatch.setattr(importlib.metadata, "version", no_version)
  else:
    monkeypatch.setattr(jax, "local_devices", no_device)
  monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # restores what the command sets
  assert command.main(["--version"]) == 0
  lines = capsys.readouterr().out.splitlines()
  assert lines[0] == "t5like 0.1.0" and len(lines) == 3 and not any("device" in line for line in lines)
  assert (lines[1:] == ["jax not installed", "flax not installed"]) == (missing == "jax")


def test_help_imports_nothing_heavy():
  script = (
    "import sys; from t5like.cli.main import main; main(['--help']);"
    "print(sorted({'jax', 'flax', 'gin', 'tensorflow', 'seqio', 'numpy'} & set(sys.modules)))"
  )
  done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True)
  assert done.stdout.strip().endswith("[]")


def test_a_misspelled_command_gets_the_nearest_as_a_suggestion(t5like):
  message = t5like("trian", status=2).stderr
  assert "unknown command: trian" in message and "nearest  train" in message


def test_a_misspelled_option_gets_the_nearest_as_a_suggestion(t5like):
  message = t5like("train", "--gin_fil=models/t5/tiny.gin", "--dry_rum", status=2).stderr
  assert "--dry_run" in message and "Traceback" not in message


def test_verbose_shows_the_traceback(t5like):
  assert "Traceback" in t5like("train", "--gin_file=nowhere.gin", "--verbose", status=2).stderr


def test_overrides_are_parsed_with_and_without_equals_sign():
  rest, overrides = command.split_overrides(["--gin.A=1", "--gin_file=x", "--gin.MESH.tensor", "2", "--gin.B=c=d"])
  assert rest == ["--gin_file=x"]
  assert overrides == [("A", "1"), ("MESH.tensor", "2"), ("B", "c=d")]
  for argv in (["--gin.A"], ["--gin.A", "--dry_run"]):
    with command_line(), pytest.raises(UserError, match="--gin.A has no value"):
      command.split_overrides(argv)


def test_a_command_without_gin_refuses_overrides(t5like):
  assert "takes no --gin options" in t5like("cache", "novels", "--gin.SEED=1", status=2).stderr


def test_a_lost_host_is_told_from_other_errors():
  """An error of JAX that only means that another host has ended becomes a message; others keep their traceback."""
  from jax.errors import JaxRuntimeError

  lost = JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer [127.0.0.1]:41950")
  assert "Connection closed by peer" in command._lost_host(lost).render()
  assert command._lost_host(JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")) is None
  assert command._lost_host(ValueError("Gloo all-reduce failed")) is None
