"""End-of-sequence and stop sequence detection."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from t5like.decoding.settings import DecodeSettings

NO_TOKEN = -1  # fills positions before the first token; not a valid token id


@dataclasses.dataclass(frozen=True)
class Endings:
  """The conditions that end an output.

  Written tokens are arrays [..., margin + max_length]; the margin lets stop sequences look back from the first token.
  """

  eos_ids: tuple[int, ...]  # the first one is forced by forced_end
  stop_sequences: tuple[tuple[int, ...], ...]
  min_length: int
  max_length: int

  @classmethod
  def from_settings(cls, settings: DecodeSettings, eos_id: int | None) -> Endings:
    own = () if eos_id is None else (eos_id,)
    return cls(
      tuple(dict.fromkeys((*own, *settings.more_ends))),
      settings.stop_sequences,
      settings.min_length,
      settings.max_length,
    )

  @property
  def margin(self) -> int:
    return max(map(len, self.stop_sequences), default=0)

  def empty(self, *rows: int, pad_id: int) -> jax.Array:
    margin = jnp.full((*rows, self.margin), NO_TOKEN, jnp.int32)
    return jnp.concatenate([margin, jnp.full((*rows, self.max_length), pad_id, jnp.int32)], axis=-1)

  def write(self, written: jax.Array, tokens: jax.Array, position: jax.Array) -> jax.Array:
    """Writes tokens [...] to a position of `written` [..., margin + max_length]."""
    return jax.lax.dynamic_update_slice_in_dim(written, tokens[..., None], self.margin + position, axis=-1)

  def output(self, written: jax.Array) -> jax.Array:
    return written[..., self.margin :]

  def check(self, written: jax.Array, position: jax.Array, limit: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns whether rows end with the token at `position`, and the length of their output in that case.

    The output excludes the end of sequence or stop sequence. `limit` broadcasts against the rows.
    """
    count = position + 1
    length = jnp.full(written.shape[:-1], count, jnp.int32)
    stopped = jnp.zeros(length.shape, bool)
    for sequence in self.stop_sequences:
      begin = self.margin + count - len(sequence)
      tail = jax.lax.dynamic_slice_in_dim(written, begin, len(sequence), axis=-1)
      matches = jnp.all(tail == jnp.asarray(sequence).reshape((1,) * (tail.ndim - 1) + (-1,)), axis=-1)
      length = jnp.where(matches, jnp.minimum(length, count - len(sequence)), length)
      stopped = stopped | matches
    stopped = stopped & (count >= self.min_length)
    length = jnp.where(stopped, length, count)
    if self.eos_ids:
      newest = jax.lax.dynamic_index_in_dim(written, self.margin + position, axis=-1, keepdims=False)
      ended = functools.reduce(jnp.logical_or, [newest == token for token in self.eos_ids])
      length = jnp.where(ended, position, length)
      stopped = stopped | ended
    return stopped | (count >= limit), length
