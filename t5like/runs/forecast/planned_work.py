"""Describes the steps of a run as shapes: the input of every forecast."""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax

from t5like import parallel
from t5like.errors import UserError
from t5like.experiments.compatibility import check_layout, check_vocabulary, stack_lengths
from t5like.experiments.experiment import Experiment
from t5like.experiments.languages import special_tokens, task_languages
from t5like.experiments.phases import Phase, blank_batch, run_phases
from t5like.inference.parameters import store_frozen
from t5like.models.recurrent import RecurrentConfig
from t5like.objectives import SpecialTokens
from t5like.planning import State, Work
from t5like.planning.flops import traced_flops
from t5like.runs.head_choice import resolve_head
from t5like.runs.preparing import training_plan
from t5like.runs.run_card import steps_per_phase
from t5like.runs.saved_parameters import saved_selection, without_teacher
from t5like.runs.teachers import open_teacher, train_model
from t5like.runs.trained_flops import flops_shares, mean_share
from t5like.vocabularies import load_vocabulary


def planned_work(experiment: Experiment) -> list[Work]:
  """Returns the work of each phase of a run: model, state, batch shapes and number of steps.

  Of a run that unfreezes parameters on the way, the state is the largest.
  """
  if isinstance(experiment.model.config, RecurrentConfig):
    raise UserError(
      f"plans do not cover recurrent models such as {type(experiment.model).__name__}: positions run one by one",
      try_="t5like train --dry_run, which counts parameters, FLOPs and the memory of the state",
    )
  plain = resolve_head(experiment)
  experiment = plain.tuned()
  phases = planned_phases(experiment)
  for phase in phases if experiment.method else ():
    experiment.method.check_rows(plain.model, stack_lengths(plain.model, phase.lengths), experiment.packs)
  batches = [blank_batch(experiment, dataclasses.replace(phase, batch_size=1)) for phase in phases]
  teacher = open_teacher(experiment)[1] if experiment.distillation else None
  boxed = parallel.parameter_shapes(train_model(experiment, teacher), batches[-1])
  params = nn.meta.unbox(boxed)
  plan = training_plan(experiment, params)
  share = mean_share(flops_shares(experiment.model, plan, without_teacher(params), batches[-1]), plan)
  optimizer, saved = plan.largest.optimizer, saved_selection(experiment, plan, params)
  if saved:  # frozen weights are stored in the dtype of computations
    params = jax.eval_shape(lambda params: store_frozen(params, saved, experiment.model.config.dtype), params)
    boxed = jax.tree.unflatten(jax.tree.structure(boxed), jax.tree.leaves(params))
  opt_state = jax.eval_shape(optimizer.transformation.init, params)
  trained = params if optimizer.selection is None else jax.eval_shape(optimizer.selection.take, params)
  # Only Muon has matrix products.
  flops = traced_flops(optimizer.transformation.update, trained, opt_state, trained) if optimizer.matrices else 0
  state = State(boxed, opt_state, flops, optimizer.selection)
  steps = steps_per_phase(phases, experiment.steps)
  return [
    Work(
      experiment.model,
      state,
      {name: jax.ShapeDtypeStruct((phase.batch_size, *x.shape[1:]), x.dtype) for name, x in batch.items()},
      count,
      experiment.microbatches,
      teacher,
      share,
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
    return run_phases(
      experiment, SpecialTokens(vocab_size, 0, 1, tuple(range(vocab_size)), mask=0, cls=0, sep=0, sentence_ends=(0,))
    )
  check_vocabulary(experiment.model.config, experiment.vocabulary, vocabulary)
  return run_phases(experiment, special_tokens(experiment.model.config, vocabulary, task_languages(experiment)))
