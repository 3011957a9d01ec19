"""A roll call of all hosts over plain TCP before JAX connects, so that errors name the missing ones.

If a process is missing, JAX's start-up aborts all others after up to twice its timeout, without naming it. Therefore
process 0 first listens on the coordinator's port and registers every process. When all are registered, or the first
timeout expires, it sends all of them the same list and frees the port for JAX.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
import time

from t5like.errors import UserError

_LONGEST_MESSAGE = 2**24  # bytes; a configuration has a few thousand
_LINES_SHOWN = 6


class RollCallError(UserError):
  """A process is missing or registered twice; restarting all of them may help."""


@dataclasses.dataclass(frozen=True)
class Host:
  """A process, as it registers in the roll call."""

  process_id: int
  processes: int  # the total number according to its settings
  host: str
  config: str  # the text of its configuration
  versions: dict[str, str]

  @property
  def name(self) -> str:
    return f"process {self.process_id} on {self.host}"


def roll_call(coordinator: str, this_host: Host, timeout: float) -> list[Host]:
  """Registers this process and waits for the others, for at most `timeout` seconds.

  Returns the registered processes, sorted by process id; the same list on all of them.
  """
  address, port = coordinator.rsplit(":", 1)
  deadline = time.monotonic() + timeout
  if this_host.process_id == 0:
    return asyncio.run(_serve(int(port), this_host, deadline))
  return _join(address.strip("[]"), int(port), this_host, deadline, timeout)


class _Register:
  """The processes registered with process 0."""

  def __init__(self, this_host: Host, deadline: float):
    self.present = [this_host]
    self.deadline = deadline
    self.complete = asyncio.Event()
    self.writers: list[asyncio.StreamWriter] = []

  async def receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
      message = json.loads(await reader.readline())
      host, patience = Host(**message["host"]), float(message["patience"])
    except (ValueError, TypeError, KeyError, OSError):  # not our process, e.g. a port scanner or health check
      writer.close()
      return
    self.present.append(host)
    self.writers.append(writer)
    self.deadline = min(self.deadline, time.monotonic() + patience)
    expected = set(range(self.present[0].processes))
    if expected <= {host.process_id for host in self.present}:
      self.complete.set()


async def _serve(port: int, this_host: Host, deadline: float) -> list[Host]:
  register = _Register(this_host, deadline)
  try:
    server = await asyncio.start_server(
      register.receive, port=port, backlog=this_host.processes + 16, limit=_LONGEST_MESSAGE
    )
  except OSError as error:
    raise RollCallError(
      f"process 0 cannot open the coordinator's port {port}: {error.strerror or error}",
      try_="another port; or unique process ids, if two processes on this machine have id 0",
    ) from error
  if this_host.processes == 1:
    register.complete.set()
  # A process with a shorter timeout moves the deadline forward.
  while not register.complete.is_set() and (left := register.deadline - time.monotonic()) > 0:
    with contextlib.suppress(TimeoutError):
      await asyncio.wait_for(register.complete.wait(), min(left, 0.2))
  present = sorted(register.present, key=lambda host: host.process_id)
  answer = _write_hosts(present).encode() + b"\n"
  for writer in register.writers:
    with contextlib.suppress(OSError):
      writer.write(answer)
      writer.close()
      await asyncio.wait_for(writer.wait_closed(), 5)  # a process that hangs must not delay the others for long
  server.close()
  return present


def _join(address: str, port: int, this_host: Host, deadline: float, timeout: float) -> list[Host]:
  problem: object = "it closed the connection"
  while (left := deadline - time.monotonic()) > 0:
    try:
      with socket.create_connection((address, port), timeout=left) as connection:
        left = max(deadline - time.monotonic(), 0.0)
        message = {"host": dataclasses.asdict(this_host), "patience": left}
        connection.sendall(json.dumps(message).encode() + b"\n")
        connection.settimeout(left + 5.0)  # the answer is sent when the timeout expires, and needs time to arrive
        answer = connection.makefile().readline()
      if answer:
        return _read_hosts(answer)
    except (OSError, ValueError) as error:  # not listening yet, name not resolvable yet, or another service answered
      problem = error
    time.sleep(0.2)
  raise RollCallError(
    f"process 0 did not answer within {timeout:.0f} s",
    missing=f"process 0, the coordinator at {address}:{port} ({problem})",
    here=this_host.name,
    try_="run the same command on every host; open this port in the firewall",
  )


def _write_hosts(present: list[Host]) -> str:
  """Returns the list for all hosts, with each configuration once: those that equal the first are left out."""
  first = present[0].config
  short = [dataclasses.asdict(host) for host in present]
  for host in short:
    if host["config"] == first:
      del host["config"]
  return json.dumps({"config": first, "hosts": short})


def _read_hosts(answer: str) -> list[Host]:
  message = json.loads(answer)
  return [Host(**{"config": message["config"], **host}) for host in message["hosts"]]


def check_present(present: list[Host], processes: int, timeout: float) -> None:
  """Raises RollCallError if a process is missing or registered twice; on all hosts, since they have the same list."""
  ids = [host.process_id for host in present]
  duplicates = sorted({number for number in ids if ids.count(number) > 1})
  if duplicates:
    raise RollCallError(
      f"{ids.count(duplicates[0])} processes have the id {duplicates[0]}",
      seen=", ".join(host.name for host in present),
      try_="a unique T5LIKE_PROCESS_ID, starting at 0, on each",
    )
  missing = sorted(set(range(processes)) - set(ids))
  if missing:
    raise RollCallError(
      f"only {len(ids)} of {processes} hosts connected within {timeout:.0f} s",
      missing=", ".join(f"process {number}" for number in missing),
      seen=", ".join(host.name for host in present),
      try_="run the same command on every host; see the logs of the missing ones",
    )


def check_consistent(present: list[Host]) -> None:
  """Raises UserError if configurations or versions differ between hosts, naming those in the minority."""
  facts = {
    "number of processes": [str(host.processes) for host in present],
    "configuration": [host.config for host in present],
  }
  for package in sorted({name for host in present for name in host.versions}):
    facts[f"version of {package}"] = [host.versions.get(package, "none") for host in present]
  for fact, values in facts.items():
    if len(set(values)) == 1:
      continue
    usual = max(values, key=lambda value: (values.count(value), value == values[0]))
    outliers = [host.name for host, value in zip(present, values, strict=True) if value != usual]
    by_value = {value: [h.name for h, v in zip(present, values, strict=True) if v == value] for value in values}
    found = {value: _few(names) for value, names in by_value.items()}
    if fact == "configuration":
      found = {names: _own_lines(text, usual, values) for text, names in found.items()}
    raise UserError(
      f"mismatched {fact} on {_few(outliers)}", **found, try_="the same command, files and environment on every host"
    )


def _few(names: list[str]) -> str:
  return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _own_lines(text: str, usual: str, others: list[str]) -> str:
  """Returns the lines of a configuration that the usual one lacks; of the usual one, those that any other lacks."""
  others = [other for other in others if other != usual] if text == usual else [usual]
  lines = [line for line in text.splitlines() if any(line not in other.splitlines() for other in others)]
  return "\n".join(lines[:_LINES_SHOWN]) or "no line that the others lack"
