"""Outputs other than one softmax. Both return log probabilities, which are logits like any others."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.kernels.products import product
from t5like.models.config import TransformerConfig
from t5like.models.layers import dense, kernel_init


class MixtureOfSoftmaxes(nn.Module):
  """log sum_k prior_k(h) softmax(W tanh(latent_k(h))) with the model's own output W (Yang et al. 2018, section 2.3).

  Logits of all softmaxes exist at the same time: `softmax_mixtures` times the memory and FLOPs of one output.
  """

  config: TransformerConfig

  @nn.compact
  def __call__(self, hidden: jax.Array, logits: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Returns [..., vocab]; `logits` maps states [..., embed] to [..., vocab]."""
    config, count = self.config, self.config.softmax_mixtures
    prior = dense(config, count, ("embed", None), use_bias=False, name="prior")(hidden)
    latent = dense(config, count * config.embed_dim, ("embed", "mlp"), name="latent")(hidden)
    latent = jnp.tanh(latent).reshape(*hidden.shape[:-1], count, config.embed_dim)
    each = jax.nn.log_softmax(logits(latent).astype(jnp.float32))  # [..., count, vocab]
    prior = jax.nn.log_softmax(prior.astype(jnp.float32))[..., None]  # [..., count, 1]
    return jax.nn.logsumexp(each + prior, axis=-2).astype(config.logits_dtype)


class AdaptiveSoftmax(nn.Module):
  """log p(token) = log p(its cluster) + log p(token | cluster) (Grave et al. 2017, section 4).

  The first softmax is over the tokens of the first cluster and the other clusters. Cluster n reads states that are
  projected to embed / 4^n features. Ids must be sorted by frequency, as those of sentencepiece are. All clusters are
  computed for all tokens; what is saved are the products with rare tokens at full width.
  """

  config: TransformerConfig

  @nn.compact
  def __call__(self, hidden: jax.Array) -> jax.Array:
    """Returns [..., vocab]."""
    config = self.config
    first, *others = config.clusters
    head = self._log_softmax("head", hidden, first + len(others), ("embed", None))
    parts = [head[..., :first]]
    for number, size in enumerate(others, 1):
      width = cluster_width(config, number)
      narrow = dense(config, width, ("embed", "mlp"), use_bias=False, name=f"project_{number}")(hidden)
      inside = self._log_softmax(f"tail_{number}", narrow, size, ("mlp", None))
      parts.append(inside + head[..., first + number - 1, None])
    return jnp.concatenate(parts, axis=-1).astype(config.logits_dtype)

  def _log_softmax(self, name: str, states: jax.Array, size: int, axes: tuple[str, str | None]) -> jax.Array:
    config = self.config
    init = nn.with_logical_partitioning(kernel_init(config), axes)
    kernel = self.param(name, init, (states.shape[-1], size), jnp.dtype(config.param_dtype)).astype(config.dtype)
    return jax.nn.log_softmax(product("...d,dv->...v", states, kernel, jnp.dtype("float32")))


def cluster_width(config: TransformerConfig, number: int) -> int:
  """Returns the width of the states that cluster `number` of an adaptive softmax reads."""
  return max(config.embed_dim // 4**number, 1)
