"""Several machines as one: start-up, a check of all hosts before the first step, and stopping together."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import importlib.metadata
import os
import platform
import signal
import socket

import jax
from jax.experimental import multihost_utils

import t5like
from t5like.errors import UserError
from t5like.parallel.roll_call import Host, check_alike, check_present, roll_call

# The settings, by argument name: what a user sets where no cluster tells.
_VARIABLES = {
  "coordinator": "T5LIKE_COORDINATOR",
  "processes": "T5LIKE_NUM_PROCESSES",
  "process_id": "T5LIKE_PROCESS_ID",
}
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "libtpu")


@dataclasses.dataclass(frozen=True)
class Place:
  """This process among all."""

  coordinator: str  # host:port of process 0
  processes: int
  process_id: int


@dataclasses.dataclass(frozen=True)
class HostReport:
  """What the preflight saw."""

  hosts: list[Host]
  devices: list[int]  # of each host
  kind: str

  def __str__(self) -> str:
    lines = [f"{len(self.hosts)} of {len(self.hosts)} hosts, {sum(self.devices)} devices ({self.kind})"]
    lines += [f"{host.name}: {count} devices" for host, count in zip(self.hosts, self.devices, strict=True)]
    first = self.hosts[0]
    lines.append(f"configuration {first.config}, " + ", ".join(f"{k} {v}" for k, v in first.versions.items()))
    return "\n".join(lines)


def start(
  coordinator: str | None = None,
  processes: int | None = None,
  process_id: int | None = None,
  timeout: float = 300.0,
  config: str = "",
) -> HostReport | None:
  """Joins this process to the others; None, and nothing done, on a single machine. Before any use of a device.

  Arguments count before T5LIKE_COORDINATOR, T5LIKE_NUM_PROCESSES and T5LIKE_PROCESS_ID, and those before what
  JAX detects by itself: TPU pods, Slurm, Kubernetes, Open MPI. `config` is the text of the configuration, which must
  be the same on all hosts. Within `timeout` seconds all hosts are there and alike, or each of them raises an
  error that names those who are not.
  """
  place = find_place(coordinator, processes, process_id, timeout)
  if place is None:
    return None
  own = Host(place.process_id, place.processes, socket.gethostname(), config_hash(config), versions())
  present = roll_call(place.coordinator, own, timeout)
  check_present(present, place.processes, timeout)
  check_alike(present)
  jax.distributed.initialize(
    place.coordinator, place.processes, place.process_id, initialization_timeout=max(int(timeout), 1)
  )
  return _count_devices(present)


def _count_devices(present: list[Host]) -> HostReport:
  counts = collections.Counter(device.process_index for device in jax.devices())
  devices = [counts[host.process_id] for host in present]
  usual = collections.Counter(devices).most_common(1)[0][0]
  if len(set(devices)) > 1:
    raise UserError(
      "the hosts have different numbers of devices",
      usual=f"{usual} devices",
      other="\n".join(f"{host.name}: {count}" for host, count in zip(present, devices, strict=True) if count != usual),
      try_="hosts of one kind; on the others, look for a device that failed or is in use",
    )
  return HostReport(present, devices, jax.devices()[0].device_kind)


def find_place(
  coordinator: str | None = None, processes: int | None = None, process_id: int | None = None, timeout: float = 300.0
) -> Place | None:
  """Who this process is, by arguments, environment or cluster; None on a single machine."""
  given = {"coordinator": coordinator, "processes": processes, "process_id": process_id}
  for name, variable in _VARIABLES.items():
    if given[name] is None and os.environ.get(variable):
      given[name] = os.environ[variable] if name == "coordinator" else _whole(variable, os.environ[variable])
  if given["processes"] == 1:
    return None
  if None in given.values():
    given = _detect(given, timeout)
  unknown = [name for name, value in given.items() if value is None]
  if len(unknown) == len(given) or given["processes"] == 1:
    return None
  if unknown:
    raise UserError(
      "this process cannot find its place among the hosts: no " + " and no ".join(unknown),
      known=", ".join(f"{name} {value}" for name, value in given.items() if value is not None),
      try_=" ".join(f"{_VARIABLES[name]}=..." for name in unknown) + " in the environment of each process",
    )
  return _checked(Place(**given))


def _detect(given: dict, timeout: float) -> dict:
  """What JAX finds out about the cluster, for all that is not given.

  `jax.distributed.initialize` does the same, but fails where there is no cluster and connects where there is one:
  to know beforehand takes JAX's private module. This is the one place that uses it.
  """
  from jax._src.clusters import ClusterEnv

  try:
    coordinator, processes, process_id, _ = ClusterEnv.auto_detect_unset_distributed_params(
      given["coordinator"], given["processes"], given["process_id"], None, None, max(int(timeout), 1)
    )
  except Exception as error:  # each kind of cluster fails in its own way, in errors of its own libraries
    raise UserError(
      f"this looks like a cluster, but it does not say who is who: {error}",
      try_="T5LIKE_NUM_PROCESSES=1 for this machine alone, or " + ", ".join(_VARIABLES.values()) + " on each host",
    ) from error
  return {"coordinator": coordinator, "processes": processes, "process_id": process_id}


def _whole(variable: str, text: str) -> int:
  try:
    return int(text)
  except ValueError:
    raise UserError(f"{variable}={text} cannot work", expected="a whole number") from None


def _checked(place: Place) -> Place:
  host, _, port = place.coordinator.rpartition(":")
  if not host or not port.isdigit():
    raise UserError(f"the coordinator {place.coordinator!r} has no port", expected="HOST:PORT of process 0")
  if place.processes < 1:
    raise UserError(f"{place.processes} processes cannot be", expected="1 or more")
  if not 0 <= place.process_id < place.processes:
    raise UserError(
      f"process {place.process_id} of {place.processes} cannot be", expected=f"an id from 0 to {place.processes - 1}"
    )
  return place


def config_hash(text: str) -> str:
  return hashlib.sha256(text.encode()).hexdigest()[:12]


def versions() -> dict[str, str]:
  """Of what must be the same everywhere: another compiler would compile another program."""
  found = {"t5like": t5like.__version__, "python": platform.python_version()}
  for package in _PACKAGES:
    try:
      found[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      continue
  return found


def stop_signals() -> tuple[signal.Signals, ...]:
  """The signals that a loop may handle itself. On several hosts SIGTERM belongs to JAX, which tells all of them."""
  return (signal.SIGINT,) if jax.process_count() > 1 else (signal.SIGINT, signal.SIGTERM)


def any_host_requested_stop(step: int, requested_here: bool = False) -> bool:
  """True on all hosts after the same step, once any of them got SIGTERM or has `requested_here`.

  To be called after every step, by all. JAX agrees on the first step that no host has passed, so a stop takes a
  few steps. On a single machine the answer is `requested_here`.
  """
  if jax.process_count() == 1:
    return requested_here
  if requested_here:
    signal.raise_signal(signal.SIGTERM)  # into JAX's handler; more of them change nothing
  return multihost_utils.reached_preemption_sync_point(step)
