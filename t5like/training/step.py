"""One update: loss, gradients, optimizer."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from t5like import parallel
from t5like.kernels.cross_entropy import cross_entropy
from t5like.training.optimizers import Optimizer
from t5like.training.state import StateSpec, TrainState


@dataclasses.dataclass(frozen=True)
class LossSettings:
  z_loss: float = 1e-4
  label_smoothing: float = 0.0


def random_key(seed: jax.Array, step: jax.Array, purpose: str) -> jax.Array:
  """The key for one use of randomness in one step: restarting draws the same again."""
  key = jax.random.fold_in(jax.random.key(seed), step)
  return jax.random.fold_in(key, zlib.crc32(purpose.encode()))


def loss_and_metrics(
  outputs: Mapping[str, jax.Array], batch: Any, settings: LossSettings
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Mean loss over real target tokens, and sums that can be added up over batches and hosts.

  Where a batch has `labels` for whole rows, their mean loss is added, as BERT adds next-sentence prediction.
  """
  logits = outputs["logits"]
  side = "decoder" if "decoder_target_tokens" in batch else "encoder"
  targets, weights = batch[f"{side}_target_tokens"], batch[f"{side}_loss_weights"]
  loss, z_part = cross_entropy(logits, targets, settings.z_loss, settings.label_smoothing)
  total_weight = jnp.sum(weights)
  right = (jnp.argmax(logits, axis=-1).astype(targets.dtype) == targets).astype(jnp.float32)
  metrics = {
    "loss": jnp.sum(loss * weights),
    "z_loss": jnp.sum(z_part * weights),
    "accuracy": jnp.sum(right * weights),
    "target_tokens": total_weight,
  }
  mean = metrics["loss"] / jnp.maximum(total_weight, 1.0)
  if "labels" in batch:
    sentence_loss, _ = cross_entropy(outputs["nsp_logits"], batch["labels"], 0.0, 0.0)
    verdict = jnp.argmax(outputs["nsp_logits"], axis=-1).astype(batch["labels"].dtype)
    mean += jnp.mean(sentence_loss)
    metrics["sentence_loss"] = jnp.mean(sentence_loss)
    metrics["sentence_accuracy"] = jnp.mean((verdict == batch["labels"]).astype(jnp.float32))
  return mean, metrics


def train_step(
  model: nn.Module, optimizer: Optimizer, settings: LossSettings, state: TrainState, batch: Any
) -> tuple[TrainState, dict[str, jax.Array]]:
  def loss_of(params):
    rngs = {"dropout": random_key(state.seed, state.step, "dropout")}
    outputs = model.apply({"params": params}, batch, deterministic=False, rngs=rngs)
    return loss_and_metrics(outputs, batch, settings)

  gradients, metrics = jax.grad(loss_of, has_aux=True)(state.params)
  with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer counts
    updates, opt_state = optimizer.transformation.update(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
  metrics |= {
    "gradient_norm": optax.tree.norm(gradients),
    "parameter_norm": optax.tree.norm(params),
    "learning_rate": optimizer.learning_rate(state.step),
  }
  return state.replace(step=state.step + 1, params=params, opt_state=opt_state), metrics


def compile_train_step(
  model: nn.Module, optimizer: Optimizer, settings: LossSettings, spec: StateSpec, batch: Any, mesh: Mesh
) -> jax.stages.Compiled:
  """Compiles the step once, ahead of the loop: shardings in and out, the old state's memory reused."""

  def step(state, batch):
    return train_step(model, optimizer, settings, state, batch)

  rows = parallel.batch_sharding(mesh)
  jitted = jax.jit(
    step,
    in_shardings=(spec.shardings, rows),
    out_shardings=(spec.shardings, parallel.replicated(mesh)),
    donate_argnums=0,
  )
  shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)
  with parallel.sharding_context(mesh):
    return jitted.lower(spec.shapes, shapes).compile()


def keep_compiled_steps(folder: str | Path) -> None:
  """Keeps compiled programs in `folder`, so that a restarted run does not compile again."""
  jax.config.update("jax_compilation_cache_dir", str(Path(folder).expanduser()))
