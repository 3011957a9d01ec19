"""The run card of a training run."""

from __future__ import annotations

from pathlib import Path

import jax

from t5like import data, planning
from t5like.cli.compatibility import stack_lengths
from t5like.cli.experiment import Experiment
from t5like.objectives import Lengths
from t5like.planning.run_card import bytes_text, devices, large, versions
from t5like.training.state import StateSpec, parameter_count


def describe_run(
  experiment: Experiment,
  model_dir: Path,
  mesh: jax.sharding.Mesh,
  spec: StateSpec,
  lengths: Lengths,
  batches: data.CorpusBatches | data.ExampleBatches | None,
  initialisation: str,
) -> str:
  config = experiment.model.config
  rows = experiment.batch_size
  tokens = rows * (lengths.inputs + lengths.targets)
  flops = planning.train_step_flops(config, rows, **stack_lengths(experiment.model, lengths))
  first, last = (float(experiment.optimizer.learning_rate(jax.numpy.int32(s))) for s in (0, experiment.steps - 1))
  entries = {
    "versions": versions(),
    "devices": devices(mesh),
    "model": (
      f"{type(experiment.model).__name__}, {parameter_count(spec.shapes.params):,} parameters: "
      f"{config.num_encoder_layers}+{config.num_decoder_layers} layers, {config.embed_dim} wide, "
      f"{config.num_heads} heads x {config.head_dim}, mlp {config.mlp_dim}, compute in {config.compute_dtype}"
    ),
    "vocabulary": f"{experiment.vocabulary}, embedding of {config.vocab_size:,} rows",
    "data": _data_text(experiment, lengths, batches),
    "batch": (
      f"{rows} rows x ({lengths.inputs} inputs + {lengths.targets} targets) = {tokens:,} tokens a step, "
      f"{large(tokens * experiment.steps)} in {experiment.steps:,} steps"
    ),
    "FLOPs": (
      f"{large(flops, 'FLOP')} a step, {large(flops * experiment.steps, 'FLOP')} in all (model FLOPs, no recomputation)"
    ),
    "memory": _memory_text(experiment, spec, mesh, lengths),
    "optimizer": f"{experiment.optimizer.description}, learning rate {first:.3g} at first, {last:.3g} at the end",
    "seed": str(experiment.seed),
    "starts from": initialisation,
    "writes to": (
      f"{model_dir}  (checkpoint every {experiment.checkpoint_period:,} steps, {experiment.checkpoints_kept} kept)"
    ),
  }
  return planning.render_run_card(entries)


def _data_text(
  experiment: Experiment, lengths: Lengths, batches: data.CorpusBatches | data.ExampleBatches | None
) -> str:
  name = f"task {experiment.task} ({experiment.split})"
  if batches is None:
    return f"{name}: not tokenised yet; a run does that first"
  epochs = experiment.steps * experiment.batch_size / batches.rows_per_epoch
  passes = f"{epochs:.3g} passes in this run"
  if experiment.objective is None:
    return f"{name}: {batches.cache.examples:,} examples, one a row (not packed), {passes}"
  return (
    f"{name}: {batches.cache.tokens:,} tokens, objective {experiment.objective.name}\n"
    f"rows are full: {lengths.raw} tokens of running text each, {batches.rows_per_epoch:,} rows, {passes}"
  )


def _memory_text(experiment: Experiment, spec: StateSpec, mesh: jax.sharding.Mesh, lengths: Lengths) -> str:
  estimate = planning.estimate_memory(
    experiment.model.config,
    spec.shapes.params,
    spec.shardings.params,
    spec.shapes.opt_state,
    spec.shardings.opt_state,
    rows_per_device=experiment.batch_size // (mesh.shape["data"] * mesh.shape["fsdp"]),
    **stack_lengths(experiment.model, lengths),
  )
  parts = ("parameters", "optimizer", "gradients", "activations")
  return f"about {bytes_text(estimate.total)} a device: " + ", ".join(
    f"{part} {bytes_text(getattr(estimate, part))}" for part in parts
  )
