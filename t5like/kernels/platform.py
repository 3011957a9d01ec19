"""Which platform a traced function is compiled for: "cpu", "gpu" or "tpu". What is fastest differs between them."""

import contextlib
import contextvars
import functools
import importlib.util
from collections.abc import Iterator

import jax

_described = contextvars.ContextVar("platform", default=None)
_deterministic = contextvars.ContextVar("deterministic", default=False)


@contextlib.contextmanager
def compile_for(platform: str) -> Iterator[None]:
  """While active, choices are made for another machine's platform: to lower a step for TPUs on a laptop."""
  token = _described.set(platform)
  try:
    yield
  finally:
    _described.reset(token)


def described_platform() -> str | None:
  """That of `compile_for`; None where this machine's own devices are asked."""
  return _described.get()


def target_platform() -> str:
  """Where what is traced now will run."""
  return described_platform() or jax.default_backend()


@contextlib.contextmanager
def deterministic_kernels(wanted: bool = True) -> Iterator[None]:
  """While active, kernels are chosen that give the same bits every time."""
  token = _deterministic.set(wanted)
  try:
    yield
  finally:
    _deterministic.reset(token)


def must_be_deterministic() -> bool:
  return _deterministic.get()


@functools.cache
def can_write_gpu_kernels() -> bool:
  """Whether this JAX still has Pallas's Triton, which it means to give up."""
  return importlib.util.find_spec("jax.experimental.pallas.triton") is not None
