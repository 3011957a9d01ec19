"""The speed of a train step: time, tokens/s, model FLOP/s, share of this machine's matrix-product ceiling, memory.

Batches are random tokens, parameters float32, dropout as configured, the optimizer included; compilation is timed
separately.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from t5like.bench.kernels import table
from t5like.bench.step import OurStep, Subject, matrix_ceiling, measure_in_turns, model_settings
from t5like.errors import UserError

if TYPE_CHECKING:  # help must not wait for jax
  import flax.linen as nn

  from t5like.finetuning import Trainable
  from t5like.training.optimizers import Optimizer

_MASKED_SHARE = 0.15
_PREDICTED_SHARE = 0.16  # only masked positions are predicted
_ACCELERATORS = ("/dev/nvidiactl", "/dev/accel0", "/dev/vfio/0", "/dev/kfd")
_CPU_ROWS = 8  # a step of T5's 128 rows of 512 tokens takes minutes there


@dataclasses.dataclass(frozen=True)
class TrainBench:
  """Settings of the benchmark: the model of gin files, and the sizes of a step."""

  gin_files: Sequence[str]  # a file of gin/models, and others after it
  overrides: Sequence[tuple[str, str]] = ()
  search_paths: Sequence[str] = ()
  batch_size: int | None = None  # None: from the gin files, at most 8 on a CPU
  inputs: int | None = None  # tokens per row; None: from the gin files
  targets: int | None = None  # of an encoder-decoder; None: those of span corruption
  packed: bool = False  # rows of several examples, separated by segment ids
  dtype: str | None = None  # of the computation; None: bfloat16, or float32 on a CPU
  backend: str = "auto"  # of attention
  dropout: float | None = None  # rate; None: from the gin files
  optimizer: str = "adafactor"
  steps: int = 30
  seconds: float = 60.0  # run fewer steps if they would take longer
  peer: bool = False  # measure Hugging Face's model too, eager and compiled
  peer_python: str | None = None  # an interpreter that has torch and transformers; None: this one
  profiled: bool = False  # the last steps run under JAX's profiler


@dataclasses.dataclass(frozen=True)
class Workload:
  """A model and the batch sizes of its train step."""

  model: nn.Module
  rows: int
  lengths: dict[str, int]
  dtype: str
  deterministic: bool
  microbatches: int
  trainable: Trainable  # what trains: TRAINABLE of the gin files


def measure_train(settings: TrainBench, say: Callable[[str], None] = lambda line: None) -> list[dict[str, Any]]:
  """Returns a result per subject, ours last: {"name", "step_seconds", "tokens_per_second", ...} or {"name", "error"}.

  say: receives lines of progress.
  """
  work = read_workload(settings)
  batch = make_batch(work.model, work.rows, work.lengths, settings.packed)
  ours = OurStep(
    work.model,
    optimizer(settings.optimizer),
    batch,
    settings.profiled,
    work.deterministic,
    work.trainable,
    work.microbatches,
  )
  subjects = [*(_peers(settings.peer_python, work) if settings.peer else ()), ours]
  # In turns on a CPU. Elsewhere one after the other, ours last: jax keeps the memory that it has allocated.
  groups = [subjects] if _on_cpu() else [[subject] for subject in subjects]
  results = [result for group in groups for result in measure_in_turns(group, settings.steps, settings.seconds, say)]
  ceiling = matrix_ceiling(work.dtype)
  share = next((result["flops_share"] for result in results if "flops_share" in result), 1.0)
  for result in results:
    if "step_seconds" in result:
      result["dropout"] = work.model.config.dropout_rate
      result |= rates(work.model, work.rows, work.lengths, result["step_seconds"], ceiling, share)
  return results


def _peers(python: str | None, work: Workload) -> list[Subject]:
  from t5like.bench.peer import PeerStep, peer_fields

  fields = peer_fields(work.model)
  return [
    PeerStep(
      fields,
      work.model.batch_layout,
      work.rows,
      work.lengths,
      work.dtype,
      compiled,
      python,
      _peer_method(work.trainable),
    )
    for compiled in (False, True)
  ]


def _peer_method(trainable: Trainable) -> dict[str, Any] | None:
  """Returns peft's configuration of a method: LoRA on its default targets, or a prompt; None: everything trains."""
  from t5like.finetuning.methods import LoRA, PromptTuning

  if isinstance(trainable, LoRA):
    return {"kind": "LoraConfig", "r": trainable.rank, "lora_alpha": trainable.alpha}
  if isinstance(trainable, PromptTuning):
    tokens = {"num_virtual_tokens": trainable.length, "num_transformer_submodules": 1}
    return {"kind": "PromptTuningConfig", **tokens}
  if trainable.tunes:
    raise UserError(f"the peer has no {type(trainable).__name__}", try_="without --peer")
  return None


def _on_cpu() -> bool:
  """Returns whether there is no accelerator, without jax, which would allocate the memory that a peer needs."""
  if os.environ.get("JAX_PLATFORMS") == "cpu":
    return True
  return not any(Path(device).exists() for device in _ACCELERATORS)


def read_workload(settings: TrainBench) -> Workload:
  """Reads the model from the gin files, which also provide settings that are None."""
  from t5like.experiments.compatibility import check_output_layer
  from t5like.experiments.reading import read_model
  from t5like.objectives import CATALOGUE

  dtype = settings.dtype or ("float32" if _on_cpu() else "bfloat16")
  # A run file binds the model; its other settings do not matter here.
  fixed = model_settings(dtype, settings.backend)
  if settings.dropout is not None:
    fixed.append(("DROPOUT_RATE", repr(settings.dropout)))
  overrides = [("train.objective", "@span_corruption()"), *fixed, *settings.overrides]
  experiment = read_model(["runs/pretrain.gin", *settings.gin_files], overrides, settings.search_paths)
  lengths = {"inputs": experiment.lengths["inputs"] if settings.inputs is None else settings.inputs}
  if experiment.model.batch_layout == "encoder_decoder":
    default = CATALOGUE["span_corruption"].lengths(max(lengths["inputs"], 1)).targets
    lengths["targets"] = default if settings.targets is None else settings.targets
  model = experiment.model
  check_output_layer(model)
  if model.batch_layout == "encoder":
    model = model.clone(predicted_share=_PREDICTED_SHARE)
  rows = min(experiment.batch_size, _CPU_ROWS) if _on_cpu() else experiment.batch_size
  rows = rows if settings.batch_size is None else settings.batch_size
  for name, value in {"batch_size": rows, **lengths}.items():
    if value < 1:
      raise UserError(f"invalid --{name}: {value}", expected="at least 1")
  if settings.seconds <= 0:
    raise UserError(f"invalid --seconds: {settings.seconds:g}", expected="above 0")
  return Workload(model, rows, lengths, dtype, experiment.deterministic, experiment.microbatches, experiment.trainable)


def stack_lengths(layout: str, lengths: Mapping[str, int]) -> dict[str, int]:
  """Returns the tokens of a row in each stack; 0 for a stack that the model lacks."""
  if layout == "encoder_decoder":
    return {"encoder_length": lengths["inputs"], "decoder_length": lengths["targets"]}
  side = "encoder" if layout == "encoder" else "decoder"
  return {"encoder_length": 0, "decoder_length": 0} | {f"{side}_length": lengths["inputs"]}


def make_batch(model: nn.Module, rows: int, lengths: Mapping[str, int], packed: bool = False) -> dict[str, np.ndarray]:
  """Returns a batch of random tokens without padding; packed rows contain four examples."""
  rng = np.random.default_rng(0)
  layout = model.batch_layout

  def tokens(length):
    return rng.integers(2, model.config.vocab_size, (rows, length), dtype=np.int32)

  batch = {}
  for side, length in stack_lengths(layout, lengths).items():
    if not length:
      continue
    side = side.removesuffix("_length")
    batch[f"{side}_input_tokens"] = tokens(length)
    if side == "decoder" or layout == "encoder":
      batch[f"{side}_target_tokens"] = tokens(length)
      batch[f"{side}_loss_weights"] = np.ones((rows, length), np.float32)
    if packed:
      segments = np.minimum(np.arange(length) * 4 // length, 3)
      starts = np.searchsorted(segments, segments)
      batch[f"{side}_segment_ids"] = np.tile((segments + 1).astype(np.int32), (rows, 1))
      batch[f"{side}_positions"] = np.tile((np.arange(length) - starts).astype(np.int32), (rows, 1))
  if layout == "encoder":
    length = lengths["inputs"]
    masked = np.argsort(rng.random((rows, length)), axis=1) < max(1, round(_MASKED_SHARE * length))
    batch["encoder_loss_weights"] = masked.astype(np.float32)
    batch["encoder_token_types"] = np.zeros((rows, length), np.int32)
  if layout == "prefix_lm":
    batch["decoder_causal_attention"] = np.tile(np.arange(lengths["inputs"]) < lengths["inputs"] // 2, (rows, 1)) * 1
  return batch


def optimizer(name: str) -> Optimizer:
  from t5like.training import optimizers

  return getattr(optimizers, name)(1e-3)


def rates(
  model: nn.Module, rows: int, lengths: Mapping[str, int], seconds: float, ceiling: float, share: float = 1.0
) -> dict[str, float]:
  """Returns the speed of a step whose FLOPs are a share of those of a step that trains everything."""
  from t5like import planning

  flops = share * planning.train_step_flops(model, rows, **stack_lengths(model.batch_layout, lengths))
  return {
    "tokens_per_second": rows * sum(lengths.values()) / seconds,
    "model_flops_per_second": flops / seconds,
    "share_of_ceiling": flops / seconds / ceiling,
    "ceiling_flops_per_second": ceiling,
  }


def describe(result: Mapping[str, Any], kernels: int = 0) -> str:
  """Formats a result, with the `kernels` most expensive kernels if it was profiled."""
  from t5like.console import memory_size

  if "error" in result:
    return f"{result['name']}: {result['error']}"
  lines = [
    f"{result['name']}: {1e3 * result['step_seconds']:.1f} ms per step (spread {result['spread']:.1%}), "
    f"{result['tokens_per_second']:,.0f} tokens/s, {result['model_flops_per_second'] / 1e12:.4g} model TFLOP/s, "
    f"{result['share_of_ceiling']:.1%} of {result['ceiling_flops_per_second'] / 1e12:.4g}",
    f"  {result['device']}, {result['optimizer']}, dropout {result['dropout']:g}",
  ]
  if "trains" in result:
    lines.append(f"  trains {result['trains']}; base {memory_size(result['base_bytes'])}")
  if result["memory_bytes"]:
    lines.append(f"  memory {memory_size(result['memory_bytes'])} per device")
  lines.append(f"  compiled in {result['compile_seconds']:.1f} s")
  if "attention" in result:
    lines.append("  attention " + result["attention"].replace("\n", "\n            "))
  if "layers" in result:
    lines.append(f"  layers {result['layers']}")
  if "kernels" in result:
    lines.append(table(result["kernels"], kernels))
  return "\n".join(lines)


def compare(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
  """Yields a sentence for each peer that was measured."""
  *peers, ours = results
  for peer in peers:
    if "step_seconds" in peer and "step_seconds" in ours:
      yield f"t5like is {peer['step_seconds'] / ours['step_seconds']:.2f} times as fast as {peer['name']}"
