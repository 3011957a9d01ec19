"""The decoding cache: a plain dict that a `lax.while_loop` can carry.

A decoder is given a prompt (T5: a start token, and what the caller adds) and writes on from it. Each prompt's last
token is what the first step is fed, so that all logits come from steps; the cache holds what stands before it.

number          []: tokens written so far, the same in all rows, so that a step writes one slice of every array
index           [rows] int32: the position that the next token takes in its row
layers          of every layer {"grown", "prompt", "cross"}: keys and values [rows or batch, 2, heads, length, kv]; a
                tuple of such dicts, or one with a leading `layers` axis where layers are scanned. `grown` is what
                the steps wrote. `prompt` and `cross` never change: beams and samples of a row share them, so these
                have `batch` rows where the others have `batch * copies`
prompt_valid    [batch, prompt length]: the prompt's tokens but its last; absent where that leaves none
encoder_valid   [batch, encoder length] (encoder-decoder only): the real tokens of the input
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

Cache = dict


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Step:
  """What a decoding step tells every layer."""

  number: jax.Array  # []
  index: jax.Array  # [rows]
  prompt_valid: jax.Array | None = None
  encoder_valid: jax.Array | None = None

  @classmethod
  def of(cls, cache: Cache) -> "Step":
    return cls(**{field.name: cache.get(field.name) for field in dataclasses.fields(cls)})


def last_tokens(prompts: jax.Array, lengths: jax.Array) -> jax.Array:
  """prompts [batch, length], lengths [batch] -> [batch]."""
  return jnp.take_along_axis(prompts, lengths[:, None] - 1, axis=1)[:, 0]


def start_cache(kept: tuple | dict, prompt_lengths: jax.Array, steps: int, copies: int, scanned: bool) -> Cache:
  """The cache after a pass over prompts, from the keys and values [batch, length, heads, kv] that its layers kept."""
  own = kept["self"] if scanned else kept[0]["self"]
  batch, length, heads, kv = own["key"].shape[-4:]
  dtype, before = own["key"].dtype, length - 1
  leading = own["key"].shape[:-4]

  def of_layer(layer: dict) -> dict:
    arrays = {"grown": _sharded(jnp.zeros((*leading, batch * copies, 2, heads, steps, kv), dtype))}
    if before:
      arrays["prompt"] = _together(layer["self"], before)
    if "cross" in layer:
      arrays["cross"] = _together(layer["cross"])
    return arrays

  lengths = prompt_lengths.astype(jnp.int32)
  cache = {
    "number": jnp.zeros((), jnp.int32),
    "index": jnp.repeat(lengths - 1, copies),
    "layers": of_layer(kept) if scanned else tuple(of_layer(layer) for layer in kept),
  }
  if before:
    cache["prompt_valid"] = jnp.arange(before)[None, :] < lengths[:, None] - 1
  return cache


def _together(keys_values: dict[str, jax.Array], length: int | None = None) -> jax.Array:
  """Key and value [..., batch, length, heads, kv] -> [..., batch, 2, heads, length, kv]."""
  both = jnp.stack([keys_values["key"], keys_values["value"]], axis=-4)
  return _sharded(jnp.swapaxes(both, -3, -2)[..., :length, :])


def _sharded(x: jax.Array) -> jax.Array:
  axes = ("batch", None, "heads", None, "kv")
  return nn.with_logical_constraint(x, axes if x.ndim == 5 else ("layers", *axes))


def take_copies(cache: Cache, copies: jax.Array, scanned: bool = False) -> Cache:
  """The cache with copy `copies[b, n]` of row b as its copy n: what beam search does.

  Fixed parts stay in place, and so does the index: all copies of a row stand at the same one.
  """
  batch, count = copies.shape

  def take(array: jax.Array, axis: int) -> jax.Array:
    split = array.reshape(*array.shape[:axis], batch, count, *array.shape[axis + 1 :])
    moved = jax.vmap(lambda x, order: jnp.take(x, order, axis=axis), (axis, 0), axis)(split, copies)
    return moved.reshape(array.shape)

  def of_layer(layer: dict) -> dict:
    return layer | {"grown": take(layer["grown"], int(scanned))}

  layers = cache["layers"]
  moved = of_layer(layers) if scanned else tuple(of_layer(layer) for layer in layers)
  return cache | {"layers": moved}
