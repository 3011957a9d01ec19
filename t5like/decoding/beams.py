"""Beam search with length penalties, following Hugging Face's `generate`; T5X's penalty and stopping are options.

Each row keeps live hypotheses, ranked by log-likelihood, and finished ones, ranked by log-likelihood divided by a
length penalty. Each step finds the likeliest continuations of the live hypotheses. Those that end are finished if they
are among the `beams` likeliest; the likeliest others become the next live hypotheses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from t5like.decoding.outputs import Decoded
from t5like.decoding.shaping import largest

if TYPE_CHECKING:
  from t5like.decoding.search import Reorder, SearchContext

NO_SCORE = -1e9  # the score of an empty slot


def length_penalty(length: jax.Array, alpha: float, form: str) -> jax.Array:
  """Returns the number by which log-likelihoods are divided."""
  length = length.astype(jnp.float32)
  return (length if form == "power" else (5.0 + length) / 6.0) ** alpha


def beam_search(search: SearchContext, cache: Any, first_tokens: jax.Array, reorder: Reorder) -> Decoded:
  """Runs beam search; arguments as in `decode`."""
  settings, endings = search.settings, search.endings
  batch, beams = first_tokens.shape[0], settings.beams
  empty = endings.empty(batch, beams, pad_id=search.pad_id)
  none = jnp.full((batch, beams), NO_SCORE, jnp.float32)
  start = {
    "position": jnp.zeros((), jnp.int32),
    "cache": cache,
    "tokens": jnp.repeat(first_tokens.astype(jnp.int32)[:, None], beams, axis=1),
    # All hypotheses start out identical: only the first has a score, or the same one would be found several times.
    "live": {"written": empty, "scores": none.at[:, 0].set(0.0)},
    "finished": {
      "written": empty,
      "scores": none,
      "ranking": none,
      "lengths": jnp.zeros((batch, beams), jnp.int32),
      "valid": jnp.zeros((batch, beams), bool),
    },
    "open": search.limits > 0,
  }

  def unfinished(carry):
    return (carry["position"] < settings.max_length) & jnp.any(carry["open"])

  def advance(carry):
    position = carry["position"]
    logits, cache = search.step(carry["tokens"].reshape(-1), carry["cache"])
    candidates, parents = _continuations(search, logits, carry["live"], position)
    finished = _merge_finished(search, carry, candidates)
    live, chosen = _select_live(candidates, beams)
    order = jnp.take_along_axis(parents, chosen, axis=1)
    newest = jax.lax.dynamic_index_in_dim(live["written"], endings.margin + position, axis=2, keepdims=False)
    return {
      "position": position + 1,
      "cache": reorder(cache, order),
      "tokens": newest,
      "live": live,
      "finished": finished,
      "open": carry["open"] & _could_improve(search, live, finished, position + 1) & (position + 1 < search.limits),
    }

  best = jax.lax.while_loop(unfinished, advance, start)["finished"]
  return Decoded(
    tokens=endings.output(best["written"])[:, : settings.n_best],
    **{name: best[name][:, : settings.n_best] for name in ("lengths", "scores", "ranking")},
  )


def _continuations(search: SearchContext, logits: jax.Array, live: dict, position: jax.Array) -> tuple[dict, jax.Array]:
  """Returns the likeliest continuations of each row's live hypotheses, and the index of each one's parent.

  There are enough of them to leave `beams` unfinished, however many end.
  """
  settings, endings = search.settings, search.endings
  batch, beams, size = live["written"].shape
  logits = logits.astype(jnp.float32)
  normalizer = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
  if settings.repetition_penalty != 1.0 or settings.forced_first is not None or settings.forced_end:
    # These rules read or set log-probabilities; the others only forbid tokens, and the few best are normalized later.
    logits, normalizer = logits - normalizer, 0.0
  logits = search.process_logits(logits, live["written"].reshape(batch * beams, size), position)
  vocab = logits.shape[1]
  count = min((1 + max(len(endings.eos_ids), 1) + len(endings.stop_sequences)) * beams, beams * vocab)
  each = min(count, vocab)
  best, tokens = largest(logits, each)  # of each hypothesis, then of the row
  best = best - normalizer
  total = (best.reshape(batch, beams, each) + live["scores"][:, :, None]).reshape(batch, beams * each)
  scores, indices = jax.lax.top_k(total, count)
  tokens = jnp.take_along_axis(tokens.reshape(batch, beams * each), indices, axis=1)
  parents = indices // each
  written = endings.write(_take(live["written"], parents), tokens.astype(jnp.int32), position)
  ends, lengths = endings.check(written, position, search.limits[:, None])
  return {"written": written, "scores": scores, "ends": ends, "lengths": lengths}, parents


def _merge_finished(search: SearchContext, carry: dict, candidates: dict) -> dict:
  """Returns the best finished hypotheses of each row, including those that end in this step."""
  settings = search.settings
  beams = settings.beams
  old = carry["finished"]
  among_best = jnp.arange(candidates["scores"].shape[1])[None, :] < beams
  now = candidates["ends"] & among_best & carry["open"][:, None] & (candidates["scores"] > NO_SCORE / 2)
  penalty = length_penalty(carry["position"] + 1, settings.length_penalty, settings.penalty_form)
  new = {
    "written": candidates["written"],
    "scores": candidates["scores"],
    "ranking": jnp.where(now, candidates["scores"] / penalty, NO_SCORE),
    "lengths": candidates["lengths"],
    "valid": now,
  }
  merged = {name: jnp.concatenate([old[name], new[name]], axis=1) for name in old}
  _, indices = jax.lax.top_k(merged["ranking"], beams)
  return {name: _take(array, indices) for name, array in merged.items()}


def _select_live(candidates: dict, beams: int) -> tuple[dict, jax.Array]:
  """Returns the likeliest `beams` candidates that do not end, and their indices."""
  scores, indices = jax.lax.top_k(jnp.where(candidates["ends"], NO_SCORE, candidates["scores"]), beams)
  return {"written": _take(candidates["written"], indices), "scores": scores}, indices


def _could_improve(search: SearchContext, live: dict, finished: dict, length: jax.Array) -> jax.Array:
  """Returns whether each row's finished hypotheses may still change, [batch]."""
  settings = search.settings
  full = jnp.all(finished["valid"], axis=1)
  if settings.early_stopping == "first":
    return ~full
  final_length = length
  if settings.early_stopping == "never" and settings.length_penalty > 0.0:
    final_length = search.limits  # the penalty favors the longest
  best = live["scores"][:, 0] / length_penalty(final_length, settings.length_penalty, settings.penalty_form)
  return ~full | (best > jnp.min(finished["ranking"], axis=1))


def _take(array: jax.Array, indices: jax.Array) -> jax.Array:
  """Selects by row: array [batch, n, ...], indices [batch, m] -> [batch, m, ...]."""
  return jax.vmap(lambda row, at: jnp.take(row, at, axis=0))(array, indices)
