"""Losses that a model adds to that of its target tokens."""

from typing import NamedTuple

import jax


class Auxiliary(NamedTuple):
  """A loss by position. `training/losses.py` adds `weight` times its mean to the loss.

  A model returns them by name in outputs["auxiliary"]; its method `auxiliary_counts(batch)` returns the sum of the
  weights by name, from the batch alone, so that the losses of microbatches add up.
  """

  losses: jax.Array  # [batch, n] float32
  weights: jax.Array  # [batch, n] float32: 0 where it does not count
  weight: float
