"""A name for what fused attention hands to its backward pass: rematerialized layers may keep it by that name."""

import jax
from jax.ad_checkpoint import checkpoint_name

ATTENTION_RESULTS = "attention_results"


def kept_results(*arrays: jax.Array) -> tuple[jax.Array, ...]:
  """The same arrays, known to rematerialization policies. Without one, nothing changes."""
  return tuple(checkpoint_name(x, ATTENTION_RESULTS) for x in arrays)
