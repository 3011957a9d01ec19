"""Multi-host runs: start-up, a consistency check of all hosts before the first step, and coordinated stopping."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import importlib.metadata
import os
import platform
import signal
import socket
from pathlib import Path

import jax
from jax.experimental import multihost_utils

import t5like
from t5like.errors import UserError
from t5like.parallel.connections import connect_processes
from t5like.parallel.roll_call import Host, check_consistent, check_present, roll_call

# By argument name; only needed if the cluster is not detected automatically.
_ENVIRONMENT_VARIABLES = {
  "coordinator": "T5LIKE_COORDINATOR",
  "processes": "T5LIKE_NUM_PROCESSES",
  "process_id": "T5LIKE_PROCESS_ID",
}
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "libtpu")


@dataclasses.dataclass(frozen=True)
class ProcessConfig:
  """The address of the coordinator, the number of processes and the id of this one."""

  coordinator: str  # host:port of process 0
  processes: int
  process_id: int


@dataclasses.dataclass(frozen=True)
class HostReport:
  """The result of the start-up check, for the run card."""

  hosts: list[Host]
  devices: list[int]  # per host
  kind: str

  def __str__(self) -> str:
    lines = [f"{len(self.hosts)} of {len(self.hosts)} hosts, {sum(self.devices)} devices ({self.kind})"]
    lines += [f"{host.name}: {count} devices" for host, count in zip(self.hosts, self.devices, strict=True)]
    first = self.hosts[0]
    lines.append(
      f"configuration {config_hash(first.config)}, " + ", ".join(f"{k} {v}" for k, v in first.versions.items())
    )
    return "\n".join(lines)


def start(
  coordinator: str | None = None,
  processes: int | None = None,
  process_id: int | None = None,
  timeout: float = 300.0,
  config: str = "",
) -> HostReport | None:
  """Connects this process to the others; returns None on a single machine. Call it before any use of a device.

  Arguments take precedence over T5LIKE_COORDINATOR, T5LIKE_NUM_PROCESSES and T5LIKE_PROCESS_ID, and these over the
  clusters that JAX detects: TPU pods, Slurm, Kubernetes, Open MPI. `config` is the text of the configuration, which
  must be the same on all hosts. If any host is missing after `timeout` seconds or differs from the others, all hosts
  raise an error that names it.
  """
  process = resolve_process(coordinator, processes, process_id, timeout)
  if process is None:
    return None
  this_host = Host(process.process_id, process.processes, socket.gethostname(), config, versions())
  present = roll_call(process.coordinator, this_host, timeout)
  check_present(present, process.processes, timeout)
  check_consistent(present)
  jax.distributed.initialize(
    process.coordinator, process.processes, process.process_id, initialization_timeout=max(int(timeout), 1)
  )
  report = _count_devices(present)
  connect_processes()
  return report


def _count_devices(present: list[Host]) -> HostReport:
  counts = collections.Counter(device.process_index for device in jax.devices())
  devices = [counts[host.process_id] for host in present]
  usual = collections.Counter(devices).most_common(1)[0][0]
  if len(set(devices)) > 1:
    raise UserError(
      "the hosts have different numbers of devices",
      usual=f"{usual} devices",
      other="\n".join(f"{host.name}: {count}" for host, count in zip(present, devices, strict=True) if count != usual),
      try_="identical hosts; on the others, look for a device that failed or is in use",
    )
  return HostReport(present, devices, jax.devices()[0].device_kind)


def resolve_process(
  coordinator: str | None = None, processes: int | None = None, process_id: int | None = None, timeout: float = 300.0
) -> ProcessConfig | None:
  """Returns this process's settings from arguments, environment or cluster; None on a single machine."""
  given = {"coordinator": coordinator, "processes": processes, "process_id": process_id}
  for name, variable in _ENVIRONMENT_VARIABLES.items():
    if given[name] is None and os.environ.get(variable):
      given[name] = os.environ[variable] if name == "coordinator" else _parse_int(variable, os.environ[variable])
  if given["processes"] == 1:
    return None
  if None in given.values():
    given = _detect(given, timeout)
  unknown = [name for name, value in given.items() if value is None]
  if len(unknown) == len(given) or given["processes"] == 1:
    return None
  if unknown:
    raise UserError(
      "incomplete multi-host settings: missing " + " and ".join(unknown),
      known=", ".join(f"{name} {value}" for name, value in given.items() if value is not None),
      try_=" ".join(f"{_ENVIRONMENT_VARIABLES[name]}=..." for name in unknown) + " in the environment of each process",
    )
  return _validate(ProcessConfig(**given))


def _detect(given: dict, timeout: float) -> dict:
  """Fills in missing settings with those of the cluster that JAX detects.

  `jax.distributed.initialize` does the same, but fails without a cluster and connects if there is one. Detecting only
  requires JAX's private module, which is used nowhere else.
  """
  from jax._src.clusters import ClusterEnv

  try:
    coordinator, processes, process_id, _ = ClusterEnv.auto_detect_unset_distributed_params(
      given["coordinator"], given["processes"], given["process_id"], None, None, max(int(timeout), 1)
    )
  except Exception as error:  # the kinds of cluster raise errors of different libraries
    raise UserError(
      f"detected a cluster, but not its processes: {error}",
      try_="T5LIKE_NUM_PROCESSES=1 for a single machine, or "
      + ", ".join(_ENVIRONMENT_VARIABLES.values())
      + " on each host",
    ) from error
  return {"coordinator": coordinator, "processes": processes, "process_id": process_id}


def _parse_int(variable: str, text: str) -> int:
  try:
    return int(text)
  except ValueError:
    raise UserError(f"invalid {variable}: {text}", expected="a whole number") from None


def _validate(process: ProcessConfig) -> ProcessConfig:
  host, _, port = process.coordinator.rpartition(":")
  if not host or not port.isdigit():
    raise UserError(f"invalid coordinator: {process.coordinator!r}", expected="HOST:PORT of process 0")
  if process.processes < 1:
    raise UserError(f"invalid number of processes: {process.processes}", expected="at least 1")
  if not 0 <= process.process_id < process.processes:
    raise UserError(f"invalid process id: {process.process_id}", expected=f"0 to {process.processes - 1}")
  return process


def config_hash(text: str) -> str:
  return hashlib.sha256(text.encode()).hexdigest()[:12]


def versions() -> dict[str, str]:
  """Returns the versions that must be the same on all hosts, which must compile the same program."""
  found = {"t5like": f"{t5like.__version__}+{_source_digest()}", "python": platform.python_version()}
  for package in _PACKAGES:
    try:
      found[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      continue
  return found


def _source_digest() -> str:
  """Returns a digest of the package's code: hosts may have checkouts of several commits of one version."""
  folder, digest = Path(t5like.__file__).parent, hashlib.sha256()
  for path in sorted(folder.rglob("*.py")):
    digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
  return digest.hexdigest()[:8]


def stop_signals() -> tuple[signal.Signals, ...]:
  """Returns the signals that a loop may handle. In multi-host runs, JAX handles SIGTERM and notifies all hosts."""
  return (signal.SIGINT,) if jax.process_count() > 1 else (signal.SIGINT, signal.SIGTERM)


def any_host_requested_stop(step: int, requested_here: bool = False) -> bool:
  """Returns True on all hosts after the same step, once any host has received SIGTERM or passes `requested_here`.

  All hosts must call it after every step. JAX agrees on a step that no host has passed, so stopping takes a few steps.
  On a single machine, returns `requested_here`.
  """
  if jax.process_count() == 1:
    return requested_here
  if requested_here:
    signal.raise_signal(signal.SIGTERM)  # for JAX's handler; repeating it has no effect
  return multihost_utils.reached_preemption_sync_point(step)
