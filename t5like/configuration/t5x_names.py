"""T5X's gin names and ours: one table for error messages, `t5like convert gin` and gin/README.md."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class T5XName:
  """A macro, or a parameter as `Configurable.parameter`, without the modules before it."""

  theirs: str
  ours: str  # a gin name or an option of a command; "" if there is no equivalent
  note: str = ""

  @property
  def answer(self) -> str:
    """The headline of an error."""
    if not self.ours:
      return f"T5X's {self.theirs} has no equivalent here: {self.note}"
    if self.ours.startswith("--"):
      return f"T5X's {self.theirs} is the option {self.ours} here"
    return f"T5X's {self.theirs} is {self.ours} here"

  @property
  def is_option(self) -> bool:
    return self.ours.startswith("--")


_INIT_FROM = "a model directory, a T5X checkpoint or a Hugging Face folder; the optimizer starts fresh"
_STEPS = "counts the steps of this run only. T5X adds those of pre-training: its 1,020,000 after 1,000,000 is 20,000"
_CACHED = "token caches are built automatically; STREAM = True reads without one"
_SHUFFLED = "training data is always shuffled, with SEED"
_MESH = "with MESH.data = -1, which uses the remaining devices"
_RATE = "LEARNING_RATE = @constant_rate() or @inverse_square_root(), with @warmup() around it for linear_warmup"

MACROS = (
  T5XName("MIXTURE_OR_TASK_NAME", "TASK", "a task or mixture; t5like tasks list"),
  T5XName("MIXTURE_OR_TASK_MODULE", "TASK_MODULES", "a list: ['my.tasks']; the gin file does not import it"),
  T5XName("TASK_FEATURE_LENGTHS", "LENGTHS", "an objective needs only {'inputs': 512}"),
  T5XName("INITIAL_CHECKPOINT_PATH", "INIT_FROM", _INIT_FROM),
  T5XName("TRAIN_STEPS", "TRAIN_STEPS", _STEPS),
  T5XName("TRAIN_STEPS_RELATIVE", "TRAIN_STEPS", "always relative: the steps of this run"),
  T5XName("BATCH_SIZE", "BATCH_SIZE", "rows per step over all devices, as in T5X"),
  T5XName("DROPOUT_RATE", "DROPOUT_RATE", "required in T5X; here 0.1 in runs/finetune.gin, else the model file's"),
  T5XName("MODEL_DIR", "MODEL_DIR"),
  T5XName("MODEL", "MODEL", "a file of gin/models sets it: --gin_file=models/t5_1_1/base.gin"),
  T5XName("VOCABULARY", "VOCABULARY", "a name or a file, not an object: 't5', 'mt5', 'byte', 'my.model'"),
  T5XName("OPTIMIZER", "OPTIMIZER", "@adafactor(), or a file of gin/optimizers after the run file"),
  T5XName("RANDOM_SEED", "SEED", "0 by default: a run is always seeded"),
  T5XName("USE_HARDWARE_RNG", "", "random numbers are the same on every device"),
  T5XName("USE_CACHED_TASKS", "", _CACHED),
  T5XName("SHUFFLE_TRAIN_EXAMPLES", "", _SHUFFLED),
  T5XName("EVAL_PERIOD", "EVAL_PERIOD", "by decoding; EVAL_LOSS_PERIOD is the period of the loss, both on EVAL_SPLIT"),
  T5XName("EVAL_STEPS", "EVAL_LOSS_BATCHES", "of a corpus; a labeled task's split is evaluated completely"),
  T5XName("EVALUATOR_NUM_EXAMPLES", "EVAL_EXAMPLES", "0 instead of None: all"),
  T5XName("EVALUATOR_USE_MEMORY_CACHE", "", "evaluation reads a token cache"),
  T5XName("JSON_WRITE_N_RESULTS", "", "all answers are written to MODEL_DIR/predictions"),
  T5XName("Z_LOSS", "Z_LOSS", "no effect on heads for labels"),
  T5XName("LABEL_SMOOTHING", "LABEL_SMOOTHING"),
  T5XName("LOSS_NORMALIZING_FACTOR", "LOSS_NORMALIZER", "None: the number of real target tokens of a step"),
  T5XName("CHECKPOINT_PATH", "--model_dir", "of t5like eval; --model of t5like infer"),
  T5XName("EVAL_OUTPUT_DIR", "--out", "of t5like eval; by default MODEL_DIR"),
  T5XName("INFER_OUTPUT_DIR", "--output", "of t5like infer: a file of JSON lines"),
)

PARAMETERS = (
  T5XName("train.total_steps", "TRAIN_STEPS", "without the steps of pre-training"),
  T5XName("train.relative_steps", "TRAIN_STEPS"),
  T5XName("train.eval_period", "EVAL_PERIOD", "by decoding; EVAL_LOSS_PERIOD for the loss"),
  T5XName("train.eval_steps", "EVAL_LOSS_BATCHES"),
  T5XName("train.stats_period", "LOG_PERIOD"),
  T5XName("train.random_seed", "SEED"),
  T5XName("train.use_hardware_rng", "", "random numbers are the same on every device"),
  T5XName("train.gc_period", "", "not needed"),
  T5XName("train.actions", "EARLY_STOPPING.metric", "with EARLY_STOPPING.patience; NONFINITE is the policy for NaNs"),
  T5XName("train.inference_evaluator_cls", "EVAL_SPLIT", "the split to evaluate; '' for none"),
  T5XName("DatasetConfig.mixture_or_task_name", "TASK"),
  T5XName("DatasetConfig.task_feature_lengths", "LENGTHS"),
  T5XName("DatasetConfig.module", "TASK_MODULES", "a list"),
  T5XName("DatasetConfig.split", "train.split", "of train/; EVAL_SPLIT of train_eval/ and infer_eval/"),
  T5XName("DatasetConfig.batch_size", "BATCH_SIZE"),
  T5XName("DatasetConfig.pack", "PACK", "of runs/finetune.gin; train.pack elsewhere"),
  T5XName("PrefixLMFeatureConverter.loss_on_targets_only", "train.loss_on_inputs", "the opposite; not for prefix LMs"),
  T5XName("DatasetConfig.seed", "SEED", "one seed for data, noise, dropout and initialization"),
  T5XName("DatasetConfig.shuffle", "", _SHUFFLED),
  T5XName("DatasetConfig.use_cached", "", _CACHED),
  T5XName("DatasetConfig.use_custom_packing_ops", "", "rows are packed by the loader"),
  T5XName("PjitPartitioner.num_partitions", "MESH.tensor", _MESH),
  T5XName("PjitPartitioner.model_parallel_submesh", "MESH.tensor", "the product of the submesh"),
  T5XName("PjitPartitioner.logical_axis_rules", "MESH.preset", "a file of gin/meshes sets it"),
  T5XName("ModelBasedPjitPartitioner.num_partitions", "MESH.tensor", _MESH),
  T5XName("ModelBasedPjitPartitioner.model_parallel_submesh", "MESH.tensor", "the product of the submesh"),
  T5XName("SaveCheckpointConfig.period", "CHECKPOINT_PERIOD", "CHECKPOINT_MINUTES saves by the clock as well"),
  T5XName("SaveCheckpointConfig.keep", "CHECKPOINTS_KEPT", "instead of None: KEEP.every = CHECKPOINT_PERIOD"),
  T5XName("SaveCheckpointConfig.dtype", "PARAM_DTYPE", "checkpoints have the types of the parameters"),
  T5XName("SaveCheckpointConfig.save_dataset", "", "batches are a function of seed and step: nothing to save"),
  T5XName("RestoreCheckpointConfig.path", "INIT_FROM", "or RESTORE_FROM, for the optimizer and the step too"),
  T5XName("RestoreCheckpointConfig.mode", "", "uses a model directory's newest checkpoint, or the one named"),
  T5XName("RestoreCheckpointConfig.dtype", "PARAM_DTYPE", "narrower floats are widened"),
  T5XName("RestoreCheckpointConfig.strict", "RESTORE.allow_missing", "and RESTORE.ignore_extra: expressions"),
  T5XName("RestoreCheckpointConfig.assignment_map", "RESTORE.allow_missing", "variables cannot be renamed"),
  T5XName("CheckpointConfig.restore", "INIT_FROM", "None: random parameters"),
  T5XName("CheckpointConfig.save", "CHECKPOINT_PERIOD"),
  T5XName("Trainer.num_microbatches", "MICROBATCHES", "1 instead of None"),
  T5XName("Trainer.learning_rate_fn", "LEARNING_RATE", _RATE),
  T5XName("create_learning_rate_scheduler.factors", "LEARNING_RATE", _RATE),
  T5XName("create_learning_rate_scheduler.base_learning_rate", "FINETUNE_LEARNING_RATE", "inverse_square_root.scale"),
  T5XName("create_learning_rate_scheduler.warmup_steps", "WARMUP_STEPS", "of runs/pretrain.gin"),
  T5XName("Adafactor.decay_rate", "adafactor.decay_rate"),
  T5XName("Adafactor.clipping_threshold", "adafactor.clipping_threshold"),
  T5XName("Adafactor.multiply_by_parameter_scale", "adafactor.multiply_by_parameter_scale", "True or False"),
  T5XName("Adafactor.min_dim_size_to_factor", "adafactor.min_dim_size_to_factor"),
  T5XName("Adafactor.weight_decay_rate", "adafactor.weight_decay"),
  T5XName("Adafactor.global_norm_clip_threshold", "adafactor.clip_norm"),
  T5XName("Adafactor.step_offset", "", "the optimizer counts the updates of this run"),
  T5XName("Adafactor.logical_factor_rules", "", "the two largest axes of a variable are factored"),
  T5XName("EncoderDecoderModel.z_loss", "Z_LOSS"),
  T5XName("EncoderDecoderModel.label_smoothing", "LABEL_SMOOTHING"),
  T5XName("EncoderDecoderModel.loss_normalizing_factor", "LOSS_NORMALIZER"),
  T5XName("EncoderDecoderModel.decode_fn", "DECODING", "the method, temperature and top_k of evaluation in training"),
  T5XName("beam_search.alpha", "--length_penalty", "of eval and infer; DECODING for evaluation in training"),
  T5XName("temperature_sample.temperature", "--temperature", "of eval and infer; DECODING for evaluation in training"),
  T5XName("temperature_sample.topk", "--top_k", "of eval and infer; DECODING for evaluation in training"),
  T5XName("temperature_sample.topp", "--top_p", "of eval and infer; DECODING for evaluation in training"),
  T5XName("predict_batch_with_aux.num_decodes", "--beams", "of eval and infer; DECODING for evaluation in training"),
  T5XName("Evaluator.num_examples", "EVAL_EXAMPLES", "0 instead of None: all"),
  T5XName("Evaluator.logger_cls", "", "scores go to TensorBoard, metrics.jsonl and MODEL_DIR/predictions"),
  T5XName("Evaluator.use_memory_cache", "", "evaluation reads a token cache"),
  T5XName("JSONLogger.write_n_results", "", "all answers are written"),
  T5XName("SentencePieceVocabulary.sentencepiece_model_file", "VOCABULARY", "a name ('t5', 'mt5') or the file"),
  T5XName("T5Config.vocab_size", "VOCAB_SIZE"),
  T5XName("T5Config.emb_dim", "EMBED_DIM"),
  T5XName("T5Config.mlp_dim", "MLP_DIM"),
  T5XName("T5Config.num_heads", "NUM_HEADS"),
  T5XName("T5Config.head_dim", "HEAD_DIM"),
  T5XName("T5Config.num_encoder_layers", "NUM_ENCODER_LAYERS"),
  T5XName("T5Config.num_decoder_layers", "NUM_DECODER_LAYERS"),
  T5XName("T5Config.dropout_rate", "DROPOUT_RATE"),
  T5XName("T5Config.dtype", "COMPUTE_DTYPE"),
  T5XName("T5Config.scan_layers", "SCAN_LAYERS"),
  T5XName("T5Config.remat_policy", "REMAT", "'minimal' is 'dots' here"),
  T5XName("T5Config.mlp_activations", "TransformerConfig.activation", "('gelu', 'linear') also sets gated_mlp"),
  T5XName("T5Config.logits_via_embedding", "TransformerConfig.tie_embeddings", "with TransformerConfig.scale_logits"),
  T5XName("evaluate.output_dir", "--out", "of t5like eval"),
  T5XName("infer.mode", "--score", "of t5like infer, for 'score'; 'predict' is the default"),
  T5XName("infer.output_dir", "--output", "of t5like infer"),
  T5XName("infer.checkpoint_period", "", "a killed t5like infer resumes when started again"),
  T5XName("infer.num_shards", "", "start t5like infer on several hosts, or on parts of the input"),
  T5XName("infer.shard_id", "", "start t5like infer on several hosts, or on parts of the input"),
)
TABLE = {entry.theirs: entry for entry in (*MACROS, *PARAMETERS)}


def lookup(name: str) -> T5XName | None:
  """Returns the entry for a macro, or for `module.Configurable.parameter` with or without modules and scopes."""
  parts = name.split("/")[-1].split(".")
  return TABLE.get(".".join(parts[-2:])) if len(parts) > 1 else TABLE.get(name)


def entries_of_configurable(name: str) -> list[T5XName]:
  """Returns the entries for the parameters of a T5X configurable."""
  last = name.split("/")[-1].split(".")[-1]
  return [entry for entry in PARAMETERS if entry.theirs.split(".")[0] == last]


def markdown_table() -> str:
  """Returns the table of gin/README.md, with one line per name."""
  rows = [f"| `{e.theirs}` | {f'`{e.ours}`' if e.ours else '-'} | {e.note} |" for e in TABLE.values()]
  return "\n".join(["| T5X | t5like | |", "|---|---|---|", *rows])
