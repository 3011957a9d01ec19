"""What a search gives back."""

from __future__ import annotations

import dataclasses

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Decoded:
  """Outputs of every row, the best first (samples in the order of their numbers)."""

  tokens: jax.Array  # [batch, n_best, max_length] int32: with end of sequence or stop sequence, padded after it
  lengths: jax.Array  # [batch, n_best] int32: tokens before the end of sequence or stop sequence
  scores: jax.Array  # [batch, n_best] float32: log-likelihood of the tokens
  ranking: jax.Array  # [batch, n_best] float32: what beam search orders by: the score over its length penalty

  @classmethod
  def of_rows(cls, copies: int, **arrays: jax.Array) -> Decoded:
    """From arrays [batch * copies, ...]."""
    return cls(**{name: x.reshape(-1, copies, *x.shape[1:]) for name, x in arrays.items()})
