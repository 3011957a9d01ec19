"""Embedding lookup with a deterministic gradient.

The gradient of a gather is a scatter-add. On a GPU, XLA adds the rows of an id with atomic operations in arbitrary
order, so sums, and with them all training, differ in the last bits from run to run. Here ids are sorted to bring equal
ones together, and the rows of each are summed by products with 0/1 matrices: exact factors, and a fixed order.
"""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from t5like.kernels.attention import UNSHARDED, ShardedAxes, dividing_axes
from t5like.kernels.platform import target_platform

_BLOCK = 256  # sorted rows summed by one matrix product


def look_up(table: jax.Array, ids: jax.Array, dtype: jnp.dtype, axes: ShardedAxes = UNSHARDED) -> jax.Array:
  """Returns rows of `table` [rows, width] as [..., width] of `dtype` for ids [...]; NaN for ids out of range.

  `axes` gives the mesh axes that shard the first axis of ids (`batch`) and the rows of the table (`heads`).
  """
  if target_platform() != "gpu":  # elsewhere scatter-add is deterministic
    return jnp.take(table, ids, axis=0).astype(dtype)
  return _look_up(table, ids, jnp.dtype(dtype), table.shape[0], table.dtype, axes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4, 5))
def _look_up(table, ids, dtype, rows, table_dtype, axes):
  return jnp.take(table, ids, axis=0).astype(dtype)


def _forward(table, ids, dtype, rows, table_dtype, axes):
  return _look_up(table, ids, dtype, rows, table_dtype, axes), ids


def _backward(dtype, rows, table_dtype, axes, ids, gradient):
  ids = jnp.where((ids >= 0) & (ids < rows), ids, rows)
  return _table_gradient(ids, gradient, rows, axes).astype(table_dtype), None


_look_up.defvjp(_forward, _backward)


def _table_gradient(ids: jax.Array, gradient: jax.Array, rows: int, axes: ShardedAxes) -> jax.Array:
  """Returns [rows, width] float32. On a mesh, each device sums its shard of the batch for its shard of the table."""
  mesh = jax.sharding.get_abstract_mesh()
  batch, vocab = dividing_axes(mesh, axes.batch, ids.shape[0]), dividing_axes(mesh, axes.heads, rows)
  if batch is None and vocab is None:
    return sum_by_id(ids, gradient, rows)

  def on_one_device(ids, gradient):
    local_rows = rows
    if vocab is not None:
      local_rows = rows // jax.lax.axis_size(vocab)
      ids = ids - local_rows * jax.lax.axis_index(vocab)
      ids = jnp.where((ids >= 0) & (ids < local_rows), ids, local_rows)
    sums = sum_by_id(ids, gradient, local_rows)
    return sums if batch is None else jax.lax.psum(sums, batch)

  by_batch = PartitionSpec(batch)
  return jax.shard_map(on_one_device, in_specs=(by_batch, by_batch), out_specs=PartitionSpec(vocab), check_vma=False)(
    ids, gradient
  )


def sum_by_id(ids: jax.Array, gradient: jax.Array, rows: int) -> jax.Array:
  """Sums the rows of `gradient` [..., width] by id into [rows, width] float32; rows with id `rows` are dropped."""
  width, precision = gradient.shape[-1], jax.lax.Precision.HIGHEST
  ids, gradient = ids.reshape(-1), gradient.reshape(-1, width)
  ids = jnp.pad(ids, (0, -len(ids) % _BLOCK), constant_values=rows)
  ids, order = jax.lax.sort_key_val(ids, jnp.arange(len(ids), dtype=jnp.int32))  # stable, hence deterministic
  gradient = jnp.take(gradient, order, axis=0, mode="clip").reshape(-1, _BLOCK, width)
  blocks = ids.reshape(-1, _BLOCK)

  # Within each block: running sums of the rows of each id.
  same = (blocks[:, :, None] == blocks[:, None, :]) & jnp.tril(jnp.ones((_BLOCK, _BLOCK), bool))[None]
  sums = jnp.einsum(
    "bij,bjw->biw", same.astype(gradient.dtype), gradient, preferred_element_type=jnp.float32, precision=precision
  )
  # Carried into a block: sums of its first id from earlier blocks, where that id is necessarily the last.
  number = jnp.arange(len(blocks))
  before = (blocks[None, :, -1] == blocks[:, None, 0]) & (number[None, :] < number[:, None])
  carried = jnp.einsum("bc,cw->bw", before.astype(jnp.float32), sums[:, -1], precision=precision)
  sums = sums + jnp.where((blocks == blocks[:, :1])[:, :, None], carried[:, None, :], 0.0)

  # The last row of an id holds its total; all others get distinct indices beyond the table and are dropped.
  last = ids != jnp.append(ids[1:], -1)
  target = jnp.where(last & (ids < rows), ids, rows + jnp.arange(len(ids)))
  out = jnp.zeros((rows, width), jnp.float32)
  return out.at[target].set(sums.reshape(-1, width), mode="drop", unique_indices=True)
