"""Random keys by hashing: to derive a key takes a dozen operations, where JAX's Threefry takes a hundred.

A train step derives a key for every layer's dropout. With Threefry, the step of T5 base took 50 s to compile for an
H200 instead of 27 s: XLA's time grows with the number of operations, so there are as few as possible. The hash is murmur3's finalizer: every bit of a result depends on every bit of key and value.
Initialization still uses JAX's default generator.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl


def hashed(state: jax.Array, value: jax.Array) -> jax.Array:
  """Combines int32 arrays, a state and a value, into a new state."""
  x = state * jnp.int32(0x9E3779B1 - 2**32) + value
  x = (x ^ _shift_right(x, 16)) * jnp.int32(0x85EBCA6B - 2**32)
  x = (x ^ _shift_right(x, 13)) * jnp.int32(0xC2B2AE35 - 2**32)
  return x ^ _shift_right(x, 16)


def key_state(key: jax.Array) -> jax.Array:
  """Returns the state of a random key of any implementation: an int32."""
  first, *others = _signed(jax.random.key_data(key).reshape(-1))
  return first if jax.random.key_impl(key) == HASHED else functools.reduce(hashed, others, first)


def hashed_indices(state: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """Returns a hash of the state and the index, counted through all axes: int32 of `shape`."""
  index = 0
  for axis, size in enumerate(shape):
    index = index * size + jax.lax.broadcasted_iota(jnp.int32, shape, axis)
  return hashed(state, index)


def _shift_right(x: jax.Array, count: int) -> jax.Array:
  return jax.lax.shift_right_logical(x, jnp.full_like(x, count))


def _signed(x: jax.Array) -> jax.Array:
  return jax.lax.bitcast_convert_type(x, jnp.int32)


def _key(first: jax.Array, second: jax.Array) -> jax.Array:
  return jax.lax.bitcast_convert_type(jnp.stack([first, second], axis=-1), jnp.uint32)


def _seed(seed: jax.Array) -> jax.Array:
  value = jnp.asarray(seed).astype(jnp.int32)
  first = hashed(jnp.int32(0), value)
  return _key(first, hashed(first, value))


def _fold_in(key: jax.Array, value: jax.Array) -> jax.Array:
  first, second = _signed(key)
  return _key(hashed(first, _signed(jnp.asarray(value).astype(jnp.uint32)) + second), second)


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  numbers = jnp.arange(math.prod(shape), dtype=jnp.uint32)
  return jax.vmap(lambda number: _fold_in(_fold_in(key, jnp.uint32(0x5EED)), number))(numbers).reshape(*shape, 2)


def _random_bits(key: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
  first, second = _signed(key)
  state = hashed(first, second)
  state = jnp.broadcast_to(state, (1,) * len(shape))
  for axis in range(len(shape)):
    state = hashed(state, second + jax.lax.broadcasted_iota(jnp.int32, shape, axis))
  state = jax.lax.bitcast_convert_type(state, jnp.uint32)
  if bit_width == 64:
    low = _random_bits(_fold_in(key, jnp.uint32(64)), 32, shape)
    return (state.astype(jnp.uint64) << jnp.uint64(32)) | low.astype(jnp.uint64)
  return jax.lax.shift_right_logical(state, jnp.full_like(state, 32 - bit_width)).astype(f"uint{bit_width}")


# For `jax.random.key(seed, impl=HASHED)`.
HASHED = define_prng_impl(
  key_shape=(2,), seed=_seed, split=_split, random_bits=_random_bits, fold_in=_fold_in, name="hashed", tag="hsh"
)
