"""The result of a search."""

from __future__ import annotations

import dataclasses

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Decoded:
  """Outputs of every row, best first; samples in the order of their indices."""

  tokens: jax.Array  # [batch, n_best, max_length] int32: up to the end of sequence or stop sequence, then padding
  lengths: jax.Array  # [batch, n_best] int32: tokens before the end of sequence or stop sequence
  scores: jax.Array  # [batch, n_best] float32: log-likelihood of the tokens
  ranking: jax.Array  # [batch, n_best] float32: the ranking of beam search, score / length penalty

  @classmethod
  def from_rows(cls, n_best: int, **arrays: jax.Array) -> Decoded:
    """Builds the result from arrays [batch * n_best, ...]."""
    return cls(**{name: x.reshape(-1, n_best, *x.shape[1:]) for name, x in arrays.items()})
