"""Translates a T5X training configuration to a t5like gin file."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import PurePosixPath
from typing import Any

from t5like.configuration.statements import REQUIRED, ConfigurableReference, MacroReference, value_source
from t5like.configuration.t5x_defaults import VOCABULARIES, our_task
from t5like.configuration.t5x_files import T5XConfiguration
from t5like.configuration.t5x_names import lookup
from t5like.configuration.t5x_optimizers import (
  SCHEDULE_NAMES,
  call,
  set_constant,
  translate_decay,
  translate_optimizer,
  translate_own_rate,
)
from t5like.configuration.t5x_plumbing import PLUMBING_MODULES, is_plumbing

_REQUIRED = MacroReference(REQUIRED)
# Names with the same values on both sides.
SIZES = (
  "T5Config.vocab_size", "T5Config.emb_dim", "T5Config.mlp_dim", "T5Config.num_heads", "T5Config.head_dim",
  "T5Config.num_encoder_layers", "T5Config.num_decoder_layers",
)  # fmt: skip
_STRAIGHT = (
  *SIZES, "T5Config.dtype", "T5Config.scan_layers",
  "Adafactor.decay_rate", "Adafactor.clipping_threshold", "Adafactor.multiply_by_parameter_scale",
  "Adafactor.min_dim_size_to_factor", "Adafactor.weight_decay_rate", "Adafactor.global_norm_clip_threshold",
  "train.stats_period",
)  # fmt: skip
_REMAT = {"minimal": "dots", "full": "full", "none": "none", None: "none"}
_CONTINUES = "T5X continues at the checkpoint's step, here the schedule starts at 0"
_FULL_LM = re.compile(r"c4_v\d+_full_lm")
_CHECKPOINT = re.compile(r"checkpoint_(\d+)")


@dataclasses.dataclass
class Translation:
  """Our values in output order, comments for some of them, and the lines that could not be translated."""

  include: list[str]
  values: dict[str, Any] = dataclasses.field(default_factory=dict)
  comments: dict[str, str] = dataclasses.field(default_factory=dict)
  untranslated: list[str] = dataclasses.field(default_factory=list)

  def set(self, name: str, value: Any, comment: str = "") -> None:
    self.values[name] = value
    if comment:
      self.comments[name] = comment

  def gin_text(self, header: str) -> str:
    required = ["MODEL_DIR", *(name for name, value in self.values.items() if value == _REQUIRED)]
    header = f"{header}\n\nRequired: {', '.join(required)}."
    lines = [f"# {line}".rstrip() for line in header.split("\n")] + [""]
    lines += [f"include {name!r}" for name in self.include] + [""]
    for name, value in self.values.items():
      if name in self.comments:
        lines.append(f"# {self.comments[name]}")
      lines.append(f"{name} = {value_source(value)}")
    if self.untranslated:
      lines += ["", "# Not translated:", *(f"#   {' '.join(line.split())}" for line in self.untranslated)]
    return "\n".join(lines) + "\n"


def translate_training(source: T5XConfiguration) -> Translation:
  """Translates a configuration of T5X's train.py to a gin file for `t5like train`."""
  finetune = source.run == "finetune" or (source.run is None and source.has("INITIAL_CHECKPOINT_PATH"))
  run = "finetune" if finetune else "pretrain"
  result = Translation([source.model or _like_model(source), f"runs/{run}.gin"])
  start = _start(source)
  _data(source, result, finetune)
  _steps(source, result, start)
  if finetune and start is None and not _restores_nothing(source):
    result.set("INIT_FROM", _REQUIRED, "T5X's INITIAL_CHECKPOINT_PATH, which the file does not set")
  elif start is not None and source.is_decoder:
    result.set("INIT_FROM", _REQUIRED, f"T5X: {start!r}, a decoder, which from_t5x cannot read")
    result.untranslated.append(f"the checkpoint {start!r}  (T5X's decoders cannot be read; INIT_FROM is required)")
  elif start is not None or finetune:
    result.set("INIT_FROM", start)
  _model(source, result)
  _loss(source, result)
  rate = translate_optimizer(source, result) or source.get("Trainer.learning_rate_fn")
  if rate is None or str(getattr(rate, "name", "")).endswith("create_learning_rate_scheduler"):
    _learning_rate(source, result, finetune, continues=finetune or start is not None)
  else:
    translate_own_rate(rate, source, result, finetune)
  _evaluation(source, result, finetune)
  _checkpoints(source, result)
  _devices(source, result)
  for name in _STRAIGHT:
    if source.has(name) and _is_plain(value := source.get(name)):
      result.set(lookup(name).ours, value)
  result.untranslated += untranslated_lines(source)
  return result


def untranslated_lines(source: T5XConfiguration) -> list[str]:
  """Returns the lines that were not translated, with the reason."""
  lines = [f"{text}: the file was not found" for text in source.unread]
  for key, setting in source.left():
    plain = key.split("/")[-1]
    if is_plumbing(source, plain, setting.value):
      continue
    entry = lookup(plain)
    reason = "no equivalent in t5like"
    if key.startswith(("train_eval/", "infer_eval/")):
      reason = "evaluation uses the batch size, lengths and tasks of training, and one split"
    elif entry is not None:
      reason = f"{entry.ours} here; {entry.note}".rstrip("; ") if entry.ours else entry.note
    lines.append(f"{setting.source()}  ({reason})")
  return lines


def task_modules(source: T5XConfiguration, task_is_ours: bool) -> list[str]:
  """Returns the modules that register the file's tasks; those of the `t5` package only for tasks that are not ours."""
  given = source.first("MIXTURE_OR_TASK_MODULE", "train/DatasetConfig.module", "DatasetConfig.module")
  modules = [*source.modules, *([given] if isinstance(given, str) else [])]
  modules = [m for m in modules if m.split(".")[0] not in PLUMBING_MODULES]
  return [m for m in dict.fromkeys(modules) if not (task_is_ours and m.split(".")[0] == "t5")]


def _data(source: T5XConfiguration, result: Translation, finetune: bool) -> None:
  task = source.first("train/DatasetConfig.mixture_or_task_name", "MIXTURE_OR_TASK_NAME", default=_REQUIRED)
  ours = our_task(task) if isinstance(task, str) else None
  comment = f"T5X: {task}" if ours else ""
  if isinstance(task, str) and not ours:
    comment = "your own task, or one of the t5 package: TASK_MODULES registers it; `t5like tasks list` shows ours"
  if isinstance(task, str) and _FULL_LM.fullmatch(task) and not finetune:
    result.include.insert(1, "objectives/full_lm.gin")
    ours, comment = "c4", f"T5X: {task}; LENGTHS are those of a row"
  if ours == "c4_span_corruption" and not finetune:  # that of T5X: without the last sentinel of the paper
    result.include.insert(1, "objectives/span_corruption.gin")
    result.set("OBJECTIVE_VARIANT", "t5")
    ours = "c4"
  result.set("TASK", ours or task, " ".join(comment.split()))
  if modules := task_modules(source, bool(ours)):
    result.set("TASK_MODULES", modules)
  lengths = source.first("train/DatasetConfig.task_feature_lengths", "TASK_FEATURE_LENGTHS", default=_REQUIRED)
  if isinstance(lengths, dict) and result.include[1] == "objectives/full_lm.gin":
    lengths = {"inputs": lengths["targets"]} if "targets" in lengths else lengths
  result.set("LENGTHS", _REQUIRED if lengths is None else lengths)
  rows = source.first("train/DatasetConfig.batch_size", "BATCH_SIZE", default=128)
  result.set("BATCH_SIZE", rows if isinstance(rows, int) else _REQUIRED)
  seeds = ("train.random_seed", "RANDOM_SEED", "train/DatasetConfig.seed")
  seed = next((value for value in map(source.get, seeds) if isinstance(value, int)), None)
  if seed is not None:
    result.set("SEED", seed)
  for name in seeds:
    source.ignore_if_any(name, seed, None)
  if (split := source.get("train/DatasetConfig.split", "train")) != "train":
    result.set("train.split", split)
  if not (isinstance(task, str) and "span_corruption" in task):
    result.set("PACK" if finetune else "train.pack", bool(source.get("train/DatasetConfig.pack", True)))
  for name in ("train", "train_eval", "infer_eval"):
    source.mark(*(f"{name}/DatasetConfig.{field}" for field in ("module", "use_cached", "pack")))
    # One task and one set of lengths here; T5X's None are the lengths of the data.
    source.ignore_if_any(f"{name}/DatasetConfig.task_feature_lengths", lengths, None)
  source.ignore_if_any("train_eval/DatasetConfig.mixture_or_task_name", task)
  source.ignore_if_any("train/DatasetConfig.shuffle", True)
  source.ignore_if_any("SHUFFLE_TRAIN_EXAMPLES", True)
  source.mark("USE_CACHED_TASKS")
  for name in ("train_eval", "infer_eval"):  # evaluations are in the order of the data
    source.mark(f"{name}/DatasetConfig.seed", f"{name}/DatasetConfig.shuffle")


def _restores_nothing(source: T5XConfiguration) -> bool:
  if source.get("CheckpointConfig.restore", "given") is None:
    return True
  return source.has("INITIAL_CHECKPOINT_PATH") and not source.get("INITIAL_CHECKPOINT_PATH")


def _start(source: T5XConfiguration) -> str | None:
  source.mark("INITIAL_CHECKPOINT_PATH")
  path = source.get("RestoreCheckpointConfig.path") or source.get("INITIAL_CHECKPOINT_PATH")
  if isinstance(path, list | tuple):
    path = path[0] if path else None
  return None if _restores_nothing(source) else path


def _steps(source: T5XConfiguration, result: Translation, start: str | None) -> None:
  steps = source.first("train.total_steps", "TRAIN_STEPS", default=_REQUIRED)
  relative = source.first("train.relative_steps", "TRAIN_STEPS_RELATIVE")
  before = _CHECKPOINT.fullmatch(PurePosixPath(start).name) if start else None
  if isinstance(relative, int):
    result.set("TRAIN_STEPS", relative)
  elif isinstance(steps, int) and before and steps > int(before[1]):
    own = steps - int(before[1])
    result.set("TRAIN_STEPS", own, f"T5X: {steps}, which includes the {before[1]} steps of pre-training")
  elif isinstance(steps, int) and start:
    result.set(
      "TRAIN_STEPS", steps, "the steps of this run: T5X's number includes those of the checkpoint, subtract them"
    )
  else:
    result.set("TRAIN_STEPS", steps)


def _model(source: T5XConfiguration, result: Translation) -> None:
  if source.is_decoder:
    reads_prefix = source.get("EncoderDecoderModel.inputs_bidirectional_attention", False) is True
    result.include.insert(1, f"models/t5/architectures/{'prefix_lm' if reads_prefix else 'lm'}.gin")
    if reads_prefix:
      reason = "here relative positions have buckets in both directions, as in the paper's prefix LM; in T5X's in one"
      result.untranslated.append(f"inputs_bidirectional_attention = True  ({reason})")
    if not reads_prefix and source.get("PrefixLMFeatureConverter.loss_on_targets_only", True) is False:
      result.set("train.loss_on_inputs", True)
  dropout = source.first("T5Config.dropout_rate", "DROPOUT_RATE")
  if isinstance(dropout, int | float):
    result.set("DROPOUT_RATE", dropout)
  activations = source.get("T5Config.mlp_activations")
  if isinstance(activations, list | tuple) and activations:
    result.set("TransformerConfig.activation", activations[0])
    result.set("TransformerConfig.gated_mlp", len(activations) == 2)
  if isinstance(tied := source.get("T5Config.logits_via_embedding"), bool):
    result.set("TransformerConfig.tie_embeddings", tied)
    result.set("TransformerConfig.scale_logits", tied)
  if (remat := source.get("T5Config.remat_policy", "absent")) in _REMAT:
    result.set("REMAT", _REMAT[remat])
  file = source.get("SentencePieceVocabulary.sentencepiece_model_file")
  vocabulary = source.get("VOCABULARY")
  if isinstance(file, str):
    result.set("VOCABULARY", next((ours for part, ours in VOCABULARIES.items() if part in file), file))
  elif isinstance(vocabulary, ConfigurableReference) and vocabulary.name.endswith("ByteVocabulary"):
    result.set("VOCABULARY", "byte")


def _like_model(source: T5XConfiguration) -> str:
  """Returns a similar model file, for a configuration that defines its own model."""
  return "models/t5/base.gin" if source.get("T5Config.logits_via_embedding") else "models/t5_1_1/base.gin"


def _loss(source: T5XConfiguration, result: Translation) -> None:
  for field, macro in (("z_loss", "Z_LOSS"), ("label_smoothing", "LABEL_SMOOTHING")):
    value = source.first(f"EncoderDecoderModel.{field}", macro)
    if isinstance(value, int | float):
      result.set(macro, value)
  factor = source.first("EncoderDecoderModel.loss_normalizing_factor", "LOSS_NORMALIZING_FACTOR")
  if isinstance(factor, int | float):
    result.set("LOSS_NORMALIZER", factor)
  elif isinstance(factor, str) and "NUM_REAL_TARGET_TOKENS" not in factor:
    result.untranslated.append(f"loss_normalizing_factor = {factor!r}  (LOSS_NORMALIZER is a number or None here)")


def _learning_rate(source: T5XConfiguration, result: Translation, finetune: bool, continues: bool) -> None:
  name = "create_learning_rate_scheduler"
  factors = str(source.get(f"{name}.factors", "constant * linear_warmup * rsqrt_decay"))
  rate = source.get(f"{name}.base_learning_rate", 0.5)
  steps = source.get(f"{name}.warmup_steps", 1000)
  kinds = sorted(factor.strip() for factor in factors.split("*"))
  if translate_decay(kinds, rate, steps, source, result, finetune):
    if continues:
      result.comments["LEARNING_RATE"] = "; ".join([*filter(None, [result.comments.get("LEARNING_RATE")]), _CONTINUES])
    return
  warm = "linear_warmup" in kinds
  kinds = [kind for kind in kinds if kind != "linear_warmup"]
  if kinds == ["constant"]:
    schedule = "constant_rate"
    set_constant(result, rate, finetune)
  elif kinds in (["constant", "rsqrt_decay"], ["constant", "rsqrt_normalized_decay"]):
    schedule = "inverse_square_root"
    scale = rate * math.sqrt(steps) if "rsqrt_normalized_decay" in kinds else rate
    macro = "inverse_square_root.warmup_steps" if finetune else "WARMUP_STEPS"
    result.set(macro, steps, _CONTINUES if continues else "")
    if scale != 1.0:
      result.set("inverse_square_root.scale", scale)
  else:
    choice = f"choose a t5like schedule: {SCHEDULE_NAMES}"
    result.set("LEARNING_RATE", _REQUIRED, f"T5X: factors = {factors!r}; {choice}")
    result.untranslated.append(f"{name}.factors = {factors!r}  (LEARNING_RATE is required)")
    return
  if warm:
    result.set("LEARNING_RATE", call("warmup"))
    result.set("warmup.schedule", call(schedule))
    result.set("warmup.steps", steps)
  elif (schedule == "constant_rate") != finetune:
    result.set("LEARNING_RATE", call(schedule))


def _evaluation(source: T5XConfiguration, result: Translation, finetune: bool) -> None:
  period = source.first("train.eval_period", "EVAL_PERIOD", default=1000)
  steps = source.first("train.eval_steps", "EVAL_STEPS", default=20)
  decoded = source.get("train.infer_eval_dataset_cfg", "default" if finetune else None) is not None
  measured = source.get("train.train_eval_dataset_cfg", "default") is not None
  split = source.get("infer_eval/DatasetConfig.split") if decoded else None
  split = split or source.get("train_eval/DatasetConfig.split", "validation")
  source.ignore_if_any("train_eval/DatasetConfig.split", split)  # one split here
  if not decoded and not measured:
    result.set("EVAL_SPLIT", "")
    return
  if decoded:
    _decoding(source, result)
  names = ("infer_eval/DatasetConfig.mixture_or_task_name", "MIXTURE_OR_TASK_NAME")
  task = source.first(*names) if decoded else None
  ours = (our_task(task) or task) if isinstance(task, str) else None
  if ours is not None and ours != result.values["TASK"]:
    result.set("EVAL_TASKS", [ours])
  result.set("EVAL_SPLIT", split)
  result.set("EVAL_PERIOD", period if decoded else 0)
  if measured:
    result.set("EVAL_LOSS_PERIOD", period)
    result.set("EVAL_LOSS_BATCHES", steps)
  if isinstance(examples := source.first("Evaluator.num_examples", "EVALUATOR_NUM_EXAMPLES"), int):
    result.set("EVAL_EXAMPLES", examples)


def _decoding(source: T5XConfiguration, result: Translation) -> None:
  """Sets how evaluations decode: T5X's beam search, which is greedy with one beam, or its sampling."""
  given = source.get("EncoderDecoderModel.decode_fn", "beam_search")
  decode = getattr(given, "name", given).split(".")[-1]
  settings = {}
  if decode == "beam_search" and (beams := source.get("predict_batch_with_aux.num_decodes", 1)) != 1:
    settings = {"beams": beams, "length_penalty": source.get("beam_search.alpha", 0.6)}
  elif decode == "temperature_sample":
    names = (("temperature", "temperature", 1.0), ("top_k", "topk", 1), ("top_p", "topp", 0.0))  # with T5X's defaults
    found = {ours: source.get(f"temperature_sample.{theirs}", default) for ours, theirs, default in names}
    if found["top_k"] != 1 and found["temperature"]:  # otherwise it is greedy
      settings = {name: value for name, value in found.items() if value}
  elif decode != "beam_search":
    line = source.settings["EncoderDecoderModel.decode_fn"].source()
    result.untranslated.append(f"{line}  (DECODING here)")
  if settings:
    result.set("DECODING", settings)


def _checkpoints(source: T5XConfiguration, result: Translation) -> None:
  period = source.get("SaveCheckpointConfig.period")
  if isinstance(period, int):
    result.set("CHECKPOINT_PERIOD", period)
    keep = source.get("SaveCheckpointConfig.keep")
    if isinstance(keep, int):
      result.set("CHECKPOINTS_KEPT", keep)
    else:
      result.set("KEEP.every", period, "T5X keeps all checkpoints; without this line the last 3 are kept")


def _devices(source: T5XConfiguration, result: Translation) -> None:
  if (partitions := model_partitions(source)) > 1:
    result.set("MESH.tensor", partitions)
  if isinstance(parts := source.get("Trainer.num_microbatches"), int) and parts > 0:
    result.set("MICROBATCHES", parts)


def model_partitions(source: T5XConfiguration) -> int:
  """Returns the number of devices over which T5X splits the model."""
  for partitioner in ("PjitPartitioner", "ModelBasedPjitPartitioner"):
    submesh = source.get(f"{partitioner}.model_parallel_submesh")
    count = source.get(f"{partitioner}.num_partitions")
    if isinstance(submesh, list | tuple) and all(isinstance(n, int) for n in submesh):
      return math.prod(submesh)
    if isinstance(count, int):
      return count
  return 1


def _is_plain(value: Any) -> bool:
  return value is None or isinstance(value, bool | int | float | str)
