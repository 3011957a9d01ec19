"""The platform a traced function is compiled for: "cpu", "gpu" or "tpu"."""

import contextlib
import contextvars
import functools
import importlib.util
from collections.abc import Iterator

import jax

_override = contextvars.ContextVar("platform", default=None)
_deterministic = contextvars.ContextVar("deterministic", default=False)


@contextlib.contextmanager
def compile_for(platform: str | None) -> Iterator[None]:
  """Selects kernels for the given platform while active, e.g. to lower a step for TPUs on a laptop; None: no change."""
  token = _override.set(platform or _override.get())
  try:
    yield
  finally:
    _override.reset(token)


def platform_override() -> str | None:
  """Returns the platform set by `compile_for`, or None if this machine's devices decide."""
  return _override.get()


def target_platform() -> str:
  """Returns the platform on which the function being traced will run."""
  return platform_override() or jax.default_backend()


@contextlib.contextmanager
def deterministic_kernels(enabled: bool = True) -> Iterator[None]:
  """Selects kernels with bitwise reproducible results while active."""
  token = _deterministic.set(enabled)
  try:
    yield
  finally:
    _deterministic.reset(token)


def determinism_required() -> bool:
  return _deterministic.get()


def is_single_gpu() -> bool:
  """Whether there is one GPU, so that kernels run which the partitioner cannot split."""
  return target_platform() == "gpu" and jax.sharding.get_abstract_mesh().size <= 1 and has_pallas_triton()


@functools.cache
def has_pallas_triton() -> bool:
  """Whether this version of JAX has Pallas's Triton back end, which is announced for removal."""
  return importlib.util.find_spec("jax.experimental.pallas.triton") is not None


def compiler_options() -> dict[str, bool]:
  """Returns the XLA options of a function that runs a model."""
  if target_platform() != "gpu":
    return {}
  # cuBLAS computes matrix products. XLA would tune kernels of its own for seconds, with which beam search is 7% slower;
  # and it would fuse a gelu into the product that reads it: a kernel half as fast.
  return {"xla_gpu_enable_triton_gemm": False}
