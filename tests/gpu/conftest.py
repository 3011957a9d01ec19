"""Tests that need a GPU: `launch/test_gpu.sh` runs them and records the result. The CPU's suite skips them."""

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

# Several workers share the GPU.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# To search for the fastest matrix products takes longer than all steps; to search for softmaxes that can be one kernel
# takes half of the time to compile plain attention.
os.environ["XLA_FLAGS"] = (
  f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0 --xla_disable_hlo_passes=triton-softmax-rewriter"
)

import jax
import pytest

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER.parent / "gpu_results.json"
sys.path.insert(0, str(FOLDER.parent / "kernels"))  # attention_cases, real_text_training


def pytest_collection_modifyitems(items):
  if jax.default_backend() != "gpu":
    for item in items:
      if item.path.is_relative_to(FOLDER):
        item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU: launch/test_gpu.sh"))


def pytest_addoption(parser):
  parser.addoption("--commit", help="write tests/gpu_results.json for this commit")


def pytest_sessionfinish(session):
  """Records what passed on which device, with which versions; nothing unless all tests ran."""
  commit, reporter = session.config.getoption("--commit"), session.config.pluginmanager.get_plugin("terminalreporter")
  if not commit or reporter is None:  # the processes of pytest-xdist have none
    return
  counts = {kind: len(reporter.stats.get(kind, ())) for kind in ("passed", "failed", "error", "skipped")}
  if sum(counts.values()) < session.testscollected:
    return
  device = subprocess.run(
    ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True
  )
  result = {
    "commit": commit,
    "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    "device": device.stdout.strip() or jax.devices()[0].device_kind,
    "versions": {name: __import__(name).__version__ for name in ("jax", "jaxlib", "flax", "optax")},
    **counts,
    "failures": sorted(report.nodeid for kind in ("failed", "error") for report in reporter.stats.get(kind, ())),
  }
  RESULTS.write_text(json.dumps(result, indent=2) + "\n")
