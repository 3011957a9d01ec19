"""Values that work in T5X or in pre-training and are mistakes in a fine-tuning run: a line each."""

from __future__ import annotations

from t5like.experiments.experiment import Experiment

_MANY_STEPS = 1_000_000  # the published T5 1.1, mT5 and ByT5 have so many of pre-training


def finetuning_notes(experiment: Experiment) -> list[str]:
  """For a run that begins with the parameters of INIT_FROM."""
  config, notes = experiment.model.config, []
  if experiment.steps >= _MANY_STEPS:
    notes.append(
      f"note: TRAIN_STEPS = {experiment.steps:,} are steps of this run. T5X counts those of pre-training as well: its "
      "1,020,000 after 1,000,000 is TRAIN_STEPS = 20000 here"
    )
  like_t5_1_1 = experiment.model.batch_layout == "encoder_decoder" and config.gated_mlp and not config.tie_embeddings
  if like_t5_1_1 and experiment.objective is None and config.dropout_rate == 0:
    notes.append(
      "note: DROPOUT_RATE = 0: T5 1.1, mT5 and ByT5 were pre-trained so, and are fine-tuned with 0.1 "
      "(runs/finetune.gin sets it where the model file is given before it)"
    )
  return notes
