"""The checkpoint name of fused attention's residuals, by which a rematerialization policy can save them."""

import jax
from jax.ad_checkpoint import checkpoint_name

ATTENTION_RESULTS = "attention_results"


def name_residuals(*arrays: jax.Array) -> tuple[jax.Array, ...]:
  """Tags arrays with `ATTENTION_RESULTS`; a no-op unless a rematerialization policy saves that name."""
  return tuple(checkpoint_name(x, ATTENTION_RESULTS) for x in arrays)
