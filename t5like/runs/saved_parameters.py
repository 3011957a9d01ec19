"""The parameters that checkpoints hold: all, those that a method trains on a frozen base, or those of a student."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from flax import traverse_util

from t5like.errors import UserError
from t5like.experiments.experiment import Experiment
from t5like.finetuning import TrainingPlan
from t5like.finetuning.distillation import TEACHER
from t5like.inference.parameters import TunedBase, read_base, store_frozen
from t5like.training.checkpoints.given_parameters import GivenParameters
from t5like.training.checkpoints.restoring import array_targets
from t5like.training.optimizers.rules import leaves_by_path, path_text, variable_paths
from t5like.training.optimizers.selection import Selection
from t5like.training.state import StateSpec, TrainState
from t5like.vocabularies import Vocabulary


def saved_selection(experiment: Experiment, plan: TrainingPlan, params: Any) -> Selection | None:
  """Returns what checkpoints of a run hold: None for all parameters."""
  if experiment.distillation:
    return Selection(dict.fromkeys(variable_paths(without_teacher(params))))
  return plan.episodes[0].optimizer.selection if experiment.method else None


def without_teacher(params: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the parameters of a student, which are evaluated and saved."""
  return {name: part for name, part in params.items() if name != TEACHER}


def read_run_base(
  experiment: Experiment, vocabulary: Vocabulary, fingerprint: Mapping[str, Any], init: GivenParameters | None
) -> TunedBase:
  """Reads the base of a run with a method; `experiment` has the plain model."""
  name = type(experiment.method).__name__
  if not experiment.init_from:
    raise UserError(
      f"{name} trains on a frozen base, and INIT_FROM names none",
      expected="a model directory, a checkpoint or a Hugging Face folder",
      try_="--gin.INIT_FROM=MODEL_DIR_OF_THE_BASE",
    )
  source = init or experiment.init_from
  return read_base(source, experiment.model, experiment.method, vocabulary, fingerprint, experiment.restore)


def saved_part(params: Any, saved: Selection | None) -> Any:
  """Returns the parameters that checkpoints hold, as nested dicts; of a variable, always all layers."""
  if saved is None:
    return params
  kept = {path: leaf for path, leaf in leaves_by_path(params).items() if path in saved}
  return traverse_util.unflatten_dict(kept, sep="/")


def saved_spec(spec: StateSpec, saved: Selection | None) -> StateSpec:
  """Returns the spec of the state that checkpoints hold."""
  shapes, shardings = (saved_part(tree.params, saved) for tree in (spec.shapes, spec.shardings))
  return StateSpec(spec.shapes.replace(params=shapes), spec.shardings.replace(params=shardings))


def saved_state(saved: Selection | None, state: TrainState) -> TrainState:
  return state.replace(params=saved_part(state.params, saved))


def with_stored_dtypes(spec: StateSpec, saved: Selection, dtype: Any) -> StateSpec:
  """Returns the spec with frozen weights in the dtype of computations."""
  params = jax.eval_shape(lambda params: store_frozen(params, saved, dtype), spec.shapes.params)
  return StateSpec(spec.shapes.replace(params=params), spec.shardings)


def with_base(trained: TrainState, base: TunedBase, spec: StateSpec, keep: bool) -> TrainState:
  """Returns the complete state: parameters of the base, on their devices, and the rest of `trained`.

  With `keep`, also those of `trained` that the base has, too.
  """
  ours = leaves_by_path(trained.params)
  wanted = {
    path: target
    for path, target in array_targets(spec.shapes.params, spec.shardings.params).items()
    if path in base.parameters.stored and not (keep and path in ours)
  }
  placed = ours | base.parameters.place(wanted)
  return trained.replace(params=jax.tree.map_with_path(lambda path, _: placed[path_text(path)], spec.shapes.params))
