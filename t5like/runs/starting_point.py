"""Chooses what a run starts from: its own checkpoint, another one, given parameters or random initialization."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t5like.console import say
from t5like.experiments.experiment import Experiment
from t5like.inference.parameters import TunedBase, adapt, check_same_labels, find_parameters, refuse_foreign
from t5like.runs.starting_table import array_uses
from t5like.training.checkpoints import (
  Restore,
  check_restorable,
  find_checkpoint,
  find_episode,
  has_training_state,
  newest_intact,
)
from t5like.training.checkpoints.given_parameters import ArrayUse, GivenParameters
from t5like.training.state import StateSpec
from t5like.vocabularies import load_vocabulary


@dataclasses.dataclass(frozen=True)
class StartingPoint:
  """The source of a run's initial state."""

  description: str
  checkpoint: Path | GivenParameters | None = None  # None: random initialization
  resumes: bool = False  # restores optimizer and step, too
  options: Restore = Restore()
  verified: bool = False  # its checksums were compared just now
  episode: int = 0  # of the training plan, whose optimizer state it has
  uses: Sequence[ArrayUse] = ()  # of its parameters and the run's
  base: TunedBase | None = None  # of a run that saves only what it trains

  @property
  def step(self) -> int:
    return int(self.checkpoint.name) if self.resumes else 0


def choose_starting_point(
  experiment: Experiment,
  model_dir: Path,
  specs: Sequence[StateSpec],
  fingerprint: dict[str, Any],
  move: bool = True,
  init: GivenParameters | None = None,
  base: TunedBase | None = None,
) -> StartingPoint:
  """Returns the source of the initial state; raises UserError for a checkpoint that does not match.

  In this order: the run's own newest intact checkpoint, RESTORE_FROM, parameters in memory (`init`), INIT_FROM (of
  t5like or another library), random initialization. Newer, damaged checkpoints are reported and (`move`) set aside.
  `specs` are of what checkpoints hold. A run with a `base` starts from it, and adds to it what a checkpoint holds.
  """
  newest = newest_intact(model_dir, move)
  for message in newest.messages:
    say(message)
  options = experiment.restore
  if newest.checkpoint is not None:
    start = StartingPoint("its own checkpoint of step {step}", newest.checkpoint, verified=True)
    # A fresh optimizer would reset at every restart: that needs another directory.
    options = dataclasses.replace(options, parameters_only=False)
  elif experiment.restore_from:
    refuse_foreign(experiment.restore_from)
    checkpoint = find_checkpoint(experiment.restore_from)
    start = StartingPoint("the checkpoint {checkpoint}, with optimizer and step", checkpoint)
  elif base:
    uses = base.parameters.uses
    return StartingPoint(f"the frozen parameters of {base.parameters}", base=base, uses=uses)
  elif init or experiment.init_from:
    options = dataclasses.replace(options, parameters_only=True)
    source = init or find_parameters(experiment.init_from, experiment.model)
    vocabulary = load_vocabulary(experiment.vocabulary)
    source = adapt(source, experiment.model, vocabulary, specs[0], fingerprint, options)
    start = StartingPoint("{checkpoint}", source)
  else:
    return StartingPoint("random initialization")
  resumes = not options.parameters_only and has_training_state(start.checkpoint)
  if resumes:
    check_same_labels(start.checkpoint, experiment.model)
  episode = find_episode(start.checkpoint, specs) if resumes else 0
  check_restorable(start.checkpoint, specs[episode], fingerprint, options)
  text = start.description
  if not resumes:
    what = "the converted parameters in this directory" if newest.checkpoint else "the parameters of {checkpoint}"
    text = f"{what}, optimizer and step fresh"
  description = text.format(checkpoint=start.checkpoint, step=getattr(start.checkpoint, "name", ""))
  uses = array_uses(start.checkpoint, specs[episode])
  known = dict(description=description, options=options, resumes=resumes, episode=episode, uses=uses, base=base)
  return dataclasses.replace(start, **known)
