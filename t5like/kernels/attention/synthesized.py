"""Scores that are not products of queries and keys, or not only: Synthesizer (Tay et al. 2020).

s            in place of q k
q k + s      added to it
(1 - a) q k + a s
"""

import dataclasses

import jax

from t5like.kernels.attention.masks import static


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Synthesized:
  """Scores by position, and how products of queries and keys enter."""

  scores: jax.Array  # [batch or 1, heads, query, key]; of a decoding step [rows, heads, positions]; float32
  share: jax.Array | None = None  # []: a; None: the sum
  replaces: bool = static(False)  # there are no products

  def mixed(self, products: jax.Array | None, scores: jax.Array) -> jax.Array:
    """Returns the scores of attention; `products` are not read if there are none."""
    if self.replaces:
      return scores
    return products + scores if self.share is None else (1.0 - self.share) * products + self.share * scores
