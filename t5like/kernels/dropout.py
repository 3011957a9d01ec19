"""Dropout whose masks are computed where they are used, forward and backward, and never stored.

Entry (i, j) of a mask is kept if the product of two odd hashes, one of row i and one of column j, modulo 2**32, is in
the upper 1 - rate of its range (multiply-shift hashing, Dietzfelbinger et al. 1997): one multiplication per entry,
where JAX's own generator (Threefry) takes about a hundred operations. The hashes (hashing.py) are of the random key and
the indices. So a mask depends on (seed, step, layer) through the key and on global indices, not on tiles, devices or
the mesh, and every key draws new hashes for all rows and columns.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from t5like.kernels.hashing import hashed, hashed_indices, key_state


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionDropout:
  """The mask of attention weights: two hash states for every row and head, of its queries and of its keys."""

  query_state: jax.Array  # [batch, heads] int32
  key_state: jax.Array  # [batch, heads] int32
  rate: float = dataclasses.field(default=0.0, metadata={"static": True})

  @classmethod
  def draw(cls, key: jax.Array, rate: float, batch: int, heads: int) -> "AttentionDropout":
    state = key_state(key)
    return cls(hashed_indices(state, (batch, heads)), hashed_indices(~state, (batch, heads)), rate)

  def bits(self, query_length: int, key_length: int) -> tuple[jax.Array, jax.Array]:
    """Returns the odd hashes of queries [batch, heads, query] and keys [batch, heads, key]."""
    both = (self.query_state, query_length), (self.key_state, key_length)
    # Computed once; XLA would otherwise compute both hashes for every entry of the mask.
    return jax.lax.optimization_barrier(
      tuple(odd_hash(s[..., None], jax.lax.broadcasted_iota(jnp.int32, (1, 1, n), 2)) for s, n in both)
    )

  def keep(self, query_length: int, key_length: int) -> jax.Array:
    """Returns the mask as a matrix [batch, heads, query, key], True where kept."""
    query_bits, key_bits = self.bits(query_length, key_length)
    return kept(query_bits[..., :, None], key_bits[..., None, :], self.rate)


def kept(row_bits: jax.Array, column_bits: jax.Array, rate: float) -> jax.Array:
  """Returns which entries a mask keeps, from the bits of their rows and columns."""
  return row_bits * column_bits >= jnp.int32(round(rate * 2**32) - 2**31)


def odd_hash(state: jax.Array, index: jax.Array) -> jax.Array:
  """Returns the bits of a row or column: an odd int32."""
  return hashed(state, index) | jnp.int32(1)


def dropout(x: jax.Array, rate: float, key: jax.Array) -> jax.Array:
  """Zeroes each entry of x with probability `rate`, and divides the others by 1 - rate."""
  return DrawnDropout.draw(x.shape, rate, key)(x)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DrawnDropout:
  """Dropout of arrays of a shape, for a function that the backward pass computes again."""

  row_bits: jax.Array  # int32, of the shape without its last axis
  column_bits: jax.Array  # int32, of its last axis
  rate: float = dataclasses.field(metadata={"static": True})

  @classmethod
  def draw(cls, shape: tuple[int, ...], rate: float, key: jax.Array) -> "DrawnDropout":
    state = key_state(key)
    bits = (hashed_indices(state, shape[:-1]), hashed_indices(~state, shape[-1:]))
    return cls(*jax.lax.optimization_barrier(tuple(b | jnp.int32(1) for b in bits)), rate)

  def __call__(self, x: jax.Array) -> jax.Array:
    return _dropout(x, self.row_bits, self.column_bits, self.rate)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _dropout(x, row_bits, column_bits, rate):
  column_bits = column_bits.reshape((1,) * (x.ndim - 1) + (-1,))
  return jnp.where(kept(row_bits[..., None], column_bits, rate), x * (1.0 / (1.0 - rate)), jnp.zeros((), x.dtype))


def _dropout_forward(x, row_bits, column_bits, rate):
  return _dropout(x, row_bits, column_bits, rate), (row_bits, column_bits)


def _dropout_backward(rate, bits, gradient):
  return _dropout(gradient, *bits, rate), None, None


_dropout.defvjp(_dropout_forward, _dropout_backward)
