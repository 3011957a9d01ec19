"""Mixture of experts: each token is processed by one (Switch; Fedus et al. 2021) or more of several MLPs."""

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.kernels.activation_functions import ACTIVATIONS
from t5like.kernels.activations import activate
from t5like.models.auxiliary import Auxiliary
from t5like.models.config import TransformerConfig
from t5like.models.embedder import logits_padding
from t5like.models.layers import draw_mlp_dropout, input_kernels, kernel_init


class Experts(nn.Module):
  """`num_experts` MLPs, of which a router selects `experts_per_token` for each token.

  An expert takes at most `capacity` tokens of a row, in order of position, and first those that prefer it; a token
  that none of its experts takes only has the residual connection. Rows are routed separately, so results do not depend
  on the mesh, and padding, which is on the right, takes no place from tokens.
  """

  config: TransformerConfig

  @nn.compact
  def __call__(self, x: jax.Array, valid: jax.Array | None, deterministic: bool) -> tuple[jax.Array, jax.Array]:
    """Returns the output [batch, length, embed], and the losses of routing [batch, 2]: balance and z.

    valid  [batch, length]: False on padding, which does not count in the losses; None: all count
    """
    config, count = self.config, self.config.num_experts
    router = self._kernel("router", (config.embed_dim, count), ("embed", None))
    logits = x.astype(jnp.float32) @ router.astype(jnp.float32)  # [batch, length, experts]
    dispatch, combine = route(jax.nn.softmax(logits), config.experts_per_token, capacity(config, x.shape[1]))
    inputs = jnp.einsum("blec,bld->ebcd", dispatch.astype(x.dtype), x)
    inputs = nn.with_logical_constraint(inputs, ("expert", "expert_rows", None, None))
    outputs = nn.with_logical_constraint(self._mlps(inputs, deterministic), ("expert", "expert_rows", None, None))
    y = jnp.einsum("blec,ebcd->bld", combine.astype(x.dtype), outputs)
    return y, _losses(logits, valid)

  def _mlps(self, x: jax.Array, deterministic: bool) -> jax.Array:
    """Applies each expert's MLP to its tokens: [experts, batch, capacity, embed]."""
    config = self.config

    def project_in(name: str) -> jax.Array:
      kernel = self._kernel(name, (config.num_experts, config.embed_dim, config.mlp_dim), ("expert", "embed", "mlp"))
      return jnp.einsum("ebcd,edf->ebcf", x, kernel.astype(config.dtype))

    dropout = draw_mlp_dropout(config, x.shape[:-1], deterministic)
    h = activate(ACTIVATIONS[config.activation], [project_in(name) for name in input_kernels(config)], dropout)
    h = nn.with_logical_constraint(h, ("expert", "expert_rows", None, "mlp"))
    shape, axes = (config.num_experts, config.mlp_dim, config.embed_dim), ("expert", "mlp", "embed")
    return jnp.einsum("ebcf,efd->ebcd", h, self._kernel("wo", shape, axes, "residual").astype(config.dtype))

  def _kernel(self, name: str, shape: tuple[int, ...], axes: tuple[str | None, ...], role: str = "branch") -> jax.Array:
    init = kernel_init(self.config, "plain" if name == "router" else role)

    def each(key, shape, dtype):  # every expert is initialized as an MLP of its own
      if len(shape) == 2:
        return init(key, shape, dtype)
      return jax.vmap(lambda key: init(key, shape[1:], dtype))(jax.random.split(key, shape[0]))

    return self.param(name, nn.with_logical_partitioning(each, axes), shape, jnp.dtype(self.config.param_dtype))


def capacity(config: TransformerConfig, length: int) -> int:
  """Returns the number of tokens of a row that an expert takes at most."""
  even = config.experts_per_token * length / config.num_experts
  return min(max(round(config.expert_capacity * even), 1), length)


def route(probabilities: jax.Array, choices: int, capacity: int) -> tuple[jax.Array, jax.Array]:
  """Assigns tokens to places of experts: two arrays [batch, length, experts, capacity].

  The first is 1 where a token has a place; the second its weight there: the router's probability or, with several
  choices, its share of their sum (Lepikhin et al. 2020, algorithm 1).
  """
  experts = probabilities.shape[-1]
  taken = jnp.zeros((probabilities.shape[0], 1, experts), jnp.float32)  # places taken by earlier choices
  left, dispatch, combine, total = probabilities, 0.0, 0.0, 0.0
  for _ in range(choices):
    chosen = jax.nn.one_hot(jnp.argmax(left, axis=-1), experts)  # [batch, length, experts]
    gate = jnp.sum(probabilities * chosen, axis=-1)  # [batch, length]
    place = jnp.cumsum(chosen, axis=1) - 1 + taken
    # No place at or above the capacity: one_hot is 0 there.
    at = chosen[..., None] * jax.nn.one_hot(place.astype(jnp.int32), capacity)
    dispatch, combine, total = dispatch + at, combine + at * gate[..., None, None], total + gate
    taken, left = taken + jnp.sum(chosen, axis=1, keepdims=True), jnp.where(chosen > 0, -1.0, left)
  return jax.lax.stop_gradient(dispatch), combine / total[..., None, None] if choices > 1 else combine


def _losses(logits: jax.Array, valid: jax.Array | None) -> jax.Array:
  """Returns [batch, 2] of logits [batch, length, experts].

  balance  E sum_e (share of tokens that prefer e) (mean probability of e) (Fedus et al. 2021, equation 4): 1 if even
  z        mean squared log of the softmax's normalizer (Zoph et al. 2022, equation 5)
  """
  experts = logits.shape[-1]
  weights = jnp.ones(logits.shape[:2]) if valid is None else valid.astype(jnp.float32)
  mean = lambda x: jnp.sum(x * weights[..., None], axis=1) / jnp.maximum(jnp.sum(weights, axis=1), 1.0)[:, None]  # noqa: E731
  preferred = mean(jax.nn.one_hot(jnp.argmax(logits, axis=-1), experts))
  balance = experts * jnp.sum(preferred * mean(jax.nn.softmax(logits)), axis=-1)
  z = mean(jax.nn.logsumexp(logits, axis=-1, keepdims=True) ** 2)[:, 0]
  return jnp.stack([balance, z], axis=-1)


def outputs(model: nn.Module, batch: Mapping[str, jax.Array], deterministic: bool) -> dict:
  """Returns a model's {"logits"}, and in training what only the loss reads.

  "padded_logits" are the logits and columns of padding (`logits_padding`), "auxiliary" the losses of routers, means
  over all layers.
  """
  config = model.config
  if deterministic:
    return {"logits": model.project(model.hidden_states(batch))}
  losses: list[jax.Array] = []
  hidden = model.hidden_states(batch, deterministic, **({"routing": losses} if config.num_experts else {}))
  if padding := logits_padding(config):
    logits = model.project(hidden, padding)
    found = {"logits": logits[..., : config.vocab_size], "padded_logits": logits}
  else:
    found = {"logits": model.project(hidden)}
  if losses:
    means, rows = jnp.mean(jnp.concatenate(losses), axis=0), _real_rows(batch)
    weights = {"balance_loss": config.balance_loss, "router_z_loss": config.router_z_loss}
    named = enumerate(weights.items())
    found["auxiliary"] = {name: Auxiliary(means[:, n : n + 1], rows, weight) for n, (name, weight) in named}
  return found


def auxiliary_counts(config: TransformerConfig, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
  names = ("balance_loss", "router_z_loss") if config.num_experts else ()
  return {name: jnp.maximum(jnp.sum(_real_rows(batch)), 1.0) for name in names}


def _real_rows(batch: Mapping[str, jax.Array]) -> jax.Array:
  """Returns [batch, 1]: 0 for padding rows, which have no tokens."""
  tokens = batch.get("encoder_input_tokens", batch["decoder_input_tokens"])
  return jnp.any(tokens > 0, axis=1, keepdims=True).astype(jnp.float32)
