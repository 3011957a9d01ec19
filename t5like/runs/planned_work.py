"""Describes the steps of a run as shapes: the input of every forecast."""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax

from t5like.errors import UserError
from t5like.experiments.compatibility import check_layout, check_vocabulary
from t5like.experiments.experiment import Experiment
from t5like.experiments.phases import Phase, blank_batch, run_phases
from t5like.objectives import SpecialTokens
from t5like.planning import State, Work
from t5like.planning.flops import traced_flops
from t5like.runs.head_choice import resolve_head
from t5like.runs.run_card import steps_per_phase
from t5like.vocabularies import load_vocabulary


def planned_work(experiment: Experiment) -> list[Work]:
  """Returns the work of each phase of a run: model, state, batch shapes and number of steps."""
  experiment = resolve_head(experiment)
  phases = planned_phases(experiment)
  batches = [blank_batch(experiment, dataclasses.replace(phase, batch_size=1)) for phase in phases]
  boxed = jax.eval_shape(experiment.model.init, jax.random.key(0), batches[-1])["params"]
  params, optimizer = nn.meta.unbox(boxed), experiment.optimizer
  opt_state = jax.eval_shape(optimizer.transformation.init, params)
  # Only Muon has matrix products.
  flops = traced_flops(optimizer.transformation.update, params, opt_state, params) if optimizer.matrices else 0
  state = State(boxed, opt_state, flops)
  steps = steps_per_phase(phases, experiment.steps)
  return [
    Work(
      experiment.model,
      state,
      {name: jax.ShapeDtypeStruct((phase.batch_size, *x.shape[1:]), x.dtype) for name, x in batch.items()},
      count,
      experiment.microbatches,
    )
    for phase, batch, count in zip(phases, batches, steps, strict=True)
    if count
  ]


def planned_phases(experiment: Experiment) -> list[Phase]:
  """Returns the phases of a run; a vocabulary that is not on this machine is not checked."""
  check_layout(experiment.model, experiment.objective)
  vocab_size = experiment.model.config.vocab_size
  try:
    vocabulary = load_vocabulary(experiment.vocabulary)
  except UserError:
    return run_phases(experiment, SpecialTokens(vocab_size, 0, 1, tuple(range(vocab_size)), mask=0, cls=0, sep=0))
  check_vocabulary(experiment.model.config, experiment.vocabulary, vocabulary)
  return run_phases(experiment, SpecialTokens.of(vocabulary))
