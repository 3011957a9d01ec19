"""Tiny T5, BERT and GPT models, and the losses of their first steps on a mesh.

    JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=8 PYTHONPATH=. python tests/parallel/tiny_runs.py

prints the largest differences between the losses of each preset and those of one device.
"""

import contextlib
import dataclasses
import functools
import os
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np
import optax
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh

from t5like import parallel
from t5like.data import HostShare
from t5like.models.bert import BERT
from t5like.models.config import TransformerConfig
from t5like.models.gpt import GPT
from t5like.models.t5 import T5
from t5like.training import optimizers
from t5like.training.optimizers import schedules
from t5like.training.state import StateSpec, TrainState, initial_state, state_spec
from t5like.training.step import LossSettings, compile_train_step

ROWS, LENGTH, VOCAB = 48, 13, 112  # no mesh axis divides the length
# All different, also after division by 2 or 4, so that shapes identify arrays in a compiled program.
_SIZES = dict(vocab_size=VOCAB, embed_dim=32, mlp_dim=80, num_heads=4, head_dim=12)
_BERT = dict(
  use_bias=True, norm="layer", norm_position="post", positions="learned", max_positions=16, activation="gelu_erf",
  embedding_norm=True, scale_logits=False, scale_attention=True, num_token_types=2, pooler=True, mlm_head=True,
  nsp_head=True, initializer="normal",
)  # fmt: skip
_GPT = dict(
  use_bias=True, norm="layer", positions="learned", max_positions=16, activation="gelu", scale_logits=False,
  scale_attention=True, initializer="normal",
)  # fmt: skip
# Eight fake devices under each preset.
MESHES = {
  "data_parallel": dict(data=8),
  "fsdp": dict(data=2, fsdp=4),
  "tensor": dict(data=2, tensor=4),
  "fsdp_tensor": dict(data=2, fsdp=2, tensor=2),
  "sequence": dict(data=2, fsdp=2, tensor=2),
}
ONE_DEVICE = (jax.devices()[0],)
MODELS = {
  "t5": T5(TransformerConfig(**_SIZES, num_encoder_layers=1, num_decoder_layers=1, dropout_rate=0.1)),
  "bert": BERT(TransformerConfig(**_SIZES, **_BERT, num_encoder_layers=1)),
  "gpt": GPT(TransformerConfig(**_SIZES, **_GPT, num_decoder_layers=1)),
}
# Plain gradient descent has no state, so that a step compiles faster. The sharding of optimizer states is tested with
# the optimizers.
OPTIMIZER = dataclasses.replace(optimizers.adamw(schedules.constant_rate(0.5)), transformation=optax.sgd(0.5))


def batch_for(name: str) -> dict[str, np.ndarray]:
  """Returns random tokens, some with weight 0: pairs with labels for BERT, packed rows for the others."""
  rng = np.random.default_rng(0)

  def tokens() -> np.ndarray:
    return rng.integers(2, VOCAB, (ROWS, LENGTH)).astype(np.int32)

  weights = (rng.random((ROWS, LENGTH)) < 0.7).astype(np.float32)
  if name == "bert":
    return {
      "encoder_input_tokens": tokens(),
      "encoder_target_tokens": tokens(),
      "encoder_loss_weights": weights,
      "encoder_token_types": rng.integers(0, 2, (ROWS, LENGTH)).astype(np.int32),
      "labels": rng.integers(0, 2, (ROWS,)).astype(np.int32),
    }
  decoder = {"decoder_input_tokens": tokens(), "decoder_target_tokens": tokens(), "decoder_loss_weights": weights}
  batch = decoder | _packing("decoder", rng)
  return batch | ({"encoder_input_tokens": tokens()} | _packing("encoder", rng) if name == "t5" else {})


def _packing(side: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
  """Packs two texts of random lengths into each row."""
  position = np.arange(LENGTH)[None, :]
  border = rng.integers(3, LENGTH - 3, (ROWS, 1))
  second = position >= border
  return {
    f"{side}_segment_ids": (1 + second).astype(np.int32),
    f"{side}_positions": np.where(second, position - border, position).astype(np.int32),
  }


@functools.cache
def first_state(name: str) -> TrainState:
  """Returns the initial state of all runs of a model, in host memory."""
  batch = batch_for(name)
  return jax.device_get(jax.jit(lambda: initial_state(MODELS[name], OPTIMIZER, batch, seed=0))())


class CompiledStep(NamedTuple):
  step: jax.stages.Compiled
  spec: StateSpec
  mesh: Mesh
  warnings: str  # stderr of the compiler


def compiled_step(
  name: str, axes: parallel.MeshAxes, devices: tuple | None = None, microbatches: int = 1
) -> CompiledStep:
  """Compiles a train step, once for all tests of a process."""
  return _compiled_step(name, axes, devices, microbatches)


@functools.cache
def _compiled_step(name: str, axes: parallel.MeshAxes, devices: tuple | None, microbatches: int) -> CompiledStep:
  """Compiles a train step; always called with all arguments, since `cache` distinguishes omitted defaults."""
  model, batch, mesh = MODELS[name], batch_for(name), parallel.make_mesh(axes, devices)
  # One device replicates nothing, and tests of several hosts compare losses: from the compilation cache.
  cached = mesh.size == 1 or jax.process_count() > 1
  captured = contextlib.nullcontext([""]) if cached else compiler_warnings()
  with parallel.use_preset(axes.preset), captured as warnings:
    spec = state_spec(model, OPTIMIZER, batch, mesh)
    step = compile_train_step(model, OPTIMIZER, LossSettings(microbatches=microbatches), spec, batch, mesh)
  return CompiledStep(step, spec, mesh, warnings[0])


@contextlib.contextmanager
def compiler_warnings() -> Iterator[list[str]]:
  """Captures the compiler's warnings, which C++ code writes to file descriptor 2.

  Disables the compilation cache, since cached programs have no warnings.
  """
  warnings = [""]
  level, cache_dir = jax.config.jax_logging_level, jax.config.jax_compilation_cache_dir
  jax.config.update("jax_logging_level", "WARNING")
  jax.config.update("jax_compilation_cache_dir", None)
  compilation_cache.reset_cache()
  stderr = os.dup(2)
  with tempfile.TemporaryFile() as file:
    os.dup2(file.fileno(), 2)
    try:
      yield warnings
    finally:
      os.dup2(stderr, 2)
      os.close(stderr)
      jax.config.update("jax_logging_level", level)
      jax.config.update("jax_compilation_cache_dir", cache_dir)
      compilation_cache.reset_cache()
      file.seek(0)
      warnings[0] = file.read().decode(errors="replace")


def losses(
  name: str, axes: parallel.MeshAxes, devices: tuple | None = None, steps: int = 4, microbatches: int = 1
) -> list[float]:
  """Returns the mean loss of each step. Every host trains on its rows of the batch."""
  run = compiled_step(name, axes, devices, microbatches)
  state = jax.device_put(first_state(name), run.spec.shardings)
  shards = parallel.batch_shards(run.mesh)
  rows = HostShare(shards.held, shards.total).rows(ROWS)
  batch = parallel.to_global_arrays({k: v[rows] for k, v in batch_for(name).items()}, run.mesh)
  values = []
  for _ in range(steps):
    state, metrics = run.step(state, batch)
    values.append(float(metrics["loss"]) / float(metrics["target_tokens"]))
  return values


def print_differences() -> None:
  """Prints the largest differences from one device, by model and preset."""
  print(f"{'':6}{'microbatches':14}" + "".join(f"{preset:>15}" for preset in MESHES))
  for name in MODELS:
    for microbatches in (1, 2):
      expected = losses(name, parallel.MeshAxes(), ONE_DEVICE, microbatches=microbatches)
      worst = [
        np.abs(np.subtract(losses(name, axes_of(preset), microbatches=microbatches), expected)).max()
        for preset in MESHES
      ]
      print(f"{name:6}{microbatches:<14}" + "".join(f"{difference:15.1e}" for difference in worst), flush=True)


def axes_of(preset: str) -> parallel.MeshAxes:
  return parallel.MeshAxes(**MESHES[preset], preset=preset)


if __name__ == "__main__":
  print_differences()
