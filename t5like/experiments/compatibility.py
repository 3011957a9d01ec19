"""Do a model, a vocabulary, a task and a checkpoint fit together?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax

from t5like import data, parallel, planning
from t5like.data.layouts import LAYOUTS
from t5like.errors import UserError
from t5like.experiments.experiment import Experiment
from t5like.models.config import TransformerConfig
from t5like.models.embedder import check_length
from t5like.objectives import CATALOGUE, Lengths, Objective, SpecialTokens
from t5like.vocabularies import Vocabulary

# A checkpoint may be used under other values of these: they change how a step is computed or how
# parameters first came to be, not what the parameters are.
_FREE_FIELDS = {
  "dropout_rate", "attention_dropout_rate", "mlp_dropout_rate", "final_dropout", "initializer", "initializer_stddev",
  "scale_residual_init", "compute_dtype", "logits_dtype", "remat", "attention_backend", "layer_loop",
}  # fmt: skip


def model_fingerprint(config: TransformerConfig, vocabulary: Vocabulary | None) -> dict[str, Any]:
  """What a checkpoint's parameters mean: the model's structure and the vocabulary, None if it is not known."""
  fields = {k: v for k, v in dataclasses.asdict(config).items() if k not in _FREE_FIELDS}
  return fields | {"vocabulary": vocabulary.fingerprint if vocabulary else None}


def check_vocabulary(config: TransformerConfig, name: str, vocabulary: Vocabulary) -> None:
  if vocabulary.vocab_size > config.vocab_size:
    raise UserError(
      f"the vocabulary {name!r} has {vocabulary.vocab_size} ids, the model's embedding {config.vocab_size} rows",
      try_=f"--gin.VOCAB_SIZE={-(-vocabulary.vocab_size // 128) * 128}, or the vocabulary the model was made for",
    )


def check_splits(config: TransformerConfig, mesh: jax.sharding.Mesh) -> None:
  """Every width that the mesh splits must divide by it."""
  splits = {"num_heads": "tensor", "mlp_dim": "tensor", "vocab_size": "tensor", "embed_dim": "fsdp"}
  for field, axis in splits.items():
    width, size = getattr(config, field), mesh.shape[axis]
    if width % size:
      raise parallel.MeshError(
        f"{field} = {width} cannot be split over the {axis!r} axis of size {size}",
        [{"data": -1, axis: math.gcd(width, size)}],
        mesh=parallel.describe_mesh(mesh),
      )


def check_layout(model: nn.Module, objective: Objective | None) -> None:
  """An encoder fills in masked text; the others read inputs and write targets."""
  name = type(model).__name__
  if model.batch_layout == "encoder":
    if objective is None:
      raise UserError(
        f"{name} is an encoder: text-to-text tasks need a decoder",
        expected=f"a model with {', '.join(LAYOUTS)} batches, such as --gin_file=models/t5/tiny.gin",
      )
    if objective.makes != "masked":
      raise UserError(f"{name} is an encoder, {objective.name} needs a decoder", try_=_objectives("masked", False))
  elif objective is not None and objective.makes == "masked":
    raise UserError(f"{objective.name} is for encoders, {name} has a decoder", try_=_objectives("pairs", True))
  elif objective is not None and model.batch_layout == "encoder_decoder" and not objective.lengths(512).inputs:
    raise UserError(
      f"{objective.name} leaves nothing for the encoder to read",
      try_="--gin_file=objectives/prefix_lm.gin, or a decoder: --gin_file=models/t5/architectures/lm.gin",
    )


def _objectives(makes: str, with_inputs: bool) -> str:
  """Files of objectives that would fit."""
  fitting = [n for n, o in CATALOGUE.items() if o.makes == makes and (o.lengths(512).inputs > 0 or not with_inputs)]
  return "--gin_file=objectives/X.gin with X one of " + ", ".join(fitting)


def stack_lengths(model: nn.Module, lengths: Lengths) -> dict[str, int]:
  """Tokens of a row in each of the model's stacks; 0 where it has none."""
  if model.batch_layout == "encoder_decoder":
    return {"encoder_length": lengths.inputs, "decoder_length": lengths.targets}
  if model.batch_layout == "encoder":
    return {"encoder_length": lengths.inputs, "decoder_length": 0}
  return {"encoder_length": 0, "decoder_length": lengths.inputs + lengths.targets}


def phase_flops(model: nn.Module, batch_size: int, lengths: Lengths) -> int:
  """Model FLOPs of a train step."""
  return planning.train_step_flops(model.config, batch_size, **stack_lengths(model, lengths))


def row_lengths(experiment: Experiment, given: Mapping[str, int], special: SpecialTokens) -> Lengths:
  """Lengths of a batch's rows: an objective computes its own targets' length."""
  inputs, targets = given["inputs"], given.get("targets")
  if experiment.objective is None:
    lengths = Lengths(raw=inputs, inputs=inputs, targets=targets)
  else:
    lengths = experiment.objective.lengths(inputs)
    if targets is not None:
      lengths = dataclasses.replace(lengths, targets=targets)  # as the paper cut or padded some rows
    experiment.objective.check(lengths, special)
  for length in stack_lengths(experiment.model, lengths).values():
    check_length(experiment.model.config, length)
  return lengths


def check_kind(experiment: Experiment, cache: data.TokenCache) -> None:
  """A corpus needs an objective, labeled examples have their own targets."""
  task = cache.manifest["description"]["task"]
  if cache.is_corpus and experiment.objective is None:
    raise UserError(
      f"task {task!r} is a corpus: it needs an objective",
      try_=f"--gin.TASK={task}_span_corruption, or --gin_file=objectives/span_corruption.gin",
    )
  size = cache.manifest["vocabulary"]["size"]
  if cache.is_finished and size > experiment.model.config.vocab_size:
    raise UserError(
      f"the ids of task {task!r} go up to {size - 1:,}, the model's embedding has "
      f"{experiment.model.config.vocab_size:,} rows",
      try_=f"--gin.VOCAB_SIZE={-(-size // 128) * 128}",
    )
  if experiment.model.batch_layout == "encoder_decoder" and "inputs" not in cache.features and not cache.is_corpus:
    raise UserError(f"task {task!r} has no inputs for the encoder to read", try_="a decoder, such as models/gpt2")
  if not cache.is_corpus and experiment.objective is not None and not experiment.mix:
    raise UserError(
      f"task {task!r} has inputs and targets of its own: it takes no objective",
      try_="--gin_file=runs/finetune.gin",
    )
