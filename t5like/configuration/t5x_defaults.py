"""T5X's own gin files: their t5like equivalents, and the values that they set."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

# The examples of `contrib/gpu` and `scalable_t5` have the same models.
_FAMILIES = {"t5_1_0": "t5", "t5_1_1": "t5_1_1", "mt5": "mt5", "byt5": "byt5"}
_SIZES = {"3B": "3b", "11B": "11b", "tiny": "small"}
_MODEL_FILE = re.compile(
  rf"(?:.*/)?(t5|scalable_t5)/({'|'.join(_FAMILIES)})/(small|base|large|xl|xxl|tiny|3B|11B)\.gin"
)
_DECODER_FILE = re.compile(r"(?:.*/)?decoder_only/(?:models/)?(base|large|xl|xxl)\.gin")
_RUN_FILE = re.compile(r"(?:.*/)?runs/(pretrain|finetune|eval|infer)\.gin")
_OTHER_MODELS = "contrib/moe/"
# The first folder of T5X's own files, in a file that includes them without "t5x/".
_FOLDERS = ("configs", "runs", "examples", "contrib", "t5", "scalable_t5", "decoder_only")
_TINY = {
  "emb_dim": 8, "num_heads": 4, "num_encoder_layers": 2, "num_decoder_layers": 2, "head_dim": 3, "mlp_dim": 16,
}  # fmt: skip

# Values set by T5X's run files, by the names of t5x_names.py with an optional scope.
RUN_VALUES: dict[str, dict[str, Any]] = {
  "pretrain": {
    "BATCH_SIZE": 128,
    "train.eval_period": 1000,
    "train.eval_steps": 20,
    "SaveCheckpointConfig.period": 1000,
    "SaveCheckpointConfig.keep": None,
    "RestoreCheckpointConfig.path": [],
    "create_learning_rate_scheduler.factors": "constant * rsqrt_decay",
    "create_learning_rate_scheduler.base_learning_rate": 1.0,
    "create_learning_rate_scheduler.warmup_steps": 10000,
    "train/DatasetConfig.pack": True,
    "train_eval/DatasetConfig.split": "validation",
  },
  "finetune": {
    "BATCH_SIZE": 128,
    "DROPOUT_RATE": 0.1,
    "EVAL_PERIOD": 1000,
    "EVAL_STEPS": 20,
    "SaveCheckpointConfig.period": 5000,
    "SaveCheckpointConfig.keep": None,
    "create_learning_rate_scheduler.factors": "constant",
    "create_learning_rate_scheduler.base_learning_rate": 0.001,
    "create_learning_rate_scheduler.warmup_steps": 1000,
    "train/DatasetConfig.pack": True,
    "infer_eval/DatasetConfig.split": "validation",
    "train_eval/DatasetConfig.split": "validation",
  },
  "eval": {"DatasetConfig.split": "test", "DatasetConfig.batch_size": 32},
  "infer": {"DatasetConfig.split": "test", "DatasetConfig.batch_size": 32},
}

# Equivalents of tasks and mixtures of the `t5` package.
_TASKS = (
  (r"c4_v\d+_(span_corruption|prefix_lm)", r"c4_\1"),
  (r"(glue_(?:cola|mnli|mrpc|qnli|qqp|rte|sst2|stsb|wnli|ax))_v002", r"\1"),
  (r"(super_glue_(?:boolq|cb|copa|multirc|record|rte|wic))_v102", r"\1"),
  (r"glue_v002_(?:proportional)", "glue"),
  (r"super_glue_v102_(?:proportional)", "super_glue"),
  (r"squad_v010_allanswers", "squad"),
  (r"cnn_dailymail_v002", "cnn_dailymail"),
  (r"wmt_t2t_ende_v003", "wmt_en_de"),
  (r"wmt15_enfr_v003", "wmt_en_fr"),
  (r"wmt16_enro_v003", "wmt_en_ro"),
)
# Our vocabularies, by a part of the path of a SentencePiece model.
VOCABULARIES = {"cc_all.32000": "t5", "mc4.250000": "mt5"}


def model_file(included: str) -> str | None:
  """Returns our file for a T5X model file, or None; its tiny models are our small ones with other sizes."""
  if match := _DECODER_FILE.fullmatch(included):
    return f"models/t5_1_1/{match[1]}.gin"
  match = None if _OTHER_MODELS in included else _MODEL_FILE.fullmatch(included)
  return f"models/{_FAMILIES[match[2]]}/{_SIZES.get(match[3], match[3])}.gin" if match else None


def is_in_t5x(included: str) -> bool:
  """Returns whether an included file is one of T5X's, by its path."""
  folders = PurePosixPath(included).parts[:-1]
  return "t5x" in folders or (bool(folders) and folders[0] in _FOLDERS)


def model_values(included: str) -> dict[str, Any]:
  """Returns the values that a T5X model file sets and ours does not."""
  if _DECODER_FILE.fullmatch(included):
    return {
      "DecoderOnlyModel.decode_fn": "temperature_sample",
      "temperature_sample.temperature": 1.0,
      "temperature_sample.topk": 40,
      "TransformerConfig.logits_via_embedding": True,
    }
  match = _MODEL_FILE.fullmatch(included)
  values = {f"T5Config.{field}": size for field, size in _TINY.items()} if match[3] == "tiny" else {}
  return values | ({"T5Config.scan_layers": True} if match[1] == "scalable_t5" else {})


def run_kind(included: str) -> str | None:
  """Returns 'pretrain', 'finetune', 'eval' or 'infer' for a T5X run file, else None."""
  match = None if _OTHER_MODELS in included else _RUN_FILE.fullmatch(included)
  return match[1] if match else None


def our_task(name: str) -> str | None:
  """Returns our name of a task of the `t5` package, or None."""
  for pattern, ours in _TASKS:
    if re.fullmatch(pattern, name):
      return re.sub(pattern, ours, name)
  return None
