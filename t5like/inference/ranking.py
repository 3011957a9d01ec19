"""Log-likelihoods of given answers, for rank classification and scoring."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from t5like import decoding, parallel
from t5like.data.layouts import LAYOUTS, Examples
from t5like.inference.batching import BatchPlanner, BatchShape, RowBatch
from t5like.inference.generation import shard_batch
from t5like.inference.memory import MemoryCheckedFunction, NotEnoughMemory, answer_in_parts
from t5like.inference.rows import checked_batch_size
from t5like.objectives import Lengths, Ragged


@dataclasses.dataclass(frozen=True)
class Likelihood:
  """The likelihood of a candidate given its input."""

  log_likelihood: float  # summed over tokens
  tokens: int

  @property
  def per_token(self) -> float:
    return self.log_likelihood / max(self.tokens, 1)


class CandidateScorer:
  """Computes log-likelihoods of candidates, summed over the given tokens (append EOS if it should count)."""

  def __init__(self, model: nn.Module, mesh: Mesh, start_id: int = 0, batch_size: int = 64):
    self.model = model
    self._mesh = mesh
    self._start_id = start_id
    batch_shards = parallel.row_shards(mesh.shape)
    self._planner = BatchPlanner(-(-checked_batch_size(batch_size) // batch_shards) * batch_shards, batch_shards)
    self._score = MemoryCheckedFunction(self._traced, mesh, static_argnames=("targets",))

  def __call__(
    self,
    params: Any,
    inputs: Sequence[Sequence[int]],
    candidates: Sequence[Sequence[Sequence[int]]],
    starts: Sequence[int] | None = None,
  ) -> list[list[Likelihood]]:
    """Returns the likelihoods of each input's candidates; their number may differ between inputs.

    `starts`: the token before each input, if not the same for all; a decoder trained without a start token starts with
    the first token of its text. Raises NotEnoughMemory if even a single pair does not fit into device memory.
    """
    starts = [self._start_id] * len(inputs) if starts is None else starts
    rows = zip(inputs, candidates, starts, strict=True)
    pairs = [(text, answer, start) for text, answers, start in rows for answer in answers]
    scores, target_length = {}, decoding.bucket(max((len(answer) for _, answer, _ in pairs), default=1))
    for batch in self._planner.plan([len(text) for text, _, _ in pairs]):

      def score(rows: Sequence[int], batch: RowBatch = batch) -> list[Likelihood]:
        chosen = [pairs[row] for row in rows]
        shape = self._planner.shape_for(rows, batch, max(len(text) for text, _, _ in chosen))
        return self._batch(params, chosen, shape, target_length)

      found = answer_in_parts(batch.rows, score)
      if problem := next((one for one in found if isinstance(one, NotEnoughMemory)), None):
        raise problem
      scores |= dict(zip(batch.rows.tolist(), found, strict=True))
    ready = iter([scores[n] for n in range(len(pairs))])
    return [[next(ready) for _ in answers] for answers in candidates]

  def _batch(self, params: Any, pairs: Sequence[tuple], shape: BatchShape, target_length: int) -> list[Likelihood]:
    """Scores one batch; inputs are padded to the shape's length, answers to `target_length` tokens."""
    texts, answers, starts = ([pair[side] for pair in pairs] for side in (0, 1, 2))
    # Filler rows score a single token; their results are dropped.
    filler, lengths = shape.rows - len(pairs), Lengths(0, shape.length, target_length)
    inputs, targets = _ragged([*texts, *[[1]] * filler]), _ragged([*answers, *[[1]] * filler])
    start = np.array([*starts, *[self._start_id] * filler], np.int32)
    batch = LAYOUTS[self.model.batch_layout](Examples(inputs, targets, shape.rows), lengths, start)
    # Every row fits the model's positions, but the longest input plus the longest candidate may not.
    batch = {name: array[:, : self.model.config.max_positions] for name, array in batch.items()}
    if "encoder_input_tokens" in batch:
      batch["encoder_lengths"] = inputs.lengths.astype(np.int32)  # any id may be part of a text, also that of padding
    sums = np.asarray(self._score(params, shard_batch(batch, self._mesh), targets=target_length))
    return [Likelihood(float(s), len(answer)) for s, answer in zip(sums, answers, strict=False)]

  def _traced(self, params: Any, batch: dict[str, jax.Array], *, targets: int) -> jax.Array:
    """Returns sums [rows]; computes logits, the largest arrays, only at target positions."""
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
