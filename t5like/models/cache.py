"""The KV cache: a plain dict that a `lax.while_loop` can carry.

A decoder continues a prompt (T5: a start token, plus tokens that the caller adds). The first step is fed the last token
of each prompt, so that all logits come from steps; the cache holds the tokens before it.

generated_length  []: tokens generated so far, the same in all rows, so that a step writes one slice of every array
index             [rows] int32: the position of the next token in its row
layers            {"generated", "prompt", "cross"} for every layer: keys and values
                  [rows or batch, 2, heads, length, kv]; a tuple of such dicts, or one with a leading `layers` axis if
                  layers are scanned. `generated` is written by the steps. `prompt` and `cross` never change and are
                  shared by all hypotheses (beams or samples) of a row: they have `batch` rows, the others
                  `batch * hypotheses`
prompt_valid      [batch, prompt length]: True on the prompt's tokens except the last; absent if no prompt has more
encoder_valid     [batch, encoder length] (encoder-decoder only): True on the input's tokens
origins           [batch, hypotheses, length] int32: which hypothesis of the row wrote the token that a hypothesis has
                  at a position; absent if each has its own: with one hypothesis per row, or samples
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

Cache = dict


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DecodingStep:
  """The state of a decoding step that every layer reads."""

  generated_length: jax.Array  # []
  index: jax.Array  # [rows]
  prompt_valid: jax.Array | None = None
  encoder_valid: jax.Array | None = None
  origins: jax.Array | None = None

  @classmethod
  def from_cache(cls, cache: Cache) -> "DecodingStep":
    return cls(**{field.name: cache.get(field.name) for field in dataclasses.fields(cls)})


def last_tokens(prompts: jax.Array, lengths: jax.Array) -> jax.Array:
  """Returns the last token of each prompt, [batch], given prompts [batch, length] and lengths [batch]."""
  return jnp.take_along_axis(prompts, lengths[:, None] - 1, axis=1)[:, 0]


def start_cache(
  keys_values: tuple | dict, prompt_lengths: jax.Array, steps: int, hypotheses: int, scanned: bool
) -> Cache:
  """Builds the cache from the keys and values [batch, length, heads, kv] of a pass over the prompts.

  Reserves space for `steps` tokens of `hypotheses` outputs per row.
  """
  key = (keys_values["self"] if scanned else keys_values[0]["self"])["key"]
  batch, length, heads, kv = key.shape[-4:]
  before = length - 1
  leading = key.shape[:-4]

  def layer_cache(layer: dict) -> dict:
    zeros = jnp.zeros((*leading, batch * hypotheses, 2, heads, steps, kv), key.dtype)
    arrays = {"generated": _constrain(zeros)}
    if before:
      arrays["prompt"] = _stack_keys_values(layer["self"], before)
    if "cross" in layer:
      arrays["cross"] = _stack_keys_values(layer["cross"])
    return arrays

  lengths = prompt_lengths.astype(jnp.int32)
  cache = {
    "generated_length": jnp.zeros((), jnp.int32),
    "index": jnp.repeat(lengths - 1, hypotheses),
    "layers": layer_cache(keys_values) if scanned else tuple(layer_cache(layer) for layer in keys_values),
  }
  if hypotheses > 1:
    own = jnp.arange(hypotheses, dtype=jnp.int32)[None, :, None]
    cache["origins"] = jnp.broadcast_to(own, (batch, hypotheses, steps))
  if before:
    cache["prompt_valid"] = jnp.arange(before)[None, :] < lengths[:, None] - 1
  return cache


def _stack_keys_values(keys_values: dict[str, jax.Array], length: int | None = None) -> jax.Array:
  """Stacks key and value, [..., batch, length, heads, kv] -> [..., batch, 2, heads, length, kv]."""
  both = jnp.stack([keys_values["key"], keys_values["value"]], axis=-4)
  return _constrain(jnp.swapaxes(both, -3, -2)[..., :length, :])


def _constrain(x: jax.Array) -> jax.Array:
  axes = ("batch", None, "heads", None, "kv")
  return nn.with_logical_constraint(x, axes if x.ndim == 5 else ("layers", *axes))


def select_hypotheses(cache: Cache, selected: jax.Array) -> Cache:
  """Replaces hypothesis n of row b by hypothesis `selected[b, n]`, as beam search does after each step.

  Keys and values stay where they are; the index stays too, because all hypotheses of a row are at the same position.
  The states of a recurrent model are moved.
  """
  if "states" in cache:
    rows = selected + (jnp.arange(selected.shape[0]) * selected.shape[1])[:, None]
    return {"states": jax.tree.map(lambda x: x[rows.reshape(-1)], cache["states"])}
  if "origins" not in cache:
    return cache
  origins = cache["origins"]
  newest = jnp.arange(origins.shape[2]) >= cache["generated_length"] - 1
  origins = jnp.where(newest[None, None, :], jnp.arange(origins.shape[1], dtype=origins.dtype)[None, :, None], origins)
  return cache | {"origins": jnp.take_along_axis(origins, selected[:, :, None], axis=1)}
