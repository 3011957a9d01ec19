"""Gradient accumulation: a batch in microbatches, one after the other, to fit its activations in memory."""

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
  """Raises UserError unless the rows of every microbatch divide evenly among the data shards."""
  shards = parallel.row_shards(mesh.shape)
  if microbatches >= 1 and batch_size % (shards * microbatches) == 0:
    return
  rows = batch_size // shards
  valid = [count for count in range(1, rows + 1) if batch_size % (shards * count) == 0]
  nearest = sorted(sorted(valid, key=lambda count: (abs(count - microbatches), count))[:3])
  unit = shards * max(microbatches, 1)
  sizes = [size for size in (batch_size // unit * unit, -(-batch_size // unit) * unit) if size > 0]
  remedies = [f"{option}={count}" for count in nearest]
  if microbatches > 1:
    remedies += [f"--gin.BATCH_SIZE={size}" for size in dict.fromkeys(sizes)]
  raise UserError(
    f"a batch of {batch_size} cannot be split into {microbatches} microbatches on {shards} data shards",
    mesh=parallel.describe_mesh(mesh),
    expected=f"a multiple of {shards} data shards * {max(microbatches, 1)} microbatches = {unit} rows",
    try_=" or ".join(remedies),
  )


def split_rows(batch: Any, count: int) -> Any:
  """Reshapes [batch, ...] to [count, batch / count, ...]; microbatch m has rows m, m + count, m + 2 * count, ...

  A device holds neighboring rows. Interleaved like this, it already holds its part of every microbatch; contiguous
  microbatches would need an all-to-all.
  """

  def split(x: jax.Array) -> jax.Array:
    x = x.reshape(x.shape[0] // count, count, *x.shape[1:]).swapaxes(0, 1)
    return nn.with_logical_constraint(x, (None, "batch") + (None,) * (x.ndim - 2))

  return jax.tree.map(split, batch)


def sum_gradients(
  gradients_of: Callable[[jax.Array, Any], tuple[Any, Any]], batch: Any, count: int, params: Any
) -> tuple[Any, Any]:
  """Sums the results of `gradients_of(index, microbatch)`: gradients like `params`, and metrics.

  Gradients are accumulated in float32 and returned in the dtypes of `params`.
  """

  def add(total, part):
    gradients, metrics = gradients_of(*part)
    return jax.tree.map(lambda t, g: t + g.astype(jnp.float32), total, gradients), metrics

  zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
  total, metrics = jax.lax.scan(add, zeros, (jnp.arange(count), split_rows(batch, count)))
  return jax.tree.map(lambda t, p: t.astype(p.dtype), total, params), _sum(metrics)


def sum_cached_gradients(
  outputs_of: Callable[[Any, jax.Array, Any], Any], loss_of: Callable[[Any], tuple[jax.Array, Any]],
  batch: Any, count: int, params: Any,
) -> tuple[Any, Any]:  # fmt: skip
  """Returns gradients like `params`, and (loss, metrics), of a loss that compares the rows of the complete batch.

  GradCache (Gao et al. 2021): all outputs are computed first, without the activations behind them; the gradients of
  `loss_of(outputs of all rows)` with respect to them then go back through one microbatch after the other, whose
  outputs `outputs_of(params, index, microbatch)` are computed once more. Memory is that of a microbatch.
  """
  parts = (jnp.arange(count), split_rows(batch, count))
  outputs = join_rows(jax.lax.map(lambda part: outputs_of(*_fenced(params, part[0]), part[1]), parts))
  values, cotangents = jax.value_and_grad(loss_of, has_aux=True)(outputs)

  def add(total, part):
    index, microbatch, cotangent = part
    own, index = _fenced(params, index)
    _, pull_back = jax.vjp(lambda params: outputs_of(params, index, microbatch), own)
    (gradients,) = pull_back(cotangent)
    return jax.tree.map(lambda t, g: t + g.astype(jnp.float32), total, gradients), None

  zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
  total, _ = jax.lax.scan(add, zeros, (*parts, split_rows(cotangents, count)))
  return jax.tree.map(lambda t, p: t.astype(p.dtype), total, params), values


def _fenced(params: Any, index: jax.Array) -> tuple[Any, jax.Array]:
  """Keeps the compiler from gathering all sharded parameters ahead of the loop."""
  return jax.lax.optimization_barrier((params, index))


def join_rows(parts: Any) -> Any:
  """Inverts `split_rows`: [count, batch / count, ...] to [batch, ...]."""

  def join(x: jax.Array) -> jax.Array:
    x = x.swapaxes(0, 1).reshape(-1, *x.shape[2:])
    return nn.with_logical_constraint(x, ("batch",) + (None,) * (x.ndim - 1))

  return jax.tree.map(join, parts)


def sum_over_microbatches(function: Callable[[Any], Any], batch: Any, count: int) -> Any:
  """Sums `function(microbatch)` over the microbatches."""
  return _sum(jax.lax.map(function, split_rows(batch, count)))


def _sum(stacked: Any) -> Any:
  return jax.tree.map(lambda x: jnp.sum(x, axis=0), stacked)
