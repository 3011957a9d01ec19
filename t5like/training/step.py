"""The train step (loss, gradients, update) and the evaluation step (loss only)."""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from t5like import parallel
from t5like.kernels.hashing import HASHED
from t5like.kernels.platform import compiler_options, deterministic_kernels, target_platform
from t5like.training.losses import LossSettings, divisors, evaluation_sums, loss_and_metrics
from t5like.training.microbatches import (
  check_microbatches,
  join_rows,
  split_rows,
  sum_cached_gradients,
  sum_gradients,
  sum_over_microbatches,
)
from t5like.training.optimizers import Optimizer
from t5like.training.optimizers.rules import path_text
from t5like.training.optimizers.selection import Selection
from t5like.training.optimizers.updates import choose_in_few_kernels, global_norm, is_stacked, square_sums
from t5like.training.stacking import stacked_batch_sharding, stacked_spec, stacked_step
from t5like.training.state import StateSpec, TrainState

# (model, optimizer, settings, state, batch) -> (the next state, metrics): `train_step` or a replacement.
StepFunction = Callable[[nn.Module, Optimizer, LossSettings, TrainState, Any], tuple[TrainState, dict[str, Any]]]


def random_key(seed: jax.Array, step: jax.Array, purpose: str, microbatch: jax.Array | None = None) -> jax.Array:
  """Returns the key for one purpose in one step, so that a restarted run draws the same values."""
  key = jax.random.fold_in(jax.random.key(seed, impl=HASHED), step)
  key = jax.random.fold_in(key, zlib.crc32(purpose.encode()))
  # Computed once. XLA for CPUs would inline the hashes in every dropout: XLNet took minutes to compile.
  key = jax.random.wrap_key_data(jax.lax.optimization_barrier(jax.random.key_data(key)), impl=HASHED)
  return key if microbatch is None else jax.random.fold_in(key, microbatch)


def loss_and_gradients(
  model: nn.Module, settings: LossSettings, state: TrainState, batch: Any, selection: Selection | None = None
) -> tuple[jax.Array, dict[str, jax.Array], Any]:
  """Returns loss, metrics and gradients of the batch, accumulated over its microbatches.

  A model with a custom head has a method `loss` with the signature of `loss_and_metrics`, and optionally `divisors`.
  If it `compares_rows`, its loss is that of the complete batch for any number of microbatches. A model that adds losses
  to that of its tokens has `auxiliary_counts`; one that draws more than dropout names its `random_purposes`.
  One that carries state from batch to batch takes `carry` and returns the next one as output, here a metric.
  Gradients are of the `selection` that trains, None for all parameters. Frozen ones are constants; the backward
  pass goes through them only if something trained comes before.
  """
  divide_by = getattr(model, "divisors", divisors)(batch, settings)
  if hasattr(model, "auxiliary_counts"):
    divide_by = divide_by._replace(auxiliary=model.auxiliary_counts(batch))
  purposes = ("dropout", *getattr(model, "random_purposes", ()))
  loss = getattr(model, "loss", loss_and_metrics)
  take = selection.take if selection else lambda params: params
  carried = {} if state.carry is None else {"carry": state.carry}

  def outputs_of(trained, params, part, microbatch=None):
    rngs = {purpose: random_key(state.seed, state.step, purpose, microbatch) for purpose in purposes}
    params = selection.put(params, trained) if selection else trained
    return model.apply({"params": params}, part, deterministic=False, rngs=rngs, **carried)

  def loss_of(trained, params, part, microbatch=None):
    outputs = outputs_of(trained, params, part, microbatch)
    value, metrics = loss(outputs, part, settings, divide_by)
    return value, metrics | ({"carry": outputs["carry"]} if carried else {})

  def gradients_of(microbatch, part):
    params = state.params
    if microbatch is not None:
      # Keeps the compiler from gathering all sharded parameters ahead of the loop.
      params, microbatch = jax.lax.optimization_barrier((params, microbatch))
    numbers, gradients = jax.value_and_grad(loss_of, has_aux=True)(take(params), params, part, microbatch)
    return gradients, numbers

  if settings.microbatches == 1:
    gradients, (value, metrics) = gradients_of(None, batch)
  elif getattr(model, "compares_rows", False):
    gradients, (value, metrics) = sum_cached_gradients(
      lambda trained, microbatch, part: outputs_of(trained, state.params, part, microbatch),
      lambda outputs: loss(outputs, batch, settings, divide_by),
      batch,
      settings.microbatches,
      take(state.params),
    )
  else:
    gradients, (value, metrics) = sum_gradients(gradients_of, batch, settings.microbatches, take(state.params))
  return value, metrics, gradients


def train_step(
  model: nn.Module, optimizer: Optimizer, settings: LossSettings, state: TrainState, batch: Any
) -> tuple[TrainState, dict[str, Any]]:
  """Returns the next state and the metrics of this step."""
  selection = optimizer.selection
  loss, metrics, gradients = loss_and_gradients(model, settings, state, batch, selection)
  carry = metrics.pop("carry", None)
  gradient_norm = global_norm(gradients, together=True)
  finite = jnp.isfinite(loss) & jnp.isfinite(gradient_norm)

  def update(gradients, params, opt_state):
    with jax.numpy_dtype_promotion("standard"):  # optax computes float ** int32 count
      updates, opt_state = optimizer.transformation.update(gradients, opt_state, params)
      params = optax.apply_updates(params, updates)
    return params, opt_state, layer_norms("update", updates, selection) if settings.layer_norms else {}

  def skip(gradients, params, opt_state):
    norms = layer_norms("update", params, selection) if settings.layer_norms else {}
    return params, opt_state, jax.tree.map(jnp.zeros_like, norms)

  trained = selection.take(state.params) if selection else state.params
  parameter_norm = global_norm(trained)  # before the update: Adafactor computes their squares anyway
  arguments = (gradients, trained, state.opt_state)
  if not settings.guard:
    trained, opt_state, update_norms = update(*arguments)
  elif target_platform() == "gpu":
    # On a GPU the choice is fused into the update's kernels, which read gradients in the dtype of the matrix products;
    # before a branch, all gradients would be written in float32.
    trained, opt_state, update_norms = choose_in_few_kernels(finite, update(*arguments), skip(*arguments))
  else:
    # A branch works in place; `where` would keep old and new values: up to two copies of the parameters.
    trained, opt_state, update_norms = jax.lax.cond(finite, update, skip, *arguments)
  params = selection.put(state.params, trained) if selection else trained
  metrics |= {
    "gradient_norm": gradient_norm,
    "parameter_norm": parameter_norm,
    "learning_rate": optimizer.learning_rate(state.step),
    "finite": finite.astype(jnp.float32),
  }
  if settings.layer_norms:
    metrics["norms"] = layer_norms("parameter", params) | layer_norms("gradient", gradients, selection) | update_norms
  if settings.guard:  # a state that is not finite would never end
    carry = jax.tree.map(lambda new, old: jnp.where(finite, new, old), carry, state.carry)
  return state.replace(step=state.step + 1, params=params, opt_state=opt_state, carry=carry), metrics


def layer_norms(name: str, tree: Any, selection: Selection | None = None) -> dict[str, jax.Array]:
  """Returns the L2 norm of every variable by `name/path`: [layers] for scanned layers, else a scalar.

  Of a stacked variable that trains partly, layers below the first that trains have norm 0.
  """

  def norm(path, x):
    stacked = is_stacked(path)
    norms = jnp.sqrt(square_sums([x], stacked))
    layers = selection.layers.get(path_text(path)) if selection else None
    if layers is not None:
      norms = jnp.zeros(layers[-1] + 1, norms.dtype).at[jnp.asarray(layers)].set(norms)
    return norms if stacked else norms[0]

  return {f"{name}/{path_text(path)}": norm(path, x) for path, x in jax.tree.leaves_with_path(tree)}


def eval_step(model: nn.Module, settings: LossSettings, params: Any, batch: Any) -> dict[str, jax.Array]:
  """Returns teacher-forced sums (`evaluation_sums`, or the model's own) without dropout, label smoothing or z-loss."""
  sums_of = getattr(model, "evaluation_sums", evaluation_sums)

  def outputs_of(part):
    return model.apply({"params": params}, part, deterministic=True)

  def sums(part):
    return sums_of(outputs_of(part), part)

  count = settings.microbatches
  if count > 1 and getattr(model, "compares_rows", False):
    return sums_of(join_rows(jax.lax.map(outputs_of, split_rows(batch, count))), batch)
  return sums(batch) if count == 1 else sum_over_microbatches(sums, batch, count)


def compile_train_step(
  model: nn.Module, optimizer: Optimizer, settings: LossSettings, spec: StateSpec, batch: Any, mesh: Mesh,
  deterministic: bool = True, step: StepFunction = train_step,
) -> jax.stages.Compiled:  # fmt: skip
  """Compiles the train step ahead of time: see `lower_train_step`."""
  return lower_train_step(model, optimizer, settings, spec, batch, mesh, deterministic, step)()


def lower_train_step(
  model: nn.Module,
  optimizer: Optimizer,
  settings: LossSettings,
  spec: StateSpec,
  batch: Any,
  mesh: Mesh,
  deterministic: bool = True,
  step: StepFunction = train_step,
  runs: int | None = None,
) -> Callable[[], jax.stages.Compiled]:
  """Traces the train step, with explicit shardings and the old state donated; returns a function that compiles it.

  Another thread may call that function. With `runs`, the step is of that many stacked states and batches (stacking.py);
  `spec` and `batch` are those of one.

  A `deterministic` step is bitwise reproducible on one kind of device. On CPUs and TPUs every step is; a GPU's compiler
  would otherwise time several kernels for each product and pick the fastest.
  """
  check_microbatches(_rows(batch), settings.microbatches, mesh)

  sharding, shapes = parallel.batch_sharding(mesh), _shapes(batch)
  if runs is not None:
    step, spec, sharding = stacked_step(step), stacked_spec(spec, runs), stacked_batch_sharding(mesh)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((runs, *x.shape), x.dtype), shapes)
  jitted = jax.jit(
    functools.partial(step, model, optimizer, settings),
    in_shardings=(spec.shardings, sharding),
    out_shardings=(spec.shardings, parallel.replicated(mesh)),
    donate_argnums=0,
  )
  with parallel.sharding_context(mesh), deterministic_kernels(deterministic):
    return functools.partial(jitted.lower(spec.shapes, shapes).compile, _compiler_options(deterministic))


def _compiler_options(deterministic: bool) -> dict[str, bool | int]:
  """Returns the XLA options of a train step."""
  if target_platform() != "gpu":
    return {}
  # XLA would merge products of the same rows: slicing the result costs more than it saves.
  options = {"xla_gpu_dot_merger_threshold_mb": 0, "xla_gpu_deterministic_ops": deterministic}
  return options | compiler_options()


def compile_eval_step(
  model: nn.Module, settings: LossSettings, spec: StateSpec, batch: Any, mesh: Mesh
) -> jax.stages.Compiled:
  """Compiles `(params, batch) -> sums`; the sums cover the rows of all hosts and are the same on each."""
  check_microbatches(_rows(batch), settings.microbatches, mesh)

  def step(params, batch):
    return eval_step(model, settings, params, batch)

  jitted = jax.jit(
    step,
    in_shardings=(spec.shardings.params, parallel.batch_sharding(mesh)),
    out_shardings=parallel.replicated(mesh),
  )
  with parallel.sharding_context(mesh):
    return jitted.lower(spec.shapes.params, _shapes(batch)).compile(compiler_options())


def _rows(batch: Mapping[str, Any]) -> int:
  return next(iter(batch.values())).shape[0]


def _shapes(batch: Any) -> Any:
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)


def enable_compilation_cache(folder: str | Path) -> None:
  """Caches compiled programs, so that a restarted run need not compile again.

  They go to `folder`, or to JAX_COMPILATION_CACHE_DIR where that is set.
  """
  if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    jax.config.update("jax_compilation_cache_dir", str(Path(folder).expanduser()))
