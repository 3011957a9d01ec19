"""Notes on values that are right in T5X or in pre-training, but probably mistakes in fine-tuning."""

from __future__ import annotations

import dataclasses
import re

from t5like.experiments.experiment import Experiment

_PRETRAINING_STEPS = 1_000_000  # of the published T5 1.1, mT5 and ByT5


def finetuning_notes(experiment: Experiment) -> list[str]:
  """Returns notes for a run that starts from INIT_FROM."""
  config, notes = experiment.model.config, []
  if experiment.steps >= _PRETRAINING_STEPS:
    notes.append(
      f"note: TRAIN_STEPS = {experiment.steps:,} are steps of this run. T5X's number includes pre-training: its "
      "1,020,000 after 1,000,000 is TRAIN_STEPS = 20000 here"
    )
  like_t5_1_1 = experiment.model.batch_layout == "encoder_decoder" and config.gated_mlp and not config.tie_embeddings
  if like_t5_1_1 and experiment.objective is None and config.dropout_rate == 0:
    notes.append(
      "note: DROPOUT_RATE = 0: T5 1.1, mT5 and ByT5 were pre-trained with 0, but are fine-tuned with 0.1 "
      "(set by runs/finetune.gin if it comes after the model file)"
    )
  head = getattr(experiment.model, "head", None)
  rates = [value for name, value in dataclasses.asdict(config).items() if "dropout" in name and value is not True]
  if getattr(head, "loss", None) == "simcse" and not any(rates):
    notes.append(
      "note: DROPOUT_RATE = 0: the loss 'simcse' compares a text with itself under other dropout, and both are equal"
    )
  return notes


def examples_note(experiment: Experiment, rows: int) -> str:
  """Returns a note if EXAMPLES, from which a recipe computes its steps, is far from the number of training rows; or ''.

  The windows and choices of a row are counted as rows.
  """
  given = re.search(r"^EXAMPLES = (\d+)$", experiment.config_text or "", re.MULTILINE)
  if not given or rows / 4 <= int(given[1]) <= 2 * rows:
    return ""
  examples = int(given[1])
  return f"note: EXAMPLES = {examples:,}, but there are {rows:,} rows: EPOCHS = 1 is {examples / rows:,.1f} passes"
