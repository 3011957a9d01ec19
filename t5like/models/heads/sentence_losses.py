"""Losses of sentence embeddings, as sums over the rows of a batch.

Embeddings are [rows, texts, width]: text 0 is the anchor, text 1 its positive or partner, further ones are hard
negatives. `weights` [rows] are 0 for filler rows. Formulas are those of the papers and of sentence-transformers.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t5like.models.padding import encoder_valid

_EPSILON = 1e-6  # of torch's pairwise_distance, which keeps the gradient of a distance of 0 finite
Sums = dict[str, jax.Array]


def unit(vectors: jax.Array) -> jax.Array:
  """Scales vectors to length 1, in float32; a vector of zeros stays one."""
  vectors = vectors.astype(jnp.float32)
  return vectors * jax.lax.rsqrt(jnp.maximum(jnp.sum(vectors * vectors, axis=-1, keepdims=True), 1e-24))


def pair_cosines(embeddings: jax.Array) -> jax.Array:
  """Returns the cosine of each row's first two texts, [rows]."""
  vectors = unit(embeddings[:, :2])
  return jnp.sum(vectors[:, 0] * vectors[:, 1], axis=-1)


def cosine_sums(embeddings: jax.Array, labels: jax.Array, weights: jax.Array) -> Sums:
  """Squared error of the cosine; labels are from 0 to 1 (Reimers and Gurevych 2019, section 3)."""
  errors = pair_cosines(embeddings) - labels
  return {"loss": jnp.sum(errors * errors * weights), "target_tokens": jnp.sum(weights)}


def triplet_sums(embeddings: jax.Array, weights: jax.Array, margin: float) -> Sums:
  """max(0, |a - p| - |a - n| + margin), with Euclidean distances (ibid.); several negatives: their mean."""
  vectors = embeddings.astype(jnp.float32)
  difference = vectors[:, :1] - vectors[:, 1:] + _EPSILON
  distances = jnp.sqrt(jnp.sum(difference * difference, axis=-1))  # [rows, texts - 1]
  positive, negatives = distances[:, :1], distances[:, 1:]
  losses = jnp.mean(jnp.maximum(positive - negatives + margin, 0.0), axis=1)
  right = jnp.all(positive < negatives, axis=1).astype(jnp.float32)
  return {
    "loss": jnp.sum(losses * weights), "accuracy": jnp.sum(right * weights), "target_tokens": jnp.sum(weights),
  }  # fmt: skip


def cosent_sums(embeddings: jax.Array, labels: jax.Array, weights: jax.Array, scale: float) -> Sums:
  """log(1 + sum exp(scale (cos_i - cos_j))) over all rows i, j of the batch with label_i < label_j (Su 2022).

  One number for a batch: times the rows, so that the mean over rows is that number.
  """
  cosines = scale * pair_cosines(embeddings)
  counted = (weights[:, None] > 0) & (weights[None, :] > 0) & (labels[:, None] < labels[None, :])
  differences = jnp.where(counted, cosines[:, None] - cosines[None, :], -jnp.inf)
  loss = jax.nn.logsumexp(jnp.append(differences.reshape(-1), jnp.zeros(1, jnp.float32)))
  return {"loss": loss * jnp.sum(weights), "target_tokens": jnp.sum(weights)}


def ranking_sums(embeddings: jax.Array, texts: jax.Array, weights: jax.Array, scale: float) -> Sums:
  """Cross entropy of each anchor's positive among the texts of the batch, by scale * cosine (Henderson et al. 2017).

  Candidates are the positives of all rows, then their hard negatives, over all devices. A candidate is masked for an
  anchor if it is a text of a filler row, or a false negative: the text of the anchor or of its positive once more, or
  the positive of an equal anchor. `texts` [rows, texts, 2] are the texts' hashes.
  """
  rows, count, width = embeddings.shape
  vectors = unit(embeddings)
  anchors = nn.with_logical_constraint(vectors[:, 0], ("batch", None))
  candidates = jnp.swapaxes(vectors[:, 1:], 0, 1).reshape((count - 1) * rows, width)
  candidates = nn.with_logical_constraint(candidates, (None, None))  # on every device
  scores = scale * jnp.einsum("id,jd->ij", anchors, candidates, precision="highest")
  own = jnp.eye(rows, (count - 1) * rows, dtype=bool)
  scores = jnp.where(_masked(texts, weights) & ~own, -jnp.inf, scores)
  losses = jax.nn.logsumexp(scores, axis=1) - jnp.diagonal(scores)
  right = (jnp.argmax(scores, axis=1) == jnp.arange(rows)).astype(jnp.float32)
  return {
    "loss": jnp.sum(losses * weights), "accuracy": jnp.sum(right * weights), "target_tokens": jnp.sum(weights),
  }  # fmt: skip


def _masked(texts: jax.Array, weights: jax.Array) -> jax.Array:
  """Returns [rows, candidates] bool: candidates that are not negatives of an anchor, its own positive among them."""
  rows, count, _ = texts.shape
  candidates = jnp.swapaxes(texts[:, 1:], 0, 1).reshape((count - 1) * rows, 2)
  same_anchor = _equal(texts[:, 0], texts[:, 0])
  others = jnp.zeros((rows, (count - 2) * rows), bool)  # hard negatives of an equal anchor are negatives
  masked = _equal(texts[:, 0], candidates) | _equal(texts[:, 1], candidates)
  masked |= jnp.concatenate([same_anchor, others], axis=1)
  return masked | jnp.tile(weights == 0, count - 1)[None, :]


def _equal(one: jax.Array, other: jax.Array) -> jax.Array:
  """Returns [n, m] bool of hashes [n, 2] and [m, 2]."""
  return jnp.all(one[:, None] == other[None, :], axis=-1)


def text_hashes(batch: dict[str, jax.Array]) -> jax.Array:
  """Returns [rows, texts, 2] uint32, equal for equal texts: sums of tokens times random numbers, in 64 bits."""
  tokens = batch["encoder_input_tokens"]
  flat = {name: x.reshape(-1, x.shape[-1]) for name, x in batch.items() if name.startswith("encoder_")}
  real = jnp.where(encoder_valid(flat), flat["encoder_input_tokens"] + 1, 0).astype(jnp.uint32)
  factors = np.random.default_rng(0).integers(0, 2**32, (tokens.shape[-1], 2), dtype=np.uint32) | np.uint32(1)
  return jnp.sum(real[:, :, None] * factors[None], axis=1, dtype=jnp.uint32).reshape(*tokens.shape[:-1], 2)
