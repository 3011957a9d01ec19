"""Layers in a loop, stacked but unrolled, and not stacked: one model, three programs."""

import contextlib
import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like import parallel
from t5like.finetuning.methods.lora import LowRank
from t5like.interop.layouts import flatten, stack_layers, unflatten
from t5like.kernels.platform import compile_for
from t5like.models import GPT, T5, TransformerConfig
from t5like.models.blocks import Block
from t5like.models.shapes import boxed_shapes
from t5like.models.stack import choose_layer_loop
from t5like.models.tuning import Tuning
from t5like.training import checkpoints, optimizers
from t5like.training.state import create_state, state_spec
from t5like.training.step import LossSettings, compile_train_step

SIZE = dict(vocab_size=50, embed_dim=16, mlp_dim=24, num_heads=2, num_decoder_layers=3)
LOOP = dict(scan_layers=True, layer_loop="loop")
UNROLLED = dict(scan_layers=True, layer_loop="unrolled")
CLOSE = dict(rtol=1e-4, atol=1e-5)


def loss_and_gradients(built, batch):
  """Compiles loss and gradients as a function of the parameters, with dropout from a fixed key."""

  def loss(params):
    key = jax.random.key(1, impl="rbg")  # compiles many times faster than the default generator
    outputs = built.model.apply({"params": params}, batch, deterministic=False, rngs={"dropout": key})
    return jnp.mean(jnp.square(outputs["logits"]))

  return built.jit(jax.value_and_grad(loss)).lower(built.params).compile()


def assert_same(found, expected):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), found, expected)


@pytest.mark.parametrize(
  "fields, platform, how",
  [
    (dict(scan_layers=True), "gpu", "unrolled"),
    (dict(scan_layers=True), "tpu", "loop"),
    (dict(scan_layers=True), "cpu", "loop"),
    (LOOP, "gpu", "loop"),
    (UNROLLED, "tpu", "unrolled"),
    (dict(), "tpu", "unrolled"),
    (dict(layer_loop="loop"), "tpu", "unrolled"),  # layers that are not stacked cannot loop
  ],
)
def test_the_platform_decides_unless_configured(fields, platform, how):
  config = TransformerConfig(**SIZE | fields)
  assert choose_layer_loop(config, platform)[0] == how
  with compile_for(platform):
    assert choose_layer_loop(config)[0] == how


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  "fields, platform, loops, barrier",
  [
    (dict(scan_layers=True), "cpu", 2, False),  # forward and backward
    (dict(scan_layers=True, remat="full"), "tpu", 2, False),  # XLA merges nothing across a loop
    (dict(scan_layers=True, remat="full"), "gpu", 0, True),  # without a barrier, XLA would undo the recomputation
  ],
)
def test_programs_for_each_device(fields, platform, loops, barrier):
  model = GPT(TransformerConfig(**SIZE | fields))
  batch = {"decoder_input_tokens": np.ones((2, 4), np.int32)}
  device = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")
  gpu = jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device))
  with compile_for(platform), gpu if platform == "gpu" else contextlib.nullcontext():
    params = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), batch))
    traced = jax.jit(jax.grad(lambda p: model.apply(p, batch)["logits"].sum())).trace(params)
    text = traced.lower(lowering_platforms=("cuda" if platform == "gpu" else platform,)).as_text()
  assert text.count("stablehlo.while") == loops
  behind = [line for line in text.splitlines() if "stablehlo.optimization_barrier" in line]
  assert bool(behind) == barrier
  # Barriers materialize their operands: the stacked arrays are in memory anyway, slices would be a second copy.
  assert all("tensor<3x16x24xf32>" in line and "tensor<16x24xf32>" not in line for line in behind)


def test_all_three_have_the_same_loss_and_gradients(t5, tokens):
  batch = {"encoder_input_tokens": tokens(2, 6), "decoder_input_tokens": tokens(2, 5)}
  apart = t5()
  loss, gradients = loss_and_gradients(apart, batch)(apart.params)
  expected = loss, unflatten(stack_layers(flatten(gradients)))
  for fields in (LOOP, UNROLLED):
    built = t5(**fields)
    assert_same(loss_and_gradients(built, batch)(unflatten(stack_layers(flatten(apart.params)))), expected)


@pytest.mark.slow
def test_dropout_is_the_same_with_rematerialization(t5_lm, tokens):
  batch = {"decoder_input_tokens": tokens(2, 5)}
  loop, recomputed = (t5_lm(dropout_rate=0.3, **layout) for layout in (LOOP, UNROLLED | dict(remat="full")))
  expected = loss_and_gradients(loop, batch)(loop.params)
  assert_same(loss_and_gradients(recomputed, batch)(loop.params), expected)


def test_every_layers_hidden_states_can_be_captured(t5_lm, tokens):
  batch = {"decoder_input_tokens": tokens(2, 5)}
  found = []
  for fields in (LOOP, UNROLLED | dict(remat="full")):
    built = t5_lm(**fields)
    _, captured = built.jit(
      lambda params, model=built.model: model.apply(
        {"params": params}, batch, capture_intermediates=lambda module, _: module.name == "mlp", mutable="intermediates"
      )
    )(built.params)
    found.append(captured["intermediates"])
  (mlp,) = found[1]["decoder"]["layers"]["mlp"]["__call__"]
  assert mlp.shape == (2, 2, 5, 16)  # layers, rows, positions, width
  assert_same(*found)


@pytest.mark.slow  # compiles two train steps, writes and reads a checkpoint
def test_a_checkpoint_of_a_loop_resumes_unrolled(tmp_path, tokens):
  batch = {name: tokens(8, 6) for name in ("decoder_input_tokens", "decoder_target_tokens")}
  batch["decoder_loss_weights"] = np.ones((8, 6), np.float32)
  mesh, optimizer = parallel.make_mesh(parallel.MeshAxes()), optimizers.adafactor(1e-2)
  config = TransformerConfig(**SIZE | LOOP | dict(dropout_rate=0.1))
  models = {how: GPT(dataclasses.replace(config, layer_loop=how)) for how in ("loop", "unrolled")}
  specs = {how: state_spec(model, optimizer, batch, mesh) for how, model in models.items()}
  steps = {
    how: compile_train_step(model, optimizer, LossSettings(), specs[how], batch, mesh) for how, model in models.items()
  }
  state, _ = steps["loop"](create_state(models["loop"], optimizer, batch, 0, specs["loop"]), batch)
  saved = checkpoints.Checkpoints(tmp_path, 1)
  saved.save(state, {"scan_layers": True})
  saved.close()
  restored = checkpoints.restore_state(checkpoints.find_checkpoint(tmp_path), specs["unrolled"], {"scan_layers": True})
  straight, numbers = steps["loop"](state, batch)
  assert int(restored.step) == 1
  resumed, others = steps["unrolled"](restored, batch)
  assert_same(resumed.params, straight.params)
  np.testing.assert_allclose(others["loss"], numbers["loss"], rtol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("remat", ["elementwise", "full"])
def test_stacked_layers_with_remat_are_differentiated_with_the_kernels_of_a_gpu(remat):
  """Constants of a kernel's backward pass must not become arguments of a rematerialized layer."""
  size = dict(vocab_size=32, embed_dim=32, mlp_dim=32, num_heads=1, head_dim=32, compute_dtype="bfloat16")
  config = TransformerConfig(
    **size, num_encoder_layers=2, num_decoder_layers=2, scan_layers=True, remat=remat, dropout_rate=0.1
  )
  model, tokens = T5(config), np.ones((2, 16), np.int32)
  batch = {"encoder_input_tokens": tokens, "decoder_input_tokens": tokens}
  params = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), batch))["params"]

  def loss(params):
    outputs = model.apply({"params": params}, batch, deterministic=False, rngs={"dropout": jax.random.key(1)})
    return jnp.sum(outputs["logits"].astype(jnp.float32))

  with compile_for("gpu"):
    assert "t5like_attention_query_gradient" in str(jax.make_jaxpr(jax.grad(loss))(params))


def traces_of_layers(jaxpr):
  """Returns the jaxpr of each call of a layer; layers that share a trace have the same one."""
  return [eqn.params["jaxpr"] for eqn in jaxpr.eqns if eqn.params.get("name") == "layer"]


@pytest.mark.parametrize("remat", ["none", "full"])
def test_separate_layers_are_traced_once(remat):
  """To trace each would take most of the time before a deep model is compiled."""
  model = GPT(TransformerConfig(**SIZE, remat=remat))
  batch = {"decoder_input_tokens": jnp.ones((2, 4), jnp.int32)}
  params = nn.unbox(jax.eval_shape(lambda: model.init(jax.random.key(0), batch)["params"]))
  jaxpr = jax.make_jaxpr(lambda params: model.apply({"params": params}, batch)["logits"])(params)
  calls = traces_of_layers(jaxpr)
  assert len(calls) == 3 and len(set(map(id, calls))) == 1


def test_layers_with_different_extensions_do_not_share_a_trace():
  low_rank = LowRank(2, 1.0, 0.0, False, inputs=16, outputs=24, axes=("embed", "mlp"))
  site = "decoder/layers{}/mlp/wi"
  sites = {site.format("_1"): (dataclasses.replace(low_rank, scale=5.0),), site.format(""): (low_rank,)}
  model = GPT(TransformerConfig(**SIZE, dropout_rate=0.3), tuning=Tuning(tuple(sites.items())))
  batch = {"decoder_input_tokens": jnp.arange(8).reshape(2, 4)}
  keys = {name: jax.random.key(n) for n, name in enumerate(("params", "dropout"))}
  params = nn.unbox(model.init(keys, batch)["params"])
  params = jax.tree.map(lambda x: x + 0.1, params)  # the second factor starts as 0

  def logits(params):
    outputs = model.apply({"params": params}, batch, deterministic=False, rngs={"dropout": keys["dropout"]})
    return outputs["logits"]

  calls = traces_of_layers(jax.make_jaxpr(logits)(params))
  assert len(calls) == 3 and calls[0] is calls[2] is not calls[1]
  assert_same(jax.jit(logits)(params), logits(params))  # the second one runs without a trace, with the same dropout


def test_shapes_are_those_of_an_initialization_and_layers_that_are_alike_run_once():
  """Three layers, of which the second has a low-rank product: two run."""
  tuning = Tuning(
    (("decoder/layers_1/mlp/wi", (LowRank(2, 1.0, 0.0, False, inputs=16, outputs=24, axes=("embed", "mlp")),)),)
  )
  model = GPT(TransformerConfig(**SIZE | dict(vocab_size=51)), tuning=tuning)
  tokens = np.ones((1, 1), np.int32)
  expected = jax.eval_shape(model.init, jax.random.key(0), {"decoder_input_tokens": tokens})["params"]
  run = []

  def count(call, args, kwargs, context):
    if isinstance(context.module, Block) and context.method_name == "__call__":
      run.append(context.module.name)
    return call(*args, **kwargs)

  with nn.intercept_methods(count):
    found = boxed_shapes(model)
  assert run == ["layers_0", "layers_1"]
  assert jax.tree.structure(found) == jax.tree.structure(expected)
  assert jax.tree.leaves(found) == jax.tree.leaves(expected)
