"""Weights & Biases: the real one if it is installed, else the hint to install it."""

import builtins

import pytest

from t5like.errors import UserError
from t5like.training.records.metrics import MetricWriter
from t5like.training.records.wandb_writer import WandbWriter


def test_without_wandb_the_error_has_the_install_command(tmp_path, monkeypatch):
  real_import = builtins.__import__

  def without_wandb(name, *args, **kwargs):
    if name == "wandb":
      raise ImportError(name)
    return real_import(name, *args, **kwargs)

  monkeypatch.setattr(builtins, "__import__", without_wandb)
  with pytest.raises(UserError, match="pip install wandb"):
    WandbWriter(tmp_path, "project")


def test_a_restarted_run_continues_the_same_wandb_run(tmp_path, monkeypatch):
  pytest.importorskip("wandb", reason="Weights & Biases is not installed")
  monkeypatch.setenv("WANDB_MODE", "offline")
  monkeypatch.setenv("WANDB_SILENT", "true")
  for first in (0, 2):
    writer = MetricWriter(tmp_path, first, [WandbWriter(tmp_path, "project", config={"seed": 7})])
    writer.write(first + 1, "train", {"loss": 0.625 + first, "gradient_norm": float("nan")})
    writer.write(first + 1, "eval/snli", {"accuracy": 88.5})
    writer.close()
  run_id = (tmp_path / "wandb_run_id").read_text().strip()
  files = sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
  assert [path.stem for path in files] == [f"run-{run_id}"] * 2
  for path, loss in zip(files, (b"0.625", b"2.625"), strict=True):
    content = path.read_bytes()
    assert b"train/loss" in content and loss in content and b"eval/snli/accuracy" in content and b"88.5" in content
