"""Transformer-XL's and XLNet's relative attention (Dai et al. 2019, section 3.3; Yang et al. 2019, section 2.5).

    (q_i + u) . k_j  +  (q_i + v) . R[i - j]  +  (q_i + s) . S[same segment or not]

R is a projection of sinusoids of distances. As in disentangled attention, queries are multiplied with all distances and
a shift moves each result to its key: no index is computed.
"""

import dataclasses

import jax
import jax.numpy as jnp

from t5like.kernels.attention.disentangled import shift
from t5like.kernels.products import product


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RelativeTerms:
  """The terms of positions and segments; queries have their biases.

  Queries are at the last positions of the keys. Distances are those from the last query back to the first key, then on
  to `keys + queries` of them: number t is at distance keys - 1 - t.
  """

  position_query: jax.Array  # [batch, query, heads, kv]
  position_key: jax.Array  # [query + key, heads, kv]
  segment_query: jax.Array | None = None  # [batch, query, heads, kv]
  segment_key: jax.Array | None = None  # [2, heads, kv]: of the same segment, of another one
  types: jax.Array | None = None  # [batch, key]: the segments


def relative_scores(terms: RelativeTerms) -> jax.Array:
  """Returns both terms, [batch, heads, query, key] float32."""
  scores = shift(product("bqhd,thd->bhqt", terms.position_query, terms.position_key, jnp.float32))
  if terms.types is None:
    return scores
  segments = product("bqhd,shd->bhqs", terms.segment_query, terms.segment_key, jnp.float32)
  queries = terms.types[:, -terms.segment_query.shape[1] :]
  same = (queries[:, :, None] == terms.types[:, None, :])[:, None]  # [batch, 1, query, key]
  return scores + jnp.where(same, segments[..., :1], segments[..., 1:])
