"""The decoding cache: a plain dict that a `lax.while_loop` can carry.

index          [batch] int32: the position that the next token takes in its row
layers         keys and values of every layer: a tuple of dicts
               {"self": {"key", "value"}, "cross": {...}}, each [batch, length, heads, kv],
               or one such dict with a leading `layers` axis where layers are scanned
encoder_valid  [batch, encoder length] (encoder-decoder only): the real tokens of the input
"""

import jax

Cache = dict


def batch_axes(cache: Cache, scanned: bool) -> Cache:
  """The axis of the batch in each array, so that beam search can reorder rows."""
  axes = jax.tree.map(lambda _: 0, cache)
  return axes | {"layers": jax.tree.map(lambda _: int(scanned), cache["layers"])}
