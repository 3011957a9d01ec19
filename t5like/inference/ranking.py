"""How likely given answers are: rank classification, and likelihoods of any text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from t5like import decoding
from t5like.data.layouts import LAYOUTS, Examples
from t5like.inference.batching import BatchPlanner, BatchShape, RowBatch
from t5like.inference.generation import placed
from t5like.inference.room import NoRoom, SizedFunction, answer_in_room
from t5like.objectives import Lengths, Ragged


@dataclasses.dataclass(frozen=True)
class Likelihood:
  """Of one candidate after its input."""

  log_likelihood: float  # the sum over its tokens
  tokens: int

  @property
  def per_token(self) -> float:
    return self.log_likelihood / max(self.tokens, 1)


class CandidateScorer:
  """Log-likelihoods of candidate answers, each the sum over its tokens: give the end of sequence where it counts."""

  def __init__(self, model: nn.Module, mesh: Mesh, start_id: int = 0, batch_size: int = 64):
    self.model = model
    self._mesh = mesh
    self._start_id = start_id
    ways = mesh.shape["data"] * mesh.shape["fsdp"]
    self._planner = BatchPlanner(-(-batch_size // ways) * ways, ways)
    self._score = SizedFunction(self._traced, mesh, static_argnames=("targets",))

  def __call__(
    self,
    params: Any,
    inputs: Sequence[Sequence[int]],
    candidates: Sequence[Sequence[Sequence[int]]],
    starts: Sequence[int] | None = None,
  ) -> list[list[Likelihood]]:
    """For each input the likelihoods of its candidates; inputs may have different numbers of them.

    `starts` are the tokens that come before each input, where that is not the same one for all: a decoder that was
    trained without a start token begins with the first token of its text. Raises NoRoom where the devices cannot take
    even one of them alone.
    """
    starts = [self._start_id] * len(inputs) if starts is None else starts
    rows = zip(inputs, candidates, starts, strict=True)
    pairs = [(text, answer, start) for text, answers, start in rows for answer in answers]
    scores, room = {}, decoding.bucket(max((len(answer) for _, answer, _ in pairs), default=1))
    for batch in self._planner.plan([len(text) for text, _, _ in pairs]):

      def score(rows: Sequence[int], batch: RowBatch = batch) -> list[Likelihood]:
        chosen = [pairs[row] for row in rows]
        shape = self._planner.shape_for(rows, batch, max(len(text) for text, _, _ in chosen))
        return self._batch(params, chosen, shape, room)

      found = answer_in_room(batch.rows, score)
      if problem := next((one for one in found if isinstance(one, NoRoom)), None):
        raise problem
      scores |= dict(zip(batch.rows.tolist(), found, strict=True))
    ready = iter([scores[n] for n in range(len(pairs))])
    return [[next(ready) for _ in answers] for answers in candidates]

  def _batch(self, params: Any, pairs: Sequence[tuple], shape: BatchShape, room: int) -> list[Likelihood]:
    """`room` tokens are for the answers, which follow inputs of up to the shape's length."""
    texts, answers, starts = ([pair[side] for pair in pairs] for side in (0, 1, 2))
    # A row more than are real scores one token of nothing; its result is dropped.
    filler, lengths = shape.rows - len(pairs), Lengths(0, shape.length, room)
    inputs, targets = _ragged([*texts, *[[1]] * filler]), _ragged([*answers, *[[1]] * filler])
    start = np.array([*starts, *[self._start_id] * filler], np.int32)
    batch = LAYOUTS[self.model.batch_layout](Examples(inputs, targets, shape.rows), lengths, start)
    # Each row fits the model's positions; the longest input and the longest candidate together need not.
    batch = {name: array[:, : self.model.config.max_positions] for name, array in batch.items()}
    sums = np.asarray(self._score(params, placed(batch, self._mesh), targets=room))
    return [Likelihood(float(s), len(answer)) for s, answer in zip(sums, answers, strict=False)]

  def _traced(self, params: Any, batch: dict[str, jax.Array], *, targets: int) -> jax.Array:
    """Sums [rows]. Only where targets stand are hidden states made into logits, the largest arrays there are."""
    variables = {"params": params}
    hidden = self.model.apply(variables, batch, method="hidden_states")
    weights = batch["decoder_loss_weights"]
    first = jnp.argmax(weights > 0, axis=1)
    places = jnp.minimum(first[:, None] + jnp.arange(targets)[None, :], weights.shape[1] - 1)  # [rows, targets]
    logits = self.model.apply(variables, jnp.take_along_axis(hidden, places[:, :, None], axis=1), method="project")
    wanted, counts = (jnp.take_along_axis(x, places, axis=1) for x in (batch["decoder_target_tokens"], weights))
    inside = first[:, None] + jnp.arange(targets)[None, :] < weights.shape[1]
    return jnp.sum(decoding.log_likelihoods(logits, wanted) * jnp.where(inside, counts, 0.0), axis=1)


def _ragged(rows: Sequence[Sequence[int]]) -> Ragged:
  lengths = np.array([len(row) for row in rows], np.int64)
  tokens = np.zeros((len(rows), int(lengths.max(initial=0))), np.int32)
  for i, row in enumerate(rows):
    tokens[i, : len(row)] = row
  return Ragged(tokens, lengths)
