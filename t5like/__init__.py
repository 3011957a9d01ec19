"""t5like: pre-train, fine-tune and evaluate BERT-, GPT- and T5-style models in JAX.

    import t5like

    model = t5like.load("~/downloads/t5-small")
    model.generate("translate English to German: How are you?", beams=4).text

Every name below is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from t5like import finetuning as finetuning
  from t5like.errors import RunError as RunError
  from t5like.errors import UserError as UserError
  from t5like.evaluation import Evaluation as Evaluation
  from t5like.evaluation import evaluate as evaluate
  from t5like.experiments.examples import save_examples as save_examples
  from t5like.experiments.experiment import Experiment as Experiment
  from t5like.experiments.reading import read_experiment as read_experiment
  from t5like.experiments.token_caches import token_cache as token_cache
  from t5like.inference import Model as Model
  from t5like.inference import load as load
  from t5like.objectives import Objective as Objective
  from t5like.objectives import register_objective as register_objective
  from t5like.runs import TrainingResult as TrainingResult
  from t5like.runs import plan as plan
  from t5like.runs import train as train
  from t5like.training import optimizers as optimizers
  from t5like.training.loop import Hook as Hook

__version__ = "0.1.0"

# The public names, and the module that each comes from.
_MODULES = {
  "Evaluation": "t5like.evaluation",
  "Experiment": "t5like.experiments.experiment",
  "Hook": "t5like.training.loop",
  "Model": "t5like.inference",
  "Objective": "t5like.objectives",
  "RunError": "t5like.errors",
  "TrainingResult": "t5like.runs",
  "UserError": "t5like.errors",
  "evaluate": "t5like.evaluation",
  "finetuning": "t5like.finetuning",
  "load": "t5like.inference",
  "optimizers": "t5like.training.optimizers",
  "plan": "t5like.runs",
  "read_experiment": "t5like.experiments.reading",
  "register_objective": "t5like.objectives",
  "save_examples": "t5like.experiments.examples",
  "token_cache": "t5like.experiments.token_caches",
  "train": "t5like.runs",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
  if name not in _MODULES:
    raise AttributeError(f"module 't5like' has no attribute {name!r}")
  module = importlib.import_module(_MODULES[name])
  found = module if module.__name__.endswith(f".{name}") else getattr(module, name)
  globals()[name] = found
  return found


def __dir__() -> list[str]:
  return [*__all__, "__version__"]
