"""The state of a benchmarked step in which not everything trains."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax

from t5like.finetuning import Trainable, plan_training
from t5like.inference.parameters import store_frozen
from t5like.runs.saved_parameters import with_stored_dtypes
from t5like.runs.trained_flops import flops_shares
from t5like.training.optimizers import Optimizer
from t5like.training.state import StateSpec, TrainState, state_spec, with_optimizer


@dataclasses.dataclass(frozen=True)
class TunedPlan:
  """The model, optimizer and spec of a step in which `trains` is trained."""

  model: nn.Module
  optimizer: Optimizer
  spec: StateSpec
  frozen_layers: Mapping[str, int]
  trains: str
  tunes: bool
  flops_share: float  # of a step that trains everything

  def stored(self, state: TrainState) -> TrainState:
    """Returns a state with the dtypes of the spec: frozen weights in that of computations."""
    if not self.tunes:
      return state
    return state.replace(params=store_frozen(state.params, self.optimizer.selection, self.model.config.dtype))

  def facts(self) -> dict[str, Any]:
    if self.optimizer.selection is None:
      return {}
    frozen = jax.tree.leaves(self.spec.shapes.params)
    trained = jax.tree.leaves(jax.eval_shape(self.optimizer.selection.take, self.spec.shapes.params))
    size = lambda leaves: sum(x.size * x.dtype.itemsize for x in leaves)  # noqa: E731
    return {
      "trains": f"{self.trains}: {sum(x.size for x in trained):,} parameters",
      "base_bytes": size(frozen) - size(trained),
      "flops_share": self.flops_share,
    }


def plan_tuned(
  model: nn.Module, trainable: Trainable, optimizer: Optimizer, batch: Mapping[str, Any], mesh: jax.sharding.Mesh
) -> TunedPlan:
  """Returns the first episode of what trains."""
  model = trainable.tune(model)
  spec = state_spec(model, optimizer, batch, mesh)
  plan = plan_training(trainable, None, optimizer, spec.shapes.params, 1)
  episode, share = plan.episodes[0], flops_shares(model, plan, spec.shapes.params, batch)[0]
  if trainable.tunes:
    spec = with_stored_dtypes(spec, episode.optimizer.selection, model.config.dtype)
  spec = with_optimizer(spec, episode.optimizer, mesh)
  return TunedPlan(model, episode.optimizer, spec, episode.frozen_layers, episode.title, trainable.tunes, share)
