"""Ports for processes that tests start."""

import random
import socket


def free_port() -> int:
  """One that nobody listens on, below those that the system hands out: no connection of another test can take it."""
  for port in random.SystemRandom().sample(range(15_000, 30_000), 200):
    with socket.socket() as probe:
      try:
        probe.bind(("", port))
      except OSError:
        continue
      return port
  raise RuntimeError("no port is free")
