"""Fine-tuning: which parameters train, at which step, and at which rate.

A run's TRAINABLE names what trains (`Everything`, `HeadOnly`, `FrozenBelow`, `Matching`, `Frozen`,
`GradualUnfreezing`, `UnfreezeOnPlateau`), its LAYER_RATES the rate of each layer (`LayerwiseDecay`,
`DiscriminativeRates`). `plan_training` turns both into episodes: for each, an optimizer with state for its trained
parameters only. None of this is part of the model's config: a checkpoint belongs to the same model before and after.

Methods that add parameters to a frozen base, such as LoRA, are in `finetuning.methods`.
To add another choice, subclass `Trainable` and return its episodes from the variables of the model.
"""

from t5like.finetuning import methods
from t5like.finetuning.plan import PlannedEpisode, TrainingPlan, plan_training
from t5like.finetuning.rates import DiscriminativeRates, LayerRates, LayerwiseDecay
from t5like.finetuning.trainable import Episode, Everything, Frozen, FrozenBelow, HeadOnly, Matching, Trainable
from t5like.finetuning.unfreezing import GradualUnfreezing, UnfreezeOnPlateau
from t5like.finetuning.variables import Variable, Variables, read_variables

__all__ = [
  "DiscriminativeRates",
  "Episode",
  "Everything",
  "Frozen",
  "FrozenBelow",
  "GradualUnfreezing",
  "HeadOnly",
  "LayerRates",
  "LayerwiseDecay",
  "Matching",
  "PlannedEpisode",
  "Trainable",
  "TrainingPlan",
  "UnfreezeOnPlateau",
  "Variable",
  "Variables",
  "methods",
  "plan_training",
  "read_variables",
]
