"""Trainers as processes of their own: alone or as the hosts of a pod, to be stopped and killed by tests."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from ports import free_port

from t5like.training import optimizers
from t5like.training.checkpoints import checkpoint_steps, load_parameters
from t5like.training.records.metrics import read_metrics

REPOSITORY = Path(__file__).resolve().parents[1]


def tiny_settings(folder, token_caches, model) -> dict:
  """Arguments of an experiment: one step of a language model on rows of eight tokens."""
  return dict(
    model_dir=str(folder),
    model=model,
    vocabulary="tiny",
    task="novels_causal_lm",
    lengths={"inputs": 8},
    batch_size=8,
    steps=1,
    optimizer=optimizers.adamw(1e-2),
    cache_dir=str(token_caches),
    log_period=1,
  )


def start(arguments, devices=1, host=0, hosts=1, port=None, folder=None, **environment) -> subprocess.Popen:
  """One `t5like train`; with `hosts`, one of a pod whose process 0 listens on `port`."""
  env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_NUM_CPU_DEVICES": str(devices), **environment}
  if hosts > 1:
    env |= {
      "T5LIKE_COORDINATOR": f"localhost:{port}",
      "T5LIKE_NUM_PROCESSES": str(hosts),
      "T5LIKE_PROCESS_ID": str(host),
    }
  return subprocess.Popen(
    [sys.executable, "-m", "t5like", *map(str, arguments)],
    env=env,
    cwd=folder,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def start_pod(arguments, hosts, devices=1) -> list[subprocess.Popen]:
  port = free_port()
  return [start(arguments, devices, host, hosts, port) for host in range(hosts)]


def finish(processes, status=0, timeout=400) -> list[str]:
  """What each printed, once all have ended with `status`."""
  outputs = [process.communicate(timeout=timeout)[0] for process in processes]
  for process, output in zip(processes, outputs, strict=True):
    assert process.returncode == status, f"status {process.returncode}\n{output}"
  return outputs


def wait_for(condition, process=None, timeout=400.0):
  deadline = time.monotonic() + timeout
  while not condition():
    assert time.monotonic() < deadline, "it did not come in time"
    assert process is None or process.poll() is None, f"ended early: {process.communicate()[0]}"
    time.sleep(0.02)


def has_checkpoint(folder, step):
  return lambda: any(found >= step for found in checkpoint_steps(folder))


def losses(folder) -> dict[int, float]:
  return {row["step"]: row["loss"] for row in read_metrics(folder) if row["kind"] == "train"}


def cut_after(folder, step):
  """Removes the checkpoints and metrics of later steps, as if the run had ended at `step`."""
  for later in checkpoint_steps(folder):
    if later > step:
      shutil.rmtree(folder / f"checkpoints/{later}")
  rows = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
  (folder / "metrics.jsonl").write_text("".join(row for row in rows if json.loads(row)["step"] <= step))
  assert max(checkpoint_steps(folder)) == max(losses(folder)) == step


def parameters(folder, step=None) -> dict[str, np.ndarray]:
  """By path, of the newest checkpoint or that of `step`."""

  def flat(tree, path=""):
    for name, value in tree.items():
      yield from flat(value, f"{path}/{name}") if isinstance(value, dict) else [(f"{path}/{name}", value)]

  return dict(flat(load_parameters(folder, step)))


def assert_same_bytes(a, b):
  assert a.keys() == b.keys()
  different = [name for name in a if a[name].tobytes() != b[name].tobytes()]
  assert not different
