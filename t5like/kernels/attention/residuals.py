"""Parts of every fused attention: the checkpoint name of its residuals, and gradients of keys shared by heads."""

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

ATTENTION_RESULTS = "attention_results"


def name_residuals(*arrays: jax.Array) -> tuple[jax.Array, ...]:
  """Tags arrays with `ATTENTION_RESULTS`; a no-op unless a rematerialization policy saves that name."""
  return tuple(checkpoint_name(x, ATTENTION_RESULTS) for x in arrays)


def kv_head(head: jax.Array, group: int) -> jax.Array:
  """Returns the head of keys that a head of queries reads, inside a kernel: `//` does not lower for all of them."""
  return head if group == 1 else jax.lax.div(head, jnp.int32(group))


def sum_groups(gradient: jax.Array, axis: int, group: int) -> jax.Array:
  """Sums the gradients of keys for each head of queries over groups of neighbors along `axis`, in float32."""
  split = gradient.reshape(*gradient.shape[:axis], -1, group, *gradient.shape[axis + 1 :])
  return jnp.sum(split, axis=axis + 1, dtype=jnp.float32).astype(gradient.dtype)
