"""The lines of a T5X gin file that only wire T5X's own objects together, and need no translation."""

from __future__ import annotations

import sys
from typing import Any

from t5like.configuration.statements import REQUIRED, ConfigurableReference, MacroReference
from t5like.configuration.t5x_files import T5XConfiguration

# Modules with T5X's configurables; other imports of a file register tasks.
PLUMBING_MODULES = {
  "__gin__", "t5x", "seqio", "optax", "flax", "jax", "flaxformer", "clu", *sys.stdlib_module_names, "__main__"
}  # fmt: skip
# Parameters that only wire T5X's objects together, unless the objects are the user's.
_PLUMBING = {
  "MODEL", "MODEL_DIR", "OPTIMIZER", "train.model", "train.model_dir", "train.train_dataset_cfg",
  "train.train_eval_dataset_cfg", "train.infer_eval_dataset_cfg", "train.checkpoint_cfg", "train.partitioner",
  "train.trainer_cls", "train.summarize_config_fn", "train.inference_evaluator_cls", "train.relative_steps",
  "Transformer.config", "DecoderWrapper.config", "EncoderDecoderModel.module", "EncoderDecoderModel.input_vocabulary",
  "EncoderDecoderModel.output_vocabulary", "EncoderDecoderModel.vocabulary", "EncoderDecoderModel.optimizer_def",
  "CheckpointConfig.save", "Trainer.learning_rate_fn", "PjitPartitioner.logical_axis_rules", "evaluate.model",
  "evaluate.dataset_cfg", "evaluate.partitioner", "evaluate.restore_checkpoint_cfg",
  "evaluate.inference_evaluator_cls", "infer.model", "infer.dataset_cfg", "infer.partitioner",
  "infer.restore_checkpoint_cfg", "RestoreCheckpointConfig.mode", "Adafactor.logical_factor_rules",
  "Adafactor.step_offset", "Evaluator.logger_cls",
}  # fmt: skip
# T5X's objects, and the scopes of its run files.
_OBJECTS = {
  "EncoderDecoderModel", "DecoderOnlyModel", "Transformer", "DecoderWrapper", "T5Config", "TransformerConfig",
  "DatasetConfig", "CheckpointConfig", "SaveCheckpointConfig", "RestoreCheckpointConfig", "PjitPartitioner",
  "ModelBasedPjitPartitioner", "Trainer", "Evaluator", "Adafactor", "SentencePieceVocabulary", "summarize_gin_config",
  "create_learning_rate_scheduler", "standard_logical_axis_rules", "standard_logical_factor_rules",
  "PyLoggingLogger", "TensorBoardLogger", "JSONLogger",
}  # fmt: skip
_SCOPES = {"", "train", "train_eval", "infer_eval"}


def is_plumbing(source: T5XConfiguration, name: str, value: Any) -> bool:
  """Returns whether a line changes nothing, because it is set to what T5X's own files set it to."""
  if value == MacroReference(REQUIRED):
    return True
  parts = value if isinstance(value, list | tuple) else [value]
  return name in _PLUMBING and all(_is_t5xs(source, part) for part in parts)


def _is_t5xs(source: T5XConfiguration, value: Any) -> bool:
  if not isinstance(value, ConfigurableReference):
    return True
  scope = value.source.lstrip("@").rpartition("/")[0]
  parts = value.name.split(".")
  modules = {module.split(".")[0]: module for module in source.modules} | source.imported
  module = modules.get(parts[0], parts[0] if len(parts) > 2 else "t5x")  # utils.DatasetConfig may need no import
  return scope in _SCOPES and parts[-1] in _OBJECTS and module.split(".")[0] in PLUMBING_MODULES
