"""Two train steps of every family with every option, against float32 plain products with the same dropout masks."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5like import parallel
from t5like.models import BERT, GPT, T5, TransformerConfig, XLNet
from t5like.training import optimizers
from t5like.training.state import StateSpec, TrainState, initial_state, state_spec
from t5like.training.step import LossSettings, compile_train_step, train_step

ROWS, LENGTH, TARGETS, VOCABULARY = 8, 256, 128, 509  # logits have three columns of padding
SIZE = dict(vocab_size=VOCABULARY, embed_dim=512, mlp_dim=512, num_heads=4, head_dim=64)
LEARNED = dict(
  positions="learned", max_positions=LENGTH, norm="layer", use_bias=True, scale_attention=True, scale_logits=False,
  activation="gelu", initializer="normal",
)  # fmt: skip
FAMILIES = {
  "T5": (T5, ("num_encoder_layers", "num_decoder_layers"), dict(gated_mlp=True, activation="gelu")),
  "GPT": (GPT, ("num_decoder_layers",), LEARNED),
  "BERT": (BERT, ("num_encoder_layers",), dict(num_token_types=2, mlm_head=True, norm_position="post", **LEARNED)),
}
GROUPS = [
  (family, scan, packed, rate)
  for family in FAMILIES
  for scan in (True, False)
  for packed in (True, False)
  for rate in (0.0, 0.1)
]
LLAMA = dict(
  positions="rotary", num_kv_heads=2, gated_mlp=True, activation="silu", scale_attention=True, scale_logits=False,
  initializer="normal",
)  # fmt: skip
DECODERS = {
  "Llama": LLAMA,
  "Mistral": LLAMA | dict(attention_window=100),
  "OLMo-2": LLAMA | dict(qk_norm=True, norm_position="branch"),
  "BLOOM": LEARNED | dict(positions="alibi", embedding_norm=True, max_positions=None),
}
FAMILIES |= {name: (GPT, ("num_decoder_layers",), fields) for name, fields in DECODERS.items()}
# Without a kernel of their own.
PLAIN = ("XLNet", "Synthesizer")
FAMILIES["Synthesizer"] = T5, FAMILIES["T5"][1], dict(synthesizer="dense_plus", max_positions=LENGTH)
FAMILIES["XLNet"] = (
  XLNet, ("num_encoder_layers",),
  LEARNED | dict(positions="transformer_xl", norm_position="post", mlm_head=True, max_positions=None),
)  # fmt: skip
GROUPS += [
  (family, False, packed, rate) for family in (*DECODERS, *PLAIN) for packed, rate in ((True, 0.0), (False, 0.1))
]


def batch_of(family: str, packed: bool) -> dict[str, np.ndarray]:
  """Returns random tokens, three examples per row, or one and padding on the right."""
  rng = np.random.default_rng(0)
  batch = {}
  layouts = {"encoder_decoder": {"encoder": LENGTH, "decoder": TARGETS}, "encoder": {"encoder": LENGTH}}
  layout = model_of(family, False).batch_layout
  for side, length in layouts.get(layout, {"decoder": LENGTH}).items():
    # Three examples in every packed row: a query without any key in the other stack has no defined result.
    at, used = np.arange(length)[None, :], rng.integers(2 * length // 3, length + 1, (ROWS, 1))
    first = rng.integers(length // 8, length // 3, (ROWS, 1))
    segments = np.where(at < used, 1 + packed * ((at >= first).astype(np.int32) + (at >= 2 * first)), 0)
    batch[f"{side}_input_tokens"] = np.where(segments > 0, rng.integers(2, VOCABULARY, segments.shape), 0)
    if side == "decoder" or layout == "encoder":
      batch[f"{side}_target_tokens"] = rng.integers(2, VOCABULARY, segments.shape)
      batch[f"{side}_loss_weights"] = (segments > 0).astype(np.float32)
    if packed:
      starts = np.where(segments == 3, 2 * first, np.where(segments == 2, first, 0))
      batch[f"{side}_segment_ids"], batch[f"{side}_positions"] = segments, np.where(segments > 0, at - starts, 0)
  if family == "BERT":
    batch["encoder_token_types"] = batch["encoder_input_tokens"] % 2
  if family == "XLNet":  # half of the tokens are predicted, in a random order
    order = rng.permuted(np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (ROWS, LENGTH)), axis=1) - LENGTH // 2
    batch["encoder_order"] = np.maximum(order, 0)
    batch["encoder_loss_weights"] *= order > 0
  return {name: x if x.dtype == np.float32 else x.astype(np.int32) for name, x in batch.items()}


def model_of(family: str, scan: bool, **fields):
  make, depths, more = FAMILIES[family]
  layers = dict.fromkeys(depths, 1) | {depths[0]: 1 + scan}
  return make(TransformerConfig(**SIZE, **layers, **more, scan_layers=scan, **fields))


@functools.cache
def initial_parameters(family: str, scan: bool) -> dict:
  state = jax.jit(lambda: initial_state(model_of(family, scan), optimizers.adamw(1.0), batch_of(family, False), 0))()
  return jax.tree.map(np.asarray, state.params)


def steps_of_all(models, optimizer, settings, states, batch):
  """A train step of each model by name, which all have the same variables."""
  states, metrics = dict(states), {}
  for name, model in models.items():
    states[name], metrics[name] = train_step(model, optimizer, settings, states[name], batch)
  return states, metrics


def run_steps(models: dict[tuple, Any], family: str, scan: bool, packed: bool, deterministic: bool = True) -> dict:
  """Returns by name the losses of two steps, and the change of every parameter by SGD.

  All models are in one program: XLA compiles a kernel that several of them need once, which halves the time.
  """
  batch = batch_of(family, packed)
  optimizer = dataclasses.replace(optimizers.adamw(1.0), transformation=optax.sgd(0.05), factory_call=None)
  mesh = parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:1])
  spec = state_spec(model_of(family, scan), optimizer, batch, mesh)
  spec = StateSpec(dict.fromkeys(models, spec.shapes), dict.fromkeys(models, spec.shardings))
  step = compile_train_step(models, optimizer, LossSettings(), spec, batch, mesh, deterministic, steps_of_all)
  before = initial_parameters(family, scan)
  values = TrainState(jnp.int32(0), before, optimizer.transformation.init(before), jnp.uint32(0))
  states = jax.device_put(dict.fromkeys(models, values), spec.shardings, may_alias=False)
  losses = {name: [] for name in models}
  for _ in range(2):
    states, metrics = step(states, parallel.to_global_arrays(batch, mesh))
    for name, sums in metrics.items():
      losses[name].append(float(sums["loss"]) / float(sums["target_tokens"]))

  def change(new, old):
    return np.asarray(new, np.float64) - old.astype(np.float64)

  return {name: (losses[name], jax.tree.map(change, states[name].params, before)) for name in models}


def expected(family: str, scan: bool, packed: bool, rate: float) -> tuple[list[float], dict]:
  models = {"exact": model_of(family, scan, dropout_rate=rate, attention_backend="xla")}
  with jax.default_matmul_precision("highest"):
    return run_steps(models, family, scan, packed)["exact"]


def measured(family: str, scan: bool, packed: bool, rate: float) -> dict:
  """Returns by back end and rematerialization what `expected` returns, in bfloat16."""

  def run(variants: dict[str, list[str]], deterministic: bool) -> dict:
    options = dict(dropout_rate=rate, compute_dtype="bfloat16")
    models = {
      (backend, remat): model_of(family, scan, attention_backend=backend, remat=remat, **options)
      for backend, remats in variants.items()
      for remat in remats
    }
    with jax.default_matmul_precision("default"):
      return run_steps(models, family, scan, packed, deterministic)

  plain = {"xla": ["none", "full"]}
  if family in PLAIN:
    return run(plain, deterministic=True)
  found = run(plain | {"pallas_gpu": ["none", "elementwise", "dots", "full"]}, deterministic=True)
  # cuDNN's backward pass is not deterministic; with dropout, it falls back to plain products.
  return found if rate else found | run({"cudnn": ["none", "full"]}, deterministic=False)


# One test has all variants, not one each: they share programs, and so must be in one of pytest-xdist's processes.
@pytest.mark.parametrize("family, scan, packed, rate", GROUPS)
def test_two_steps(family, scan, packed, rate):
  expected_losses, expected_change = expected(family, scan, packed, rate)
  # The gradient of a key's bias is zero, up to rounding: it adds the same number to all scores of a query.
  least = 0.05 * np.median([np.linalg.norm(x) for x in jax.tree.leaves(expected_change)])

  def error(got, true):
    return np.linalg.norm(got - true) / max(np.linalg.norm(true), least)

  wrong = {}
  for variant, (losses, change) in measured(family, scan, packed, rate).items():
    pairs = zip(jax.tree.leaves_with_path(change), jax.tree.leaves(expected_change), strict=True)
    errors = {jax.tree_util.keystr(path): error(got, true) for (path, got), true in pairs}
    # Gradients in bfloat16 differ from float32 by rounding, most in the bias table, a sum over all pairs of tokens.
    found = {path: f"{error:.3f}" for path, error in errors.items() if not error < 0.05}
    if not np.allclose(losses, expected_losses, rtol=0.005, atol=0.0):
      found["losses"] = losses, expected_losses
    if found:
      wrong[variant] = found
  assert not wrong
