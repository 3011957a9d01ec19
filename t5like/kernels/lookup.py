"""Rows of a table by their ids, with a gradient that has the same bits every time.

The gradient of a gather is a scatter that adds. On a GPU XLA adds the rows of one id with atomic operations, in the
order in which they happen to arrive: sums differ in their last bits from run to run, and with them all that is
trained. Here ids are sorted, which brings equal ones together, and the rows of each are summed by products with
matrices of zeros and ones: exact factors, and always the same order.
"""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from t5like.kernels.attention import WHOLE, Split, dividing_axes
from t5like.kernels.platform import target_platform

_BLOCK = 256  # sorted rows that are summed by one product


def look_up(table: jax.Array, ids: jax.Array, dtype: jnp.dtype, split: Split = WHOLE) -> jax.Array:
  """Rows of `table` [rows, width], of `dtype`: [..., width] for ids [...]; not a number for ids beyond the table.

  `split` says over which mesh axes the first axis of ids (`batch`) and the rows of the table (`heads`) are split.
  """
  if target_platform() != "gpu":  # elsewhere a scatter adds in order
    return jnp.take(table, ids, axis=0).astype(dtype)
  return _look_up(table, ids, jnp.dtype(dtype), table.shape[0], table.dtype, split)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4, 5))
def _look_up(table, ids, dtype, rows, table_dtype, split):
  return jnp.take(table, ids, axis=0).astype(dtype)


def _forward(table, ids, dtype, rows, table_dtype, split):
  return _look_up(table, ids, dtype, rows, table_dtype, split), ids


def _backward(dtype, rows, table_dtype, split, ids, gradient):
  ids = jnp.where((ids >= 0) & (ids < rows), ids, rows)
  return _summed(ids, gradient, rows, split).astype(table_dtype), None


_look_up.defvjp(_forward, _backward)


def _summed(ids: jax.Array, gradient: jax.Array, rows: int, split: Split) -> jax.Array:
  """[rows, width] float32. On several devices each sums its own part of the batch, for its own rows of the table."""
  mesh = jax.sharding.get_abstract_mesh()
  batch, vocab = dividing_axes(mesh, split.batch, ids.shape[0]), dividing_axes(mesh, split.heads, rows)
  if batch is None and vocab is None:
    return sums_by_id(ids, gradient, rows)

  def on_one_device(ids, gradient):
    own = rows
    if vocab is not None:
      own = rows // jax.lax.axis_size(vocab)
      ids = ids - own * jax.lax.axis_index(vocab)
      ids = jnp.where((ids >= 0) & (ids < own), ids, own)
    sums = sums_by_id(ids, gradient, own)
    return sums if batch is None else jax.lax.psum(sums, batch)

  rows_of_batch = PartitionSpec(batch)
  return jax.shard_map(
    on_one_device, in_specs=(rows_of_batch, rows_of_batch), out_specs=PartitionSpec(vocab), check_vma=False
  )(ids, gradient)


def sums_by_id(ids: jax.Array, gradient: jax.Array, rows: int) -> jax.Array:
  """The sum of all rows of `gradient` [..., width] that have the same id, [rows, width] float32; id `rows`: nowhere."""
  width, precision = gradient.shape[-1], jax.lax.Precision.HIGHEST
  ids, gradient = ids.reshape(-1), gradient.reshape(-1, width)
  ids = jnp.pad(ids, (0, -len(ids) % _BLOCK), constant_values=rows)
  ids, order = jax.lax.sort_key_val(ids, jnp.arange(len(ids), dtype=jnp.int32))  # stable: the order is a fixed one
  gradient = jnp.take(gradient, order, axis=0, mode="clip").reshape(-1, _BLOCK, width)
  blocks = ids.reshape(-1, _BLOCK)

  # Within each block, the sum of an id's rows up to every row.
  same = (blocks[:, :, None] == blocks[:, None, :]) & jnp.tril(jnp.ones((_BLOCK, _BLOCK), bool))[None]
  sums = jnp.einsum(
    "bij,bjw->biw", same.astype(gradient.dtype), gradient, preferred_element_type=jnp.float32, precision=precision
  )
  # What the blocks before have of the id with which a block begins: it is the last one of each of them.
  number = jnp.arange(len(blocks))
  before = (blocks[None, :, -1] == blocks[:, None, 0]) & (number[None, :] < number[:, None])
  carried = jnp.einsum("bc,cw->bw", before.astype(jnp.float32), sums[:, -1], precision=precision)
  sums = sums + jnp.where((blocks == blocks[:, :1])[:, :, None], carried[:, None, :], 0.0)

  # The last row of an id has all of its sum; the others are sent to places beyond the table, each to its own.
  last = ids != jnp.append(ids[1:], -1)
  place = jnp.where(last & (ids < rows), ids, rows + jnp.arange(len(ids)))
  out = jnp.zeros((rows, width), jnp.float32)
  return out.at[place].set(sums.reshape(-1, width), mode="drop", unique_indices=True)
