"""Runs kernels whose programs address whole arrays themselves (Pallas, Triton)."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton


def run_programs(
  kernel: Callable, grid: tuple[int, ...], warps: int, arguments: Sequence[jax.Array], out_shape: Any, name: str,
  interpret: bool, stages: int = 2,
):  # fmt: skip
  """Calls `kernel` with refs of all arguments and results, for every point of the grid."""
  whole = lambda x: pl.BlockSpec(x.shape, lambda *_: (0,) * len(x.shape))  # noqa: E731
  return pl.pallas_call(
    kernel,
    grid=grid,
    in_specs=jax.tree.map(whole, list(arguments)),
    out_specs=jax.tree.map(whole, out_shape),
    out_shape=out_shape,
    compiler_params=triton.CompilerParams(num_warps=warps, num_stages=stages),
    interpret=interpret,
    name=f"t5like_{name}",
  )(*arguments)
