"""How fast a train step is: time, tokens/s, model FLOP/s, share of this machine's matrix-product ceiling, memory.

t5like bench train --model=t5_1_1/base
t5like bench train --model=gpt2/medium --batch_size=32 --inputs=1024 --peer
t5like bench train --model=t5_1_1/base --packed --json

Batches are random tokens, parameters float32, dropout off, the optimizer included; compilation is timed apart.
Tokens count inputs and targets. Model FLOPs are those of planning/flops.py: matrix products once forward, twice
backward, attention in full. Memory is what the compiled step takes on one device, its state included.
With --peer, Hugging Face's model of the same sizes trains on the same device first, eager and compiled.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from t5like.cli.gin_flags import add_gin_arguments
from t5like.errors import UserError

if TYPE_CHECKING:  # help must not wait for jax
  import flax.linen as nn

  from t5like.training.optimizers import Optimizer

_WINDOWS = 3
_MASKED_SHARE = 0.15
_PREDICTED_SHARE = 0.16  # only masked positions are predicted
OPTIMIZERS = ("adafactor", "adamw")


def configure(parser: argparse.ArgumentParser) -> None:
  add_gin_arguments(parser)
  parser.add_argument("--model", help="a file of gin/models, such as t5_1_1/base, gpt2/medium or bert/large")
  parser.add_argument("--batch_size", type=int, help="rows of a step (default: the model file's)")
  parser.add_argument("--inputs", type=int, help="input tokens of a row (default: the model file's)")
  parser.add_argument("--targets", type=int, default=114, help="target tokens of an encoder-decoder (default: 114)")
  parser.add_argument("--packed", action="store_true", help="rows of several examples, kept apart by segment ids")
  parser.add_argument("--dtype", default="bfloat16", help="of the computation (default: bfloat16)")
  parser.add_argument("--backend", default="auto", help="attention back end (default: auto)")
  parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adafactor", help="(default: adafactor)")
  parser.add_argument("--steps", type=int, default=30, help="timed steps (default: 30)")
  parser.add_argument("--peer", action="store_true", help="Hugging Face's model beside it (torch, transformers)")
  parser.add_argument("--json", action="store_true", help="one JSON object a line instead of text")


def run(args: argparse.Namespace) -> int:
  if args.steps < _WINDOWS:
    raise UserError(f"--steps={args.steps} is too few", expected=f"at least {_WINDOWS}")
  model, lengths, rows = _model_and_sizes(args)
  peers = []
  if args.peer:
    from t5like.cli.bench_peer import measure_in_a_process

    # First, and in a process of its own: jax keeps the memory it has once taken.
    peers = [
      measure_in_a_process(model.config, model.batch_layout, rows, lengths, args.dtype, args.steps, compiled)
      for compiled in (False, True)
    ]
  results = [
    *peers,
    measure(model, optimizer(args.optimizer), make_batch(model, rows, lengths, args.packed), args.steps),
  ]
  ceiling = matrix_ceiling(args.dtype)
  for result in results:
    if "step_seconds" in result:
      result |= _rates(model, rows, lengths, result["step_seconds"], ceiling)
    print(json.dumps(result) if args.json else _text(result), flush=True)
  return 0


def _model_and_sizes(args: argparse.Namespace) -> tuple[nn.Module, dict[str, int], int]:
  from t5like import configuration
  from t5like.cli.gin_flags import register_configurables

  files = [f"models/{args.model.removesuffix('.gin')}.gin"] if args.model else []
  if not files and not args.gin_file:
    raise UserError("which model?", try_="t5like bench train --model=t5_1_1/base")
  register_configurables()
  # A run file binds the model; what else it asks for has no part in a measurement.
  unused = [("MODEL_DIR", "unused"), ("TASK", "''"), ("INIT_FROM", "None")]
  fixed = [("DROPOUT_RATE", "0.0"), ("COMPUTE_DTYPE", args.dtype), ("ATTENTION_BACKEND", args.backend)]
  overrides = [*unused, *fixed, *args.gin_overrides]
  configuration.load([*files, *args.gin_file, "runs/finetune.gin"], overrides, args.gin_search_paths)
  experiment = configuration.build("train")
  lengths = {"inputs": args.inputs or experiment.lengths["inputs"]}
  if experiment.model.batch_layout == "encoder_decoder":
    lengths["targets"] = args.targets
  model = experiment.model
  if model.batch_layout == "encoder":
    model = model.clone(predicted_share=_PREDICTED_SHARE)
  rows = experiment.batch_size if args.batch_size is None else args.batch_size
  for name, value in {"batch_size": rows, **lengths}.items():
    if value < 1:
      raise UserError(f"--{name}={value} cannot work", expected="a whole number of at least 1")
  return model, lengths, rows


def stack_lengths(layout: str, lengths: Mapping[str, int]) -> dict[str, int]:
  """The tokens of a row in each stack; 0 where the model has none."""
  if layout == "encoder_decoder":
    return {"encoder_length": lengths["inputs"], "decoder_length": lengths["targets"]}
  side = "encoder" if layout == "encoder" else "decoder"
  return {"encoder_length": 0, "decoder_length": 0} | {f"{side}_length": lengths["inputs"]}


def make_batch(model: nn.Module, rows: int, lengths: Mapping[str, int], packed: bool = False) -> dict[str, np.ndarray]:
  """Random tokens without padding; packed rows hold four examples."""
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


def measure(model: nn.Module, optimizer: Optimizer, batch: Mapping[str, np.ndarray], steps: int) -> dict[str, Any]:
  """Compiles the step that `t5like train` runs, on all devices here, and times it."""
  import jax

  from t5like import parallel
  from t5like.models.attention import describe_backend
  from t5like.training.state import create_state, state_spec
  from t5like.training.step import LossSettings, compile_train_step

  mesh = parallel.make_mesh(parallel.MeshAxes())
  parallel.check_batch(len(next(iter(batch.values()))), mesh, "--batch_size")
  spec = state_spec(model, optimizer, batch, mesh)
  started = time.perf_counter()
  step = compile_train_step(model, optimizer, LossSettings(), spec, batch, mesh)
  compile_seconds = time.perf_counter() - started
  state = create_state(model, optimizer, batch, 0, spec)
  batch = jax.device_put(batch, parallel.batch_sharding(mesh))

  losses, times = [], []
  for window in range(_WINDOWS + 1):
    count = 3 if window == 0 else steps // _WINDOWS
    started = time.perf_counter()
    for _ in range(count):
      state, metrics = step(state, batch)
    jax.block_until_ready((state, metrics))
    if window:
      times.append((time.perf_counter() - started) / count)
    losses.append(float(metrics["loss"] / metrics["target_tokens"]))
  lengths = {f"{side}_length": batch[f"{side}_input_tokens"].shape[1] for side in _sides(batch)}
  return {
    "name": "t5like",
    "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
    "attention": describe_backend(model.config, **lengths),
    "optimizer": optimizer.description,
    "compile_seconds": compile_seconds,
    "step_seconds": statistics.median(times),
    "spread": max(times) / min(times) - 1.0,
    "memory_bytes": _memory(step),
    "losses": losses,
  }


def _sides(batch: Mapping[str, Any]) -> list[str]:
  return [side for side in ("encoder", "decoder") if f"{side}_input_tokens" in batch]


def _memory(step: Any) -> int | None:
  """Arguments, results that do not reuse them, and temporaries of the compiled step on one device."""
  analysis = step.memory_analysis()
  if analysis is None:
    return None
  results = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
  return analysis.argument_size_in_bytes + results + analysis.temp_size_in_bytes


def matrix_ceiling(dtype: str) -> float:
  """FLOP/s of one large product of random matrices, on all devices together."""
  import jax
  import jax.numpy as jnp

  size = 1024 if jax.default_backend() == "cpu" else 8192
  keys = jax.random.split(jax.random.key(0))
  x, y = (jax.random.normal(k, (size, size), jnp.dtype(dtype)) for k in keys)
  multiply = jax.jit(lambda x, y: x @ y)
  multiply(x, y).block_until_ready()
  repeats, times = 20, []
  for _ in range(_WINDOWS):
    started = time.perf_counter()
    for _ in range(repeats):
      out = multiply(x, y)
    out.block_until_ready()
    times.append((time.perf_counter() - started) / repeats)
  devices = 1 if jax.default_backend() == "cpu" else jax.device_count()
  return devices * 2 * size**3 / min(times)


def _rates(model: nn.Module, rows: int, lengths: Mapping[str, int], seconds: float, ceiling: float) -> dict[str, float]:
  from t5like import planning

  flops = planning.train_step_flops(model.config, rows, **stack_lengths(model.batch_layout, lengths))
  return {
    "tokens_per_second": rows * sum(lengths.values()) / seconds,
    "model_flops_per_second": flops / seconds,
    "share_of_ceiling": flops / seconds / ceiling,
    "ceiling_flops_per_second": ceiling,
  }


def _text(result: Mapping[str, Any]) -> str:
  from t5like.planning.run_card import bytes_text

  if "error" in result:
    return f"{result['name']}: {result['error']}"
  lines = [
    f"{result['name']}: {1e3 * result['step_seconds']:.1f} ms a step (spread {result['spread']:.1%}), "
    f"{result['tokens_per_second']:,.0f} tokens/s, {result['model_flops_per_second'] / 1e12:.4g} model TFLOP/s, "
    f"{result['share_of_ceiling']:.1%} of {result['ceiling_flops_per_second'] / 1e12:.4g}",
    f"  {result['device']}, {result['optimizer']}",
  ]
  if result["memory_bytes"]:
    lines.append(f"  memory {bytes_text(result['memory_bytes'])} a device")
  lines.append(f"  compiled in {result['compile_seconds']:.1f} s")
  if "attention" in result:
    lines.append("  attention " + result["attention"].replace("\n", "\n            "))
  return "\n".join(lines)
