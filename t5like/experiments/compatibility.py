"""Checks that a model, a vocabulary, a task and a checkpoint are compatible."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import Mesh

from t5like import data, parallel
from t5like.errors import UserError
from t5like.experiments.experiment import Experiment
from t5like.experiments.heads import check_fits
from t5like.finetuning.distillation import WithTeacher
from t5like.models.config import TransformerConfig
from t5like.models.embedder import check_length
from t5like.models.heads import WithHead
from t5like.models.recurrent import RecurrentConfig
from t5like.objectives import CATALOGUE, Lengths, Objective, SpecialTokens
from t5like.objectives.worked_examples import check_output
from t5like.planning.flops import train_step_flops
from t5like.vocabularies import SpelledWords, Vocabulary

# A checkpoint may be used with different values of these: they affect how a step is computed or how
# parameters are initialized, not what the parameters mean.
_FREE_FIELDS = {
  "dropout_rate", "attention_dropout_rate", "mlp_dropout_rate", "final_dropout", "initializer", "initializer_stddev",
  "scale_residual_init", "compute_dtype", "logits_dtype", "remat", "attention_backend", "layer_loop",
  "expert_capacity", "balance_loss", "router_z_loss",
  # Of recurrent models.
  "embedding_dropout", "input_dropout", "hidden_dropout", "weight_dropout", "output_dropout", "dropout",
  "activation_penalty", "temporal_penalty",
}  # fmt: skip
# Fields that earlier checkpoints do not have. Their defaults are what the code did before.
LATER_FIELDS = {
  "padding_id": 0,
  "position_offset": 0,
  "embedding_dim": None,
  "layer_groups": None,
  "discriminator_head": False,
  "use_key_bias": True,
  "relative_norm": False,
  "share_position_projections": False,
  "convolution_width": 0,
  "positions_per_stack": False,
  "start_id": None,
  "opening_id": None,
  "logits_bias": False,
  "num_kv_heads": None,
  "qk_norm": False,
  "attention_window": None,
  "rotary_scaling": "default",
  "rotary_factor": 1.0,
  "rotary_low_factor": 1.0,
  "rotary_high_factor": 4.0,
  "rotary_original_length": 8192,
  "embedding_projection": "sum",
  "shared_stacks": "all",
  "layer_signal": False,
  "residual": "plain",
  "tie_inputs": True,
  "softmax_mixtures": 0,
  "softmax_clusters": "",
  "synthesizer": "none",
  "num_experts": 0,
  "experts_per_token": 1,
}


def model_fingerprint(config: TransformerConfig, vocabulary: Vocabulary | None) -> dict[str, Any]:
  """Returns what defines the meaning of parameters: the model's structure and the vocabulary (None if unknown)."""
  fields = {k: v for k, v in dataclasses.asdict(config).items() if k not in _FREE_FIELDS}
  fields = {k: v for k, v in fields.items() if k not in LATER_FIELDS or v != LATER_FIELDS[k]}
  fields = {k: [*map(list, v)] if isinstance(v, tuple) else v for k, v in fields.items()}  # as JSON stores them
  return fields | {"vocabulary": vocabulary.fingerprint if vocabulary else None}


def fits_embedding(config: TransformerConfig, vocabulary: Vocabulary) -> bool:
  """Whether the embedding has a row for every id. A decoder may lack that of the mask, as bart-large-cnn does."""
  if isinstance(vocabulary, SpelledWords):  # for an ELMo without output
    return not getattr(config, "has_output", True)
  missing = set(range(config.vocab_size, vocabulary.vocab_size))
  return not missing or (config.num_decoder_layers > 0 and missing == {vocabulary.mask_id})


def check_vocabulary(config: TransformerConfig, name: str, vocabulary: Vocabulary) -> None:
  """Raises UserError for a vocabulary that the model cannot be trained with."""
  if isinstance(vocabulary, SpelledWords):
    raise UserError(
      f"the vocabulary {name!r} has no ids for a token cache: it is for embeddings of any words",
      try_="--gin.VOCABULARY=words.txt: one word per line, with <S>, </S> and <UNK>",
    )
  if not fits_embedding(config, vocabulary):
    raise UserError(
      f"the vocabulary {name!r} has {vocabulary.vocab_size} ids, but the model's embedding {config.vocab_size} rows",
      try_=f"--gin.VOCAB_SIZE={-(-vocabulary.vocab_size // 128) * 128}, or the model's own vocabulary",
    )


def check_splits(config: TransformerConfig | RecurrentConfig, mesh: jax.sharding.Mesh) -> None:
  """Checks that every width sharded by the mesh is divisible by the axis size."""
  splits = {
    "num_heads": "tensor",
    "kv_heads": "tensor",
    "mlp_dim": "tensor",
    "vocab_size": "tensor",
    "embed_dim": "fsdp",
    "embedding_width": "fsdp",
  }
  if isinstance(config, RecurrentConfig):
    splits = {"hidden_dim": "tensor", "vocab_size": "tensor", "embed_dim": "fsdp"}
  elif "expert" in mesh.shape:
    splits["num_experts"] = "expert"
  for field, axis in splits.items():
    width, size = getattr(config, field), mesh.shape[axis]
    if width % size:
      raise parallel.MeshError(
        f"{field} = {width} is not divisible by the size {size} of the {axis!r} axis",
        [{"data": -1, axis: math.gcd(width, size)}],
        mesh=parallel.describe_mesh(mesh),
      )


def fitting_mesh(
  given: parallel.MeshAxes | None, own: parallel.MeshAxes, config: TransformerConfig
) -> tuple[Mesh, str | None]:
  """Builds the requested mesh; else the run's own if it fits these devices, else plain data parallelism."""
  axes = own if given is None else given
  try:
    mesh = parallel.make_mesh(axes)
    check_splits(config, mesh)
    return mesh, axes.preset
  except UserError:
    if given is not None:
      raise
  return parallel.make_mesh(parallel.MeshAxes()), None


def check_output_layer(model: nn.Module) -> None:
  """Raises UserError for a model without the layer that predicts tokens, such as ELECTRA's discriminator."""
  name, remedy = type(model).__name__, ""
  if not getattr(model.config, "has_output", True):
    remedy = "--gin.HAS_OUTPUT=True"
  elif model.batch_layout == "encoder" and not model.config.mlm_head:
    remedy = "--gin.TransformerConfig.mlm_head=True"
    if model.config.discriminator_head:
      remedy = "--gin_file=objectives/electra.gin, after the file of the model"
  if remedy:
    raise UserError(f"this {name} has no output layer to train", try_=f"{remedy}, or a head: --gin.HEAD=task")


def check_layout(model: nn.Module, objective: Objective | None) -> None:
  """Checks that the model supports the objective: encoders need masked text, others inputs and targets."""
  name = type(model).__name__
  if isinstance(model, WithHead):
    return  # the head and its task are checked by heads.py
  if model.batch_layout == "encoder" and objective is None:
    raise UserError(
      f"{name} is an encoder: text-to-text tasks need a decoder",
      expected="an encoder-decoder or a decoder, such as --gin_file=models/t5/tiny.gin",
      try_="--gin.HEAD=task and a task with labels, such as --gin.TASK=glue_sst2_classification",
    )
  check_output_layer(model)
  if model.batch_layout == "encoder":
    if objective.labels_rows and not model.config.nsp_head:
      raise UserError(
        f"{name} has no head for pairs of sentences, which {objective.name} predicts",
        try_="an objective without them, such as --gin_file=objectives/bert_mlm.gin; "
        "or --gin.TransformerConfig.nsp_head=True --gin.TransformerConfig.pooler=True",
      )
    if objective.makes != "masked":
      raise UserError(f"{name} is an encoder, but {objective.name} needs a decoder", try_=_objectives("masked", False))
  elif objective is not None and objective.makes == "masked":
    raise UserError(f"{objective.name} is for encoders, but {name} has a decoder", try_=_objectives("pairs", True))
  elif objective is not None and model.batch_layout == "encoder_decoder" and not objective.lengths(512).inputs:
    raise UserError(
      f"{objective.name} has no inputs for the encoder",
      try_="--gin_file=objectives/prefix_lm.gin, or a decoder: --gin_file=models/t5/architectures/lm.gin",
    )


def check_carried(experiment: Experiment) -> None:
  """Checks that a run can carry a model's state from batch to batch: all batches have the same rows of one corpus."""
  if not experiment.carries_state:
    if hasattr(experiment.model, "initial_carry") and experiment.objective is not None:
      raise UserError(
        f"{type(experiment.model).__name__} is trained on running text, and {experiment.objective.name} is not that",
        try_="--gin_file=objectives/causal_lm.gin",
      )
    return
  name = type(experiment.model).__name__
  for option, value, expected in (
    ("MICROBATCHES", experiment.microbatches > 1, 1),
    ("PHASES", bool(experiment.phases), []),
    ("MIX", bool(experiment.mix), {}),
    ("STREAM", experiment.stream, False),
    ("DISTILLATION", experiment.distillation is not None, None),
  ):
    if value:
      raise UserError(
        f"{name} carries its state from one batch to the next, which {option} does not support",
        try_=f"--gin.{option}={expected}",
      )


def _objectives(makes: str, with_inputs: bool) -> str:
  """Suggests gin files of compatible objectives."""
  names = [n for n, o in CATALOGUE.items() if o.makes == makes and (o.lengths(512).inputs > 0 or not with_inputs)]
  return "--gin_file=objectives/X.gin with X one of " + ", ".join(names)


def stack_lengths(model: nn.Module, lengths: Lengths) -> dict[str, int]:
  """Returns the tokens of a row in the model's encoder and decoder; 0 for one it does not have."""
  if isinstance(model, WithHead):
    return {f"{stack}_length": tokens for stack, tokens in model.tokens_by_stack(lengths.inputs).items()}
  if model.batch_layout == "encoder_decoder":
    return {"encoder_length": lengths.inputs, "decoder_length": lengths.targets}
  if model.batch_layout == "encoder":
    return {"encoder_length": lengths.inputs, "decoder_length": 0}
  return {"encoder_length": 0, "decoder_length": lengths.inputs + lengths.targets}


def row_tokens(model: nn.Module, lengths: Lengths) -> int:
  """Returns the tokens of a row of a batch, in all stacks and for all choices."""
  return sum(stack_lengths(model, lengths).values()) * _texts_per_row(model)


def _texts_per_row(model: nn.Module) -> int:
  return model.texts_per_row if isinstance(model, WithHead) else 1


def phase_flops(model: nn.Module, batch_size: int, lengths: Lengths) -> int:
  """Returns the model FLOPs of a train step; of a teacher, those of the forward pass."""
  if isinstance(model, WithTeacher):
    return sum(phase_flops(m, batch_size, lengths) // n for m, n in ((model.student, 1), (model.teacher, 3)))
  if isinstance(model, WithHead):
    # A decoder's output projection runs only for the auxiliary loss.
    has_output = bool(model.head.lm_loss_weight)
    rows = batch_size * _texts_per_row(model)
    return train_step_flops(model, rows, **stack_lengths(model, lengths), has_output=has_output)
  return train_step_flops(model, batch_size, **stack_lengths(model, lengths))


def row_lengths(experiment: Experiment, given: Mapping[str, int], special: SpecialTokens) -> Lengths:
  """Returns the lengths of a batch's rows; an objective computes its targets' length."""
  inputs, targets = given["inputs"], given.get("targets")
  if experiment.objective is None:
    lengths = Lengths(raw=inputs, inputs=inputs, targets=0 if experiment.has_head else targets)
  else:
    around = len(special.before_inputs) + len(special.after_inputs)
    lengths = experiment.objective.lengths(inputs - around)
    if not type(experiment.objective).__module__.startswith("t5like."):
      check_output(experiment.objective, lengths, special)
    more = {"inputs": around, "targets": len(special.before_targets)}
    lengths = dataclasses.replace(lengths, **{name: getattr(lengths, name) + n for name, n in more.items()})
    if targets is not None:
      lengths = dataclasses.replace(lengths, targets=targets)  # as in some of the paper's runs
    experiment.objective.check(lengths, special)
  stacks = [lengths.inputs] if experiment.has_head else stack_lengths(experiment.model, lengths).values()
  for length in stacks:
    check_length(experiment.model.config, length)
  return lengths


def check_kind(experiment: Experiment, cache: data.TokenCache) -> None:
  """Checks that a task fits the experiment: a corpus needs an objective, labeled examples have their own targets."""
  task = cache.manifest["description"]["task"]
  if experiment.has_head:
    check_fits(experiment.model.head, data.LabelForm.of(cache), task)
    return
  if cache.is_corpus and experiment.objective is None:
    raise UserError(
      f"task {task!r} is a corpus and needs an objective",
      try_=f"--gin.TASK={task}_span_corruption, or --gin_file=objectives/span_corruption.gin",
    )
  size = cache.manifest["vocabulary"]["size"]
  if cache.is_finished and size > experiment.model.config.vocab_size:
    raise UserError(
      f"the ids of task {task!r} go up to {size - 1:,}, but the model's embedding has "
      f"{experiment.model.config.vocab_size:,} rows",
      try_=f"--gin.VOCAB_SIZE={-(-size // 128) * 128}",
    )
  if experiment.model.batch_layout == "encoder_decoder" and "inputs" not in cache.features and not cache.is_corpus:
    raise UserError(f"task {task!r} has no inputs for the encoder", try_="a decoder, such as models/gpt2")
  if not cache.is_corpus and experiment.objective is not None and not experiment.mix:
    raise UserError(
      f"task {task!r} has its own inputs and targets and takes no objective",
      try_="--gin_file=runs/finetune.gin",
    )
