"""Train steps of methods on meshes: frozen bytes, the same updates on 1 and 8 devices, packed, with microbatches."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like import parallel
from t5like.bench.tuned import plan_tuned
from t5like.finetuning.methods import LoRA, PrefixTuning, PromptTuning, QLoRA, T5Adapter
from t5like.models import T5, TransformerConfig
from t5like.training import optimizers
from t5like.training.optimizers.rules import path_text
from t5like.training.state import TrainState, create_state
from t5like.training.step import LossSettings, compile_train_step, train_step

MODEL = T5(TransformerConfig(
  vocab_size=32, embed_dim=16, mlp_dim=32, num_heads=4, head_dim=4, num_encoder_layers=2, num_decoder_layers=2,
  scan_layers=True, gated_mlp=True,
))  # fmt: skip
TOKENS = np.random.default_rng(0).integers(2, 30, (8, 6)).astype(np.int32)
BATCH = {
  "encoder_input_tokens": TOKENS,
  "decoder_input_tokens": TOKENS,
  "decoder_target_tokens": np.roll(TOKENS, -1, axis=1),
  "decoder_loss_weights": np.ones(TOKENS.shape, np.float32),
}
SEGMENTS = {f"{side}_segment_ids": np.repeat([[1, 2]], 3, axis=1).repeat(8, 0).astype(np.int32)
            for side in ("encoder", "decoder")}  # fmt: skip
POSITIONS = {f"{side}_positions": np.tile(np.arange(3), (8, 2)).astype(np.int32) for side in ("encoder", "decoder")}
METHODS = {
  "lora": LoRA(rank=2, dropout=0.1),
  "some layers": LoRA(rank=2, targets=[".*/layers_1/.*/query"]),
  "qlora": QLoRA(rank=2),
  "adapter": T5Adapter(size=4),
  "prefix": PrefixTuning(length=3, hidden=4),
  "prompt": PromptTuning(length=3),
}


def steps(method, axes, devices, microbatches=1, packed=False, remat="none", start=None):
  """Returns the states before and after two steps from `start` or from a new one, and the plan."""
  model = MODEL.clone(config=dataclasses.replace(MODEL.config, remat=remat))
  batch = BATCH | (SEGMENTS | POSITIONS if packed else {})
  with parallel.use_preset(axes.preset):
    mesh = parallel.make_mesh(axes, jax.devices()[:devices])
    plan = plan_tuned(model, method, optimizers.adamw(1e-2), batch, mesh)
    if start is None:
      start = jax.device_get(create_state(plan.model, plan.optimizer, batch, 0, plan.spec, plan.stored))
    state = jax.device_put(start, plan.spec.shardings)
    compiled = compile_train_step(
      plan.model, plan.optimizer, LossSettings(microbatches=microbatches), plan.spec, batch, mesh
    )
    placed = jax.device_put(batch, parallel.batch_sharding(mesh))
    for _ in range(2):
      state, metrics = compiled(state, placed)
  assert np.isfinite(metrics["loss"])
  return start, jax.device_get(state), plan


SLOW = ("some layers", "prompt")  # as "lora" and "prefix", with other parameters


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in METHODS])
def test_two_steps_on_a_mesh_equal_those_on_one_device(name):
  """Of every preset one: rows, parameters, heads, both, and positions are sharded."""
  axes = {
    "lora": parallel.MeshAxes(data=2, fsdp=2, tensor=2),
    "some layers": parallel.MeshAxes(data=1, fsdp=8, preset="fsdp"),
    "qlora": parallel.MeshAxes(data=2, tensor=4, preset="tensor"),
    "adapter": parallel.MeshAxes(data=2, fsdp=2, tensor=2, preset="sequence"),
    "prefix": parallel.MeshAxes(data=2, fsdp=2, tensor=2),
    "prompt": parallel.MeshAxes(data=8, preset="data_parallel"),
  }[name]
  method = METHODS[name]
  before, one, plan = steps(method, parallel.MeshAxes(data=1), 1)
  packed = name in ("qlora", "prefix")
  _, eight, _ = steps(method, axes, 8, start=before)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=2e-4), one.params, eight.params)
  selection = plan.optimizer.selection
  changed = 0
  for (path, old), new in zip(jax.tree.leaves_with_path(before.params), jax.tree.leaves(one.params), strict=True):
    if path_text(path) in selection:
      changed += not np.array_equal(old, new)
    else:
      assert old.tobytes() == new.tobytes()
  assert changed > 0
  held = sum(leaf.size for leaf in jax.tree.leaves(one.opt_state))
  trained = sum(leaf.size for leaf in jax.tree.leaves(selection.take(one.params)))
  assert held <= 2 * trained + 8
  if packed:
    steps(method, axes, 8, packed=True, remat="full")


@pytest.mark.slow
def test_microbatches_and_remat_change_nothing():
  method = LoRA(rank=2)
  _, plain, _ = steps(method, parallel.MeshAxes(data=1), 1)
  _, parts, _ = steps(method, parallel.MeshAxes(data=1), 1, microbatches=2, remat="full")
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=2e-4), plain.params, parts.params)


def test_frozen_weights_are_stored_in_the_dtype_of_computations():
  """Norms, and what trains, stay in float32."""
  batch = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in BATCH.items()}
  mesh = parallel.make_mesh(parallel.MeshAxes(data=1), jax.devices()[:1])
  plan = plan_tuned(MODEL, LoRA(rank=2), optimizers.adamw(1e-2), batch, mesh)
  selection = plan.optimizer.selection
  assert isinstance(plan.spec.shapes, TrainState) and not any("kernel" in path for path in selection.layers)
  bf16 = MODEL.clone(config=dataclasses.replace(MODEL.config, compute_dtype="bfloat16"))
  stored = plan_tuned(bf16, LoRA(rank=2), optimizers.adamw(1e-2), batch, mesh).spec.shapes.params["encoder"]["layers"]
  assert stored["attention"]["query"]["kernel"].dtype == jnp.bfloat16
  assert stored["attention"]["query"]["lora_a"].dtype == stored["mlp_norm"]["scale"].dtype == jnp.float32


def test_the_norm_of_parameters_is_of_those_that_train():
  mesh = parallel.make_mesh(parallel.MeshAxes(data=1), jax.devices()[:1])
  plan = plan_tuned(MODEL, LoRA(rank=2), optimizers.adamw(1e-2), BATCH, mesh)
  ones = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), plan.spec.shapes)
  _, metrics = jax.jit(lambda s: train_step(plan.model, plan.optimizer, LossSettings(), s, BATCH))(ones)
  trained = sum(x.size for x in jax.tree.leaves(plan.optimizer.selection.take(ones.params)))
  np.testing.assert_allclose(metrics["parameter_norm"] ** 2, trained, rtol=1e-5)
