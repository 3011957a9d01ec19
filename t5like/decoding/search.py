"""Decoding as one compiled loop over a step function: greedy search and sampling; beam search is in beams.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from t5like.decoding.beams import beam_search
from t5like.decoding.ending import NO_TOKEN, Endings
from t5like.decoding.outputs import Decoded
from t5like.decoding.settings import DecodeSettings
from t5like.decoding.shaping import (
  filter_logits,
  forbid,
  forbid_repeated_ngrams,
  forbid_sequences,
  force,
  penalize_repetition,
)

# (tokens [rows], cache) -> (logits [rows, vocab] of the next tokens, updated cache)
Step = Callable[[jax.Array, Any], tuple[jax.Array, Any]]
# (cache, selected [batch, n]) -> the cache with hypothesis selected[b, n] of row b as its hypothesis n
Reorder = Callable[[Any, jax.Array], Any]


@dataclasses.dataclass(frozen=True)
class SearchContext:
  """The parameters of a search, constant over its steps."""

  step: Step
  settings: DecodeSettings
  endings: Endings
  limits: jax.Array  # [batch]: maximum number of tokens per row, at most settings.max_length
  pad_id: int
  prompt_tokens: jax.Array  # [batch, n]: also count as repeated; NO_TOKEN on padding, which precedes them

  def process_logits(self, logits: jax.Array, written: jax.Array, position: jax.Array) -> jax.Array:
    """Applies the rules on repetitions, lengths and single tokens to logits or log-probabilities [rows, vocab]."""
    settings, endings = self.settings, self.endings
    if settings.repetition_penalty != 1.0 or settings.no_repeat_ngram or settings.forbidden:
      generated = endings.output(written)
      generated = jnp.where(jnp.arange(generated.shape[1])[None, :] < position, generated, NO_TOKEN)
      prompts = jnp.repeat(self.prompt_tokens, len(generated) // len(self.prompt_tokens), axis=0)
      seen = jnp.concatenate([prompts, generated], axis=1)
      if settings.repetition_penalty != 1.0:
        logits = penalize_repetition(logits, seen, settings.repetition_penalty)
      if 0 < settings.no_repeat_ngram <= seen.shape[1]:
        logits = forbid_repeated_ngrams(logits, seen, prompts.shape[1] + position, settings.no_repeat_ngram)
      if settings.forbidden:
        logits = forbid_sequences(logits, seen, prompts.shape[1] + position, settings.forbidden)
    for end in endings.eos_ids if settings.min_length > 0 else ():
      logits = forbid(logits, end, position < settings.min_length)
    if settings.forced_first is not None:
      logits = force(logits, settings.forced_first, position == 0)
    if settings.forced_end and endings.eos_ids:
      is_last = position == jnp.repeat(self.limits, len(logits) // len(self.limits)) - 1
      logits = force(logits, endings.eos_ids[0], is_last)
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
  prompt_tokens: jax.Array | None = None,  # [batch, n] int32
  reorder: Reorder | None = None,
) -> Decoded:
  """Generates tokens, starting by feeding `first_tokens`, until every row has ended.

  The cache has `settings.hypotheses_per_row` consecutive rows for each row of the batch.

  eos_id: the end of sequence; others are settings.more_ends.
  limits: the maximum number of tokens of each row; default: settings.max_length. May be traced, to avoid recompilation.
  row_ids: seed the randomness of each row; default: 0, 1, 2, ...
  seed: overrides settings.seed, and may be traced.
  prompt_tokens: prompts whose repetition is penalized or forbidden, negative on padding.
  reorder: required by beam search.
  """
  batch = first_tokens.shape[0]
  search = SearchContext(
    step, settings, Endings.from_settings(settings, eos_id),
    jnp.full((batch,), settings.max_length, jnp.int32) if limits is None else limits,
    pad_id,
    jnp.full((batch, 0), NO_TOKEN, jnp.int32) if prompt_tokens is None else _pad_left(prompt_tokens),
  )  # fmt: skip
  if settings.method == "beam":
    return beam_search(search, cache, first_tokens, reorder)
  choose = _argmax
  if settings.method == "sample":
    ids = jnp.arange(batch, dtype=jnp.int32) if row_ids is None else row_ids
    choose = _sampler(settings, settings.seed if seed is None else seed, ids)
  return _decode_rows(search, cache, first_tokens, choose)


def _pad_left(prompts: jax.Array) -> jax.Array:
  """Moves the padding (negative ids) of each row before its tokens, so that an output follows its prompt."""
  order = jnp.argsort(prompts >= 0, axis=1, stable=True)
  return jnp.where(prompts < 0, NO_TOKEN, prompts)[jnp.arange(len(prompts))[:, None], order]


def _argmax(logits: jax.Array, position: jax.Array) -> jax.Array:
  return jnp.argmax(logits, axis=-1).astype(jnp.int32)


def _sampler(settings: DecodeSettings, seed: jax.Array | int, row_ids: jax.Array):
  """Returns a sampling function whose randomness depends only on seed, row id, sample index and position."""
  row_keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), row_ids)
  samples = jnp.arange(settings.hypotheses_per_row, dtype=jnp.int32)
  keys = jax.vmap(lambda key: jax.vmap(jax.random.fold_in, (None, 0))(key, samples))(row_keys).reshape(-1)

  def sample(logits: jax.Array, position: jax.Array) -> jax.Array:
    filtered = filter_logits(logits / settings.temperature, settings.top_k, settings.top_p, settings.min_p)
    step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, position)
    return jax.vmap(jax.random.categorical)(step_keys, filtered).astype(jnp.int32)

  return sample


def _decode_rows(search: SearchContext, cache: Any, first_tokens: jax.Array, choose: Callable) -> Decoded:
  """Runs greedy search or sampling, in which hypotheses are independent."""
  settings, endings = search.settings, search.endings
  hypotheses = settings.hypotheses_per_row
  rows = first_tokens.shape[0] * hypotheses
  limits = jnp.repeat(search.limits, hypotheses)

  def unfinished(carry):
    return (carry["position"] < settings.max_length) & ~jnp.all(carry["ended"])

  def advance(carry):
    position, ended = carry["position"], carry["ended"]
    logits, cache = search.step(carry["tokens"], carry["cache"])
    logits = logits.astype(jnp.float32)
    tokens = choose(search.process_logits(logits, carry["written"], position), position)
    tokens = jnp.where(ended, search.pad_id, tokens)
    # The log-probability under the model, before penalties and filters.
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
    "tokens": jnp.repeat(first_tokens.astype(jnp.int32), hypotheses),
    "cache": cache,
    "written": endings.empty(rows, pad_id=search.pad_id),
    "ended": limits < 1,
    "lengths": jnp.zeros((rows,), jnp.int32),
    "scores": jnp.zeros((rows,), jnp.float32),
  }
  end = jax.lax.while_loop(unfinished, advance, start)
  tokens, lengths, scores = endings.output(end["written"]), end["lengths"], end["scores"]
  return Decoded.from_rows(hypotheses, tokens=tokens, lengths=lengths, scores=scores, ranking=scores)
