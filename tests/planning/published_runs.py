"""Forecasts of the published TPU runs, and the constants fitted to them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import flax.linen as nn
import jax
import numpy as np

from t5like import parallel
from t5like.models import GPT
from t5like.models.config import TransformerConfig
from t5like.planning import State, Topology, Work, parse_topology
from t5like.planning.forecast import step_parts
from t5like.planning.published import MODELS, RUNS, Run, RunShape
from t5like.planning.step_time import EFFICIENCIES, Efficiency, step_time
from t5like.training import optimizers

# Constants of EFFICIENCIES["tpu"], and the product of v6e, which shares the rest with the others.
FITTED = ("product", "attention", "sums", "gathers", "slices", "v6e product")


def _config(shape: RunShape, **fields: str) -> TransformerConfig:
  return TransformerConfig(
    vocab_size=shape.vocab, embed_dim=shape.width, mlp_dim=shape.mlp, num_heads=shape.heads, head_dim=shape.head_dim,
    num_decoder_layers=shape.layers, gated_mlp=shape.gated, activation="silu" if shape.gated else "relu",
    positions="rotary", scale_attention=True, scale_logits=False, compute_dtype="bfloat16", scan_layers=True, **fields,
  )  # fmt: skip


@functools.cache
def _parameters(gated: bool):
  """Returns the parameters of a small decoder: tracing takes a second, and those of others differ only in size."""
  batch = {"decoder_input_tokens": jax.ShapeDtypeStruct((1, 8), np.int32)}
  return jax.eval_shape(GPT(_config(RunShape(2, 16, 2, 8, 32, 64, gated))).init, jax.random.key(0), batch)["params"]


@functools.cache
def _state(shape: RunShape, dtype: str) -> State:
  sizes = {"layers": shape.layers, "embed": shape.width, "mlp": shape.mlp, "vocab": shape.vocab}
  sizes["heads"] = shape.heads * shape.head_dim

  def resized(box: nn.LogicallyPartitioned) -> nn.LogicallyPartitioned:
    return box.replace_boxed(jax.ShapeDtypeStruct([sizes[name] for name in box.names], dtype))

  boxed = jax.tree.map(resized, _parameters(shape.gated), is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned))
  return State(boxed, jax.eval_shape(optimizers.adamw(1e-3).transformation.init, nn.meta.unbox(boxed)))


def _work(run: Run, topology: Topology, remat: str) -> Work:
  shape = MODELS[run.model]
  backend = "xla" if run.score_bytes else "auto"
  model = GPT(_config(shape, remat=remat, param_dtype=run.param_dtype, attention_backend=backend))
  batch = {"decoder_input_tokens": jax.ShapeDtypeStruct((run.rows * topology.devices, run.length), np.int32)}
  return Work(model, _state(shape, run.param_dtype), batch, microbatches=run.microbatches)


@functools.cache
def _step(run: Run, remat: str):
  topology = parse_topology(run.topology)
  axes = parallel.MeshAxes(topology.size // (run.fsdp * run.tensor), run.fsdp, run.tensor, topology.groups)
  return step_parts(_work(run, topology, remat), topology, axes, run.score_bytes or 4)


def published_seconds(run: Run) -> float:
  if run.attention is None:
    return run.reported
  tokens = run.rows * run.length  # of a chip
  return MODELS[run.model].flops(tokens, run.length, run.attention) / (1e12 * run.reported)


def predicted_seconds(run: Run, efficiency: Mapping[str, Efficiency] = EFFICIENCIES) -> float:
  """Interpolates between `remat` "dots" and "full" by the kept products, and scales by the FLOPs of grouped heads."""
  topology, shape = parse_topology(run.topology), MODELS[run.model]
  speed = efficiency.get(topology.chip.name, efficiency["tpu"])
  again = shape.recomputed(run.kept)
  times = {
    remat: step_time(*_step(run, remat), topology.chip.spec, speed, False, topology.groups).seconds
    for remat, share in (("dots", 1 - again), ("full", again))
    if share
  }
  seconds = (1 - again) * times.get("dots", 0.0) + again * times.get("full", 0.0)
  return seconds * shape.flops(1, run.length) / shape._replace(kv_heads=None).flops(1, run.length)


def errors(runs: Sequence[Run] = RUNS, efficiency: Mapping[str, Efficiency] = EFFICIENCIES) -> np.ndarray:
  """Returns the logarithms of predicted over published seconds."""
  return np.log([predicted_seconds(run, efficiency) / published_seconds(run) for run in runs])


def constants() -> np.ndarray:
  return np.array([*(getattr(EFFICIENCIES["tpu"], name) for name in FITTED[:-1]), EFFICIENCIES["v6e"].product])


def with_constants(values: Sequence[float]) -> dict[str, Efficiency]:
  tpu = dataclasses.replace(EFFICIENCIES["tpu"], **dict(zip(FITTED[:-1], values[:-1], strict=True)))
  return {"tpu": tpu, "v6e": dataclasses.replace(tpu, ramp=EFFICIENCIES["v6e"].ramp, product=values[-1])}


@functools.cache
def slopes() -> np.ndarray:
  """Returns the derivatives of the errors by the constants, [runs, constants]."""
  here, step = constants(), 1e-3
  moved = [errors(efficiency=with_constants(here + step * unit)) for unit in np.eye(len(here))]
  return (np.stack(moved, axis=1) - errors()[:, None]) / step


def least_squares(chosen: np.ndarray) -> np.ndarray:
  """Returns the change of the constants that fits the chosen runs best."""
  return np.linalg.lstsq(slopes()[chosen], -errors()[chosen], rcond=None)[0]


def left_out_errors() -> np.ndarray:
  """Returns the error of each run with constants fitted without all runs of its model on the same chip."""
  families = [(run.model, parse_topology(run.topology).chip.name) for run in RUNS]
  found = errors()
  for family in set(families):
    left_out = np.array([each == family for each in families])
    found[left_out] += slopes()[left_out] @ least_squares(~left_out)
  return found
