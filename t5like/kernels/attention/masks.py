"""Attention masks: their description, as a matrix, and as one code per position for fused kernels."""

import dataclasses

import jax
import jax.numpy as jnp


def static(default):
  """Declares a static field of a pytree dataclass: part of the compiled function, not an array."""
  return dataclasses.field(default=default, metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mask:
  """The keys a query may attend to: those that meet every condition given.

  causal          key index <= query index.
  prefix          [batch, length], nonzero on a prefix LM's inputs: those
                  positions attend to each other in both directions.
  query_segments, key_segments
                  [batch, query], [batch, key], 0 or more: only keys of the same
                  packed example.
  key_valid       [batch, key], nonzero on real tokens.
  query_order, key_order
                  [batch, query], [batch, key]: only keys whose order is at
                  most the query's (XLNet's permutations).
  own             a query also sees the key at its own index, counted from the
                  end of both, whatever the conditions say (XLNet's padding).
  window          only keys less than this number of positions away, in both
                  directions (Mistral's sliding window, if causal).
  right_padded    promises that all padding in `key_valid` follows the tokens:
                  a back end may then use one length per row instead of a matrix.
  """

  causal: bool = static(False)
  prefix: jax.Array | None = None
  query_segments: jax.Array | None = None
  key_segments: jax.Array | None = None
  key_valid: jax.Array | None = None
  right_padded: bool = static(False)
  window: int | None = static(None)
  query_order: jax.Array | None = None
  key_order: jax.Array | None = None
  own: bool = static(False)


def mask_matrix(
  mask: Mask, query_length: int, key_length: int, query_offset: jax.Array | None = None
) -> jax.Array | None:
  """Returns the mask as a matrix [batch or 1, 1, query, key], True where visible; None if nothing is masked."""
  allowed = []
  query_index, key_index = jnp.arange(query_length)[None, :, None], jnp.arange(key_length)[None, None, :]
  if query_offset is not None:
    query_index = query_index + query_offset[:, None, None]  # [batch, query, 1]
  if mask.causal:
    visible = key_index <= query_index
    if mask.prefix is not None:
      inside = mask.prefix.astype(bool)
      visible = visible | (inside[:, :, None] & inside[:, None, :])
    allowed.append(visible)
  if mask.window is not None:
    allowed.append(jnp.abs(query_index - key_index) < mask.window)
  if mask.query_segments is not None:
    allowed.append(mask.query_segments[:, :, None] == mask.key_segments[:, None, :])
  if mask.key_valid is not None:
    allowed.append(mask.key_valid.astype(bool)[:, None, :])
  if mask.query_order is not None:
    allowed.append(mask.key_order[:, None, :] <= mask.query_order[:, :, None])
  if not allowed:
    return None
  combined = allowed[0]
  for condition in allowed[1:]:
    combined = combined & condition
  if mask.own:
    combined = combined | (query_index + key_length - query_length == key_index)
  return combined[:, None, :, :]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Codes:
  """A mask as one int32 per position: 2 * segment + (1 inside a prefix), and -2 for keys hidden from all queries."""

  query: jax.Array  # [batch, query]
  key: jax.Array  # [batch, key]


def mask_codes(mask: Mask, batch: int, query_length: int, key_length: int) -> Codes | None:
  """Encodes a mask; None if it has no condition besides causality and a window, which follow from the index."""
  if mask.prefix is None and mask.query_segments is None and mask.key_valid is None:
    return None
  query, key = jnp.zeros((batch, query_length), jnp.int32), jnp.zeros((batch, key_length), jnp.int32)
  if mask.query_segments is not None:
    query, key = 2 * mask.query_segments.astype(jnp.int32), 2 * mask.key_segments.astype(jnp.int32)
  if mask.causal and mask.prefix is not None:
    inside = mask.prefix.astype(bool).astype(jnp.int32)
    query, key = query + inside, key + inside
  if mask.key_valid is not None:
    key = jnp.where(mask.key_valid.astype(bool), key, -2)
  return Codes(query, key)


def visible(
  query_index: jax.Array, key_index: jax.Array, query_code: jax.Array | None, key_code: jax.Array | None, causal: bool,
  window: int | None = None,
) -> jax.Array | None:  # fmt: skip
  """Returns the mask of one tile, from arrays that broadcast to it; None if nothing is masked.

  Codes that differ only in the prefix bit belong to the same segment.
  """
  allowed = key_index <= query_index if causal else None
  if query_code is not None:
    same = (query_code >> 1) == (key_code >> 1)
    allowed = same if allowed is None else same & (allowed | ((query_code & key_code & 1) == 1))
  if window is None:
    return allowed
  near = jnp.abs(query_index - key_index) < window
  return near if allowed is None else allowed & near
