"""Free memory of a machine, a container and a device."""

import types

import jax
import numpy as np
import pytest

from t5like.inference import memory

GIB = 2**30


@pytest.fixture
def files(tmp_path, monkeypatch):
  """A machine with 10 GiB available, as Linux describes it; returns the folder of its control group."""
  monkeypatch.setattr(memory, "Path", lambda path: tmp_path / path.lstrip("/"))
  (tmp_path / "proc").mkdir()
  (tmp_path / "proc/meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable:   {10 * GIB // 1024} kB\n")
  group = tmp_path / "sys/fs/cgroup"
  group.mkdir(parents=True)
  return group


@pytest.mark.parametrize(("limit", "used", "free"), [
  (None, 0, 10), ("max", 3 * GIB, 10), (str(8 * GIB), 3 * GIB, 5), (str(40 * GIB), 3 * GIB, 10),
])  # fmt: skip
def test_a_container_has_what_its_limit_leaves(files, limit, used, free):
  if limit is not None:
    (files / "memory.max").write_text(f"{limit}\n")
    (files / "memory.current").write_text(f"{used}\n")
  assert memory._host_memory() == free * GIB


def test_devices_of_a_machine_share_its_memory(files):
  device = jax.devices("cpu")[0]
  mesh = types.SimpleNamespace(devices=np.array([device] * 4), local_devices=[device] * 4)
  assert memory.free_bytes(mesh) == 10 * GIB // 4
