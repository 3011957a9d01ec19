"""The state in which a run starts: random, restored, or on top of a frozen base."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np

from t5like.console import say
from t5like.runs.preparing import PreparedRun
from t5like.runs.saved_parameters import saved_spec, saved_state, with_base
from t5like.runs.starting_point import StartingPoint
from t5like.training.checkpoints import restore_state
from t5like.training.state import TrainState, create_state


def initialize(run: PreparedRun, start: StartingPoint) -> TrainState:
  experiment, spec, optimizer = run.experiment, run.specs[start.episode], run.plan.episodes[start.episode].optimizer
  stored = saved_spec(spec, run.saved)

  def fresh() -> TrainState:
    return create_state(run.model, optimizer, run.batch, experiment.seed, stored, partial(saved_state, run.saved))

  if start.checkpoint is None:
    state = fresh()
  else:
    state = restore_state(start.checkpoint, stored, run.fingerprint, start.options, fresh, start.verified)
  if start.base is not None:
    state = with_base(state, start.base, spec, keep=start.checkpoint is not None)
  if run.teacher is not None:
    state = with_base(state, run.teacher.parameters, spec, keep=True)
  if (before := int(state.seed)) != experiment.seed:
    say(
      f"SEED = {experiment.seed}, was {before}: data, noise and dropout follow the new seed from "
      f"step {int(state.step) + 1:,} on, so earlier rows may repeat"
    )
    seed = np.asarray(experiment.seed, state.seed.dtype)
    state = state.replace(seed=jax.make_array_from_callback((), state.seed.sharding, lambda _: seed))
  return state
