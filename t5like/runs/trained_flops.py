"""FLOPs of a train step in which some parameters are frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.finetuning import PlannedEpisode, TrainingPlan
from t5like.kernels.attention import compile_for
from t5like.models.stack import frozen_layers
from t5like.planning.flops import traced_flops
from t5like.training.optimizers.selection import Selection
from t5like.training.state import TrainState
from t5like.training.step import LossSettings, loss_and_gradients


def mean_share(shares: Sequence[float], plan: TrainingPlan) -> float:
  """Returns the mean of the episodes' shares over the steps of a run."""
  steps = plan.steps_by_episode()
  return sum(share * n for share, n in zip(shares, steps, strict=True)) / sum(steps)


def flops_shares(model: nn.Module, plan: TrainingPlan, params: Any, batch: Mapping[str, Any]) -> list[float]:
  """Returns the FLOPs of a step in each episode, as a share of those of a step that trains everything.

  A frozen layer has no products for the gradients of its weights, and none at all in the backward pass if nothing
  trains before it. `params` and `batch` may hold shapes; the number of rows does not matter.
  """
  if all(episode.optimizer.selection is None for episode in plan.episodes):
    return [1.0] * len(plan.episodes)
  shapes = {name: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype) for name, x in batch.items()}

  def flops(model: nn.Module, params: Any, selection: Selection | None) -> int:
    state = TrainState(jax.ShapeDtypeStruct((), jnp.int32), params, (), jax.ShapeDtypeStruct((), jnp.uint32))
    gradients = lambda state, batch: loss_and_gradients(model, LossSettings(), state, batch, selection)[2]  # noqa: E731
    return traced_flops(gradients, state, shapes)

  def share(episode: PlannedEpisode) -> float:
    with frozen_layers(episode.frozen_layers):
      return flops(model, params, episode.optimizer.selection) / everything

  with compile_for("cpu"):  # no kernels, whose products cannot be counted
    plain = model if model.tuning is None else model.clone(tuning=None)  # integers of a quantized base have no gradient
    everything = flops(plain, nn.unbox(jax.eval_shape(plain.init, jax.random.key(0), shapes))["params"], None)
    return [1.0 if episode.optimizer.selection is None else share(episode) for episode in plan.episodes]
