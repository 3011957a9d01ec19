"""One compiled loop over a step function: greedy search, sampling, and the way into beam search."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from t5like.decoding.beams import beam_search
from t5like.decoding.ending import NOTHING, Endings
from t5like.decoding.outputs import Decoded
from t5like.decoding.settings import DecodeSettings
from t5like.decoding.shaping import forbid, keep_likeliest, penalize_repetition

# (tokens [rows], cache) -> (logits [rows, vocab] of what follows, cache)
Step = Callable[[jax.Array, Any], tuple[jax.Array, Any]]
# (cache, copies [batch, n]) -> the cache whose copy n of row b is the former's copy copies[b, n]
Reorder = Callable[[Any, jax.Array], Any]


@dataclasses.dataclass(frozen=True)
class Search:
  """What is the same at each step."""

  step: Step
  settings: DecodeSettings
  endings: Endings
  limits: jax.Array  # [batch]: tokens that each row may write, at most settings.max_length
  pad_id: int
  read: jax.Array  # [batch, n]: tokens that a repetition penalty counts beside the written ones; NOTHING on padding

  def shape(self, logits: jax.Array, written: jax.Array, position: jax.Array) -> jax.Array:
    """The logits (or log-probabilities) that a choice is made by; rows are copies of the batch's."""
    settings, endings = self.settings, self.endings
    if settings.repetition_penalty != 1.0:
      own = endings.output(written)
      own = jnp.where(jnp.arange(own.shape[1])[None, :] < position, own, NOTHING)
      read = jnp.repeat(self.read, len(own) // len(self.read), axis=0)
      logits = penalize_repetition(logits, jnp.concatenate([read, own], axis=1), settings.repetition_penalty)
    if settings.min_length > 0 and endings.eos_id is not None:
      logits = forbid(logits, endings.eos_id, position < settings.min_length)
    return logits


def decode(
  step: Step,
  cache: Any,
  first_tokens: jax.Array,  # [batch]
  settings: DecodeSettings,
  *,
  eos_id: int | None,
  pad_id: int = 0,
  limits: jax.Array | None = None,  # [batch] int32
  row_ids: jax.Array | None = None,  # [batch] int32
  seed: jax.Array | int | None = None,
  read: jax.Array | None = None,  # [batch, n] int32
  reorder: Reorder | None = None,
) -> Decoded:
  """Writes on from `first_tokens`, which the first step is fed, until every row has ended.

  The cache has `settings.copies` rows for each row of the batch, one after the other. Row ids tell draws apart (0, 1,
  2, ... where not given); `seed` counts before that of the settings and may be traced, as may `limits`, so that
  other values do not compile anew. `read` are the prompts' tokens, below 0 on padding, for a repetition penalty.
  Beam search needs `reorder`.
  """
  batch = first_tokens.shape[0]
  search = Search(
    step, settings, Endings.of(settings, eos_id),
    jnp.full((batch,), settings.max_length, jnp.int32) if limits is None else limits,
    pad_id,
    jnp.full((batch, 0), NOTHING, jnp.int32) if read is None else read,
  )  # fmt: skip
  if settings.method == "beam":
    return beam_search(search, cache, first_tokens, reorder)
  choose = _likeliest
  if settings.method == "sample":
    ids = jnp.arange(batch, dtype=jnp.int32) if row_ids is None else row_ids
    choose = _draws(settings, settings.seed if seed is None else seed, ids)
  return _write_on(search, cache, first_tokens, choose)


def _likeliest(logits: jax.Array, position: jax.Array) -> jax.Array:
  return jnp.argmax(logits, axis=-1).astype(jnp.int32)


def _draws(settings: DecodeSettings, seed: jax.Array | int, row_ids: jax.Array):
  """Draws whose randomness is a function of seed, row id, number of the sample, and position."""
  in_row = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), row_ids)
  copies = jnp.arange(settings.copies, dtype=jnp.int32)
  keys = jax.vmap(lambda key: jax.vmap(jax.random.fold_in, (None, 0))(key, copies))(in_row).reshape(-1)

  def draw(logits: jax.Array, position: jax.Array) -> jax.Array:
    kept = keep_likeliest(logits / settings.temperature, settings.top_k, settings.top_p, settings.min_p)
    here = jax.vmap(jax.random.fold_in, (0, None))(keys, position)
    return jax.vmap(jax.random.categorical)(here, kept).astype(jnp.int32)

  return draw


def _write_on(search: Search, cache: Any, first_tokens: jax.Array, choose: Callable) -> Decoded:
  """Greedy search and sampling: every row goes its own way."""
  settings, endings = search.settings, search.endings
  copies = settings.copies
  rows = first_tokens.shape[0] * copies
  limits = jnp.repeat(search.limits, copies)

  def unfinished(carry):
    return (carry["position"] < settings.max_length) & ~jnp.all(carry["ended"])

  def advance(carry):
    position, ended = carry["position"], carry["ended"]
    logits, cache = search.step(carry["tokens"], carry["cache"])
    logits = logits.astype(jnp.float32)
    tokens = choose(search.shape(logits, carry["written"], position), position)
    tokens = jnp.where(ended, search.pad_id, tokens)
    # The logarithm of the token's probability as the model gives it, before any shaping.
    chosen = jnp.take_along_axis(logits, tokens[:, None], axis=1)[:, 0] - jax.nn.logsumexp(logits, axis=1)
    written = endings.write(carry["written"], tokens, position)
    ends, length = endings.check(written, position, limits)
    return {
      "position": position + 1,
      "tokens": tokens,
      "cache": cache,
      "written": written,
      "ended": ended | ends,
      "lengths": jnp.where(ended, carry["lengths"], length),
      "scores": carry["scores"] + jnp.where(ended, 0.0, chosen),
    }

  start = {
    "position": jnp.zeros((), jnp.int32),
    "tokens": jnp.repeat(first_tokens.astype(jnp.int32), copies),
    "cache": cache,
    "written": endings.empty(rows, pad_id=search.pad_id),
    "ended": limits < 1,
    "lengths": jnp.zeros((rows,), jnp.int32),
    "scores": jnp.zeros((rows,), jnp.float32),
  }
  end = jax.lax.while_loop(unfinished, advance, start)
  tokens, lengths, scores = endings.output(end["written"]), end["lengths"], end["scores"]
  return Decoded.of_rows(copies, tokens=tokens, lengths=lengths, scores=scores, ranking=scores)
