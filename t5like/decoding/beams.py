"""Beam search with length penalties, by the rules of Hugging Face's `generate`; T5X's penalty and stopping by name.

Each row keeps live hypotheses, by log-likelihood, and finished ones, by log-likelihood over a penalty of the length.
At each step the likeliest continuations of the live ones are found; those that end are finished if they are among
the `beams` likeliest, and the likeliest that go on are the next live ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from t5like.decoding.outputs import Decoded

if TYPE_CHECKING:
  from t5like.decoding.search import Reorder, Search

NONE = -1e9  # the score of a hypothesis that is none


def length_penalty(length: jax.Array, alpha: float, form: str) -> jax.Array:
  """What log-likelihoods are divided by."""
  length = length.astype(jnp.float32)
  return (length if form == "power" else (5.0 + length) / 6.0) ** alpha


def beam_search(search: Search, cache: Any, first_tokens: jax.Array, reorder: Reorder) -> Decoded:
  settings, endings = search.settings, search.endings
  batch, beams = first_tokens.shape[0], settings.beams
  empty = endings.empty(batch, beams, pad_id=search.pad_id)
  none = jnp.full((batch, beams), NONE, jnp.float32)
  start = {
    "position": jnp.zeros((), jnp.int32),
    "cache": cache,
    "tokens": jnp.repeat(first_tokens.astype(jnp.int32)[:, None], beams, axis=1),
    # All copies start alike: only the first counts, or there would be one hypothesis many times.
    "live": {"written": empty, "scores": none.at[:, 0].set(0.0)},
    "finished": {
      "written": empty,
      "scores": none,
      "ranking": none,
      "lengths": jnp.zeros((batch, beams), jnp.int32),
      "is": jnp.zeros((batch, beams), bool),
    },
    "open": search.limits > 0,
  }

  def unfinished(carry):
    return (carry["position"] < settings.max_length) & jnp.any(carry["open"])

  def advance(carry):
    position = carry["position"]
    logits, cache = search.step(carry["tokens"].reshape(-1), carry["cache"])
    candidates, parents = _continuations(search, logits, carry["live"], position)
    finished = _with_newly_finished(search, carry, candidates)
    live, chosen = _going_on(candidates, beams)
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


def _continuations(search: Search, logits: jax.Array, live: dict, position: jax.Array) -> tuple[dict, jax.Array]:
  """The likeliest ways to go on from the live hypotheses of each row, and the hypothesis that each comes from.

  So many that, however many of them end, `beams` are left to go on.
  """
  endings = search.endings
  batch, beams, room = live["written"].shape
  likelihoods = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
  likelihoods = search.shape(likelihoods, live["written"].reshape(batch * beams, room), position)
  vocab = likelihoods.shape[1]
  total = (likelihoods.reshape(batch, beams, vocab) + live["scores"][:, :, None]).reshape(batch, beams * vocab)
  count = min((2 + len(endings.stop_sequences)) * beams, beams * vocab)
  scores, places = jax.lax.top_k(total, count)
  parents = places // vocab
  written = endings.write(_take(live["written"], parents), (places % vocab).astype(jnp.int32), position)
  ends, lengths = endings.check(written, position, search.limits[:, None])
  return {"written": written, "scores": scores, "ends": ends, "lengths": lengths}, parents


def _with_newly_finished(search: Search, carry: dict, candidates: dict) -> dict:
  """The best finished hypotheses of each row, those that end now among them."""
  settings = search.settings
  beams = settings.beams
  old = carry["finished"]
  among_best = jnp.arange(candidates["scores"].shape[1])[None, :] < beams
  now = candidates["ends"] & among_best & carry["open"][:, None] & (candidates["scores"] > NONE / 2)
  penalty = length_penalty(carry["position"] + 1, settings.length_penalty, settings.penalty_form)
  new = {
    "written": candidates["written"],
    "scores": candidates["scores"],
    "ranking": jnp.where(now, candidates["scores"] / penalty, NONE),
    "lengths": candidates["lengths"],
    "is": now,
  }
  merged = {name: jnp.concatenate([old[name], new[name]], axis=1) for name in old}
  _, places = jax.lax.top_k(merged["ranking"], beams)
  return {name: _take(array, places) for name, array in merged.items()}


def _going_on(candidates: dict, beams: int) -> tuple[dict, jax.Array]:
  """The likeliest `beams` candidates that do not end, and their places."""
  scores, places = jax.lax.top_k(jnp.where(candidates["ends"], NONE, candidates["scores"]), beams)
  return {"written": _take(candidates["written"], places), "scores": scores}, places


def _could_improve(search: Search, live: dict, finished: dict, length: jax.Array) -> jax.Array:
  """[batch]: whether a row's finished hypotheses may still change."""
  settings = search.settings
  full = jnp.all(finished["is"], axis=1)
  if settings.early_stopping == "first":
    return ~full
  reached = length
  if settings.early_stopping == "never" and settings.length_penalty > 0.0:
    reached = search.limits  # the longest are penalized least
  best = live["scores"][:, 0] / length_penalty(reached, settings.length_penalty, settings.penalty_form)
  return ~full | (best > jnp.min(finished["ranking"], axis=1))


def _take(array: jax.Array, places: jax.Array) -> jax.Array:
  """array [batch, n, ...], places [batch, m] -> [batch, m, ...], row by row."""
  return jax.vmap(lambda row, at: jnp.take(row, at, axis=0))(array, places)
