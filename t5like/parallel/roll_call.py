"""Who is here? Asked over plain TCP before JAX connects, so that an absent host has a name.

JAX's own start-up cannot tell: it aborts every process when one stays away, after up to twice its timeout
and without saying which. Process 0 therefore opens the coordinator's port first and writes down who comes. When
all are there, or the first of them runs out of patience, everyone is sent the same list, and the port is free
for JAX.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
import time

from t5like.errors import UserError


class RollCallError(UserError):
  """Not everyone is here, or someone twice: it may be otherwise when all are started again."""


@dataclasses.dataclass(frozen=True)
class Host:
  """What one process says of itself."""

  process_id: int
  processes: int  # how many it was told there are
  host: str
  config: str  # a hash of its configuration
  versions: dict[str, str]

  @property
  def name(self) -> str:
    return f"process {self.process_id} on {self.host}"


def roll_call(coordinator: str, own: Host, timeout: float) -> list[Host]:
  """All processes that came, by process id, once all have or `timeout` seconds are over; the same list for all."""
  address, port = coordinator.rsplit(":", 1)
  deadline = time.monotonic() + timeout
  if own.process_id == 0:
    return asyncio.run(_preside(int(port), own, deadline))
  return _attend(address.strip("[]"), int(port), own, deadline, timeout)


class _Register:
  """Process 0's list of those who came."""

  def __init__(self, own: Host, deadline: float):
    self.present = [own]
    self.deadline = deadline
    self.complete = asyncio.Event()
    self.writers: list[asyncio.StreamWriter] = []

  async def receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
      message = json.loads(await reader.readline())
      host, patience = Host(**message["host"]), float(message["patience"])
    except (ValueError, TypeError, KeyError, OSError):  # a port scanner, a health check: none of ours
      writer.close()
      return
    self.present.append(host)
    self.writers.append(writer)
    self.deadline = min(self.deadline, time.monotonic() + patience)
    expected = set(range(self.present[0].processes))
    if expected <= {host.process_id for host in self.present}:
      self.complete.set()


async def _preside(port: int, own: Host, deadline: float) -> list[Host]:
  register = _Register(own, deadline)
  try:
    server = await asyncio.start_server(register.receive, port=port, backlog=own.processes + 16)
  except OSError as error:
    raise RollCallError(
      f"process 0 cannot open the coordinator's port {port}: {error.strerror or error}",
      try_="another port; or give every process an id of its own, if two of them on this machine are process 0",
    ) from error
  if own.processes == 1:
    register.complete.set()
  # The deadline moves as others come with less patience.
  while not register.complete.is_set() and (left := register.deadline - time.monotonic()) > 0:
    with contextlib.suppress(TimeoutError):
      await asyncio.wait_for(register.complete.wait(), min(left, 0.2))
  present = sorted(register.present, key=lambda host: host.process_id)
  answer = json.dumps([dataclasses.asdict(host) for host in present]).encode() + b"\n"
  for writer in register.writers:
    with contextlib.suppress(OSError):
      writer.write(answer)
      writer.close()
      await asyncio.wait_for(writer.wait_closed(), 5)  # one who hangs must not keep the others waiting for long
  server.close()
  return present


def _attend(address: str, port: int, own: Host, deadline: float, timeout: float) -> list[Host]:
  problem: object = "it closed the connection"
  while (left := deadline - time.monotonic()) > 0:
    try:
      with socket.create_connection((address, port), timeout=left) as connection:
        left = max(deadline - time.monotonic(), 0.0)
        message = {"host": dataclasses.asdict(own), "patience": left}
        connection.sendall(json.dumps(message).encode() + b"\n")
        connection.settimeout(left + 5.0)  # the answer is sent when patience ends: let it arrive
        answer = connection.makefile().readline()
      if answer:
        return [Host(**host) for host in json.loads(answer)]
    except (OSError, ValueError) as error:  # not up yet, no such name yet, or something else is listening there
      problem = error
    time.sleep(0.2)
  raise RollCallError(
    f"process 0 did not answer within {timeout:.0f} s",
    missing=f"process 0, the coordinator at {address}:{port} ({problem})",
    here=own.name,
    try_="the same command on every host; a firewall that lets this port through",
  )


def check_present(present: list[Host], processes: int, timeout: float) -> None:
  """Refuses a list with someone missing, or there twice. All hosts have the same list, and so come to the same end."""
  ids = [host.process_id for host in present]
  twice = sorted({number for number in ids if ids.count(number) > 1})
  if twice:
    raise RollCallError(
      f"{ids.count(twice[0])} processes say that they are process {twice[0]}",
      seen=", ".join(host.name for host in present),
      try_="another T5LIKE_PROCESS_ID, from 0 up, on each",
    )
  missing = sorted(set(range(processes)) - set(ids))
  if missing:
    raise RollCallError(
      f"{len(ids)} of {processes} hosts came within {timeout:.0f} s",
      missing=", ".join(f"process {number}" for number in missing),
      seen=", ".join(host.name for host in present),
      try_="the same command on every host; look there why it ended or did not start",
    )


def check_alike(present: list[Host]) -> None:
  """Refuses hosts whose configuration or versions differ, and names those in the minority."""
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
    odd = [host.name for host, value in zip(present, values, strict=True) if value != usual]
    raise UserError(
      f"not all hosts have the same {fact}: another one on {', '.join(odd)}",
      **{
        value: ", ".join(host.name for host, its in zip(present, values, strict=True) if its == value)
        for value in dict.fromkeys(values)
      },
      try_="the same command, files and environment on every host",
    )
