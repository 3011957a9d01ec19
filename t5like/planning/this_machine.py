"""Measures devices without a data sheet by timing a matrix product and a copy."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from t5like.planning.devices import DeviceSpec

_SIZE = 1024  # of the matrices; larger than any cache of one core


def measured_spec(devices: int) -> DeviceSpec:
  """Returns the measured spec of one of `devices` devices; CPU devices share the cores and the memory."""
  x = jnp.ones((_SIZE, _SIZE), jnp.float32)
  flops = 2 * _SIZE**3 / _fastest(jax.jit(lambda x: x @ x), x)
  long = jnp.ones((16 * _SIZE * _SIZE,), jnp.float32)
  bandwidth = 2 * long.nbytes / _fastest(jax.jit(lambda x: x + 1.0), long)
  memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  shared = devices if jax.default_backend() == "cpu" else 1
  return DeviceSpec(flops / shared, memory / shared, bandwidth / shared)


def _fastest(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> float:
  function(x).block_until_ready()
  times = []
  for _ in range(5):
    started = time.perf_counter()
    function(x).block_until_ready()
    times.append(time.perf_counter() - started)
  return min(times)
