"""A batch taken in parts, one after the other, where all of its activations at once would not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from t5like import parallel
from t5like.errors import UserError


def check_microbatches(
  batch_size: int, microbatches: int, mesh: Mesh | AbstractMesh, option: str = "--gin.MICROBATCHES"
) -> None:
  """Every microbatch must spread its rows evenly over the devices that share the batch."""
  ways = mesh.shape["data"] * mesh.shape["fsdp"]
  if microbatches >= 1 and batch_size % (ways * microbatches) == 0:
    return
  rows = batch_size // ways  # of one device
  working = [count for count in range(1, rows + 1) if batch_size % (ways * count) == 0]
  nearest = sorted(sorted(working, key=lambda count: (abs(count - microbatches), count))[:3])
  unit = ways * max(microbatches, 1)
  sizes = [size for size in (batch_size // unit * unit, -(-batch_size // unit) * unit) if size > 0]
  remedies = [f"{option}={count}" for count in nearest]
  if microbatches > 1:
    remedies += [f"--gin.BATCH_SIZE={size}" for size in dict.fromkeys(sizes)]
  raise UserError(
    f"a batch of {batch_size} cannot be taken in {microbatches} microbatches on {ways} devices",
    mesh=parallel.describe_mesh(mesh),
    expected=f"a batch that is a multiple of {ways} devices * {max(microbatches, 1)} microbatches = {unit} rows",
    try_=" or ".join(remedies),
  )


def split_rows(batch: Any, count: int) -> Any:
  """[batch, ...] -> [count, batch / count, ...], the m-th microbatch having rows m, m + count, m + 2 * count, ...

  A device holds neighboring rows. Interleaved like this, it has its share of every microbatch already;
  cut into blocks, all rows would have to change places.
  """

  def split(x: jax.Array) -> jax.Array:
    x = x.reshape(x.shape[0] // count, count, *x.shape[1:]).swapaxes(0, 1)
    return nn.with_logical_constraint(x, (None, "batch") + (None,) * (x.ndim - 2))

  return jax.tree.map(split, batch)


def sum_gradients(
  gradients_of: Callable[[jax.Array, Any], tuple[Any, Any]], batch: Any, count: int, params: Any
) -> tuple[Any, Any]:
  """Adds up what `gradients_of(index, microbatch)` gives: gradients like `params`, and numbers.

  Gradients are added in float32, however many there are, and come out in the types of `params`.
  """

  def add(total, part):
    gradients, numbers = gradients_of(*part)
    return jax.tree.map(lambda t, g: t + g.astype(jnp.float32), total, gradients), numbers

  nothing = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
  total, numbers = jax.lax.scan(add, nothing, (jnp.arange(count), split_rows(batch, count)))
  return jax.tree.map(lambda t, p: t.astype(p.dtype), total, params), _sum(numbers)


def sum_numbers(numbers_of: Callable[[Any], Any], batch: Any, count: int) -> Any:
  """Adds up what `numbers_of(microbatch)` gives."""
  return _sum(jax.lax.map(numbers_of, split_rows(batch, count)))


def _sum(stacked: Any) -> Any:
  return jax.tree.map(lambda x: jnp.sum(x, axis=0), stacked)
