"""The losses of distillation by position: [rows, length], or [rows, 1] for the labels of rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from t5like.models.config import TransformerConfig


def soft_targets(student: jax.Array, teacher: jax.Array, temperature: float) -> jax.Array:
  """Returns T^2 KL(teacher || student) of the softmax of logits [..., classes] at temperature T."""
  log_p = jax.nn.log_softmax(student.astype(jnp.float32) / temperature, axis=-1)
  log_q = jax.nn.log_softmax(teacher.astype(jnp.float32) / temperature, axis=-1)
  return temperature**2 * jnp.sum(jnp.exp(log_q) * (log_q - log_p), axis=-1)


def cosine_distance(student: jax.Array, teacher: jax.Array) -> jax.Array:
  """Returns 1 - cosine of states [..., embed]."""
  student, teacher = (x.astype(jnp.float32) for x in (student, teacher))
  product = jnp.sum(student * teacher, axis=-1)
  norms = jnp.sum(student**2, axis=-1) * jnp.sum(teacher**2, axis=-1)
  return 1.0 - product * jax.lax.rsqrt(jnp.maximum(norms, 1e-12))


def squared_difference(student: jax.Array, teacher: jax.Array) -> jax.Array:
  """Returns the mean squared difference of states [..., embed]."""
  return jnp.mean(jnp.square(student.astype(jnp.float32) - teacher.astype(jnp.float32)), axis=-1)


def scores(queries: jax.Array, keys: jax.Array, config: TransformerConfig) -> jax.Array:
  """Returns attention scores [rows, heads, queries, keys] before the softmax, from projections [rows, length, heads *
  head_dim]."""
  split = lambda x: x.reshape(*x.shape[:2], config.num_heads, config.head_dim).astype(jnp.float32)  # noqa: E731
  found = jnp.einsum("bqhd,bkhd->bhqk", split(queries), split(keys))
  return found * config.head_dim**-0.5 if config.scale_attention else found


def score_difference(student: jax.Array, teacher: jax.Array, seen: jax.Array) -> jax.Array:
  """Returns the squared difference of scores [rows, heads, queries, keys] per query: its mean over heads and the keys
  that the query attends to, `seen` [rows, queries, keys]. The original also averages over padding, as zeros."""
  differences = jnp.mean(jnp.square(student - teacher), axis=1)  # [rows, queries, keys]
  seen = seen.astype(jnp.float32)
  return jnp.sum(differences * seen, axis=-1) / jnp.maximum(jnp.sum(seen, axis=-1), 1.0)
