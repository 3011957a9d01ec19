"""Mixture of experts: routing and MLPs against numpy, losses, FLOPs, and an `expert` axis of eight devices."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like import parallel
from t5like.errors import UserError
from t5like.experiments.compatibility import check_splits
from t5like.models import T5, TransformerConfig
from t5like.models.modifications.experts import Experts, capacity, route
from t5like.planning.flops import forward_flops_by_part, traced_flops
from t5like.training.losses import LossSettings, divisors, loss_and_metrics

SWITCH = dict(num_experts=4, expert_capacity=2.0)
TOP_2 = dict(num_experts=4, experts_per_token=2, expert_capacity=0.5, gated_mlp=True, activation="gelu_erf")


def softmax(x):
  return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def test_places_by_hand():
  """Two places per expert: the third token that prefers expert 0 has none, nor the second choice of another."""
  rows = np.array([[[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.5, 0.1, 0.4], [0.1, 0.8, 0.1]]], np.float32)
  dispatch, combine = (np.asarray(x)[0] for x in route(jnp.asarray(rows), 1, 2))
  taken = {(token, expert, place) for token, expert, place in np.argwhere(dispatch > 0).tolist()}
  assert taken == {(0, 0, 0), (1, 0, 1), (3, 1, 0)}
  assert combine[0, 0, 0] == np.float32(0.7) and combine[3, 1, 0] == np.float32(0.8) and not combine[2].any()
  dispatch, combine = (np.asarray(x)[0] for x in route(jnp.asarray(rows), 2, 2))
  taken = {tuple(place) for place in np.argwhere(dispatch > 0).tolist()}
  # First choices go first: token 3 has place 0 of expert 1, then token 0; token 1 finds it full.
  assert taken == {(0, 0, 0), (1, 0, 1), (3, 1, 0), (0, 1, 1), (2, 2, 0)}
  np.testing.assert_allclose([combine[0, 1, 1], combine[2, 2, 0]], [0.2 / 0.9, 0.4 / 0.9], rtol=1e-5)


@pytest.mark.parametrize("fields", [SWITCH, TOP_2], ids=["switch", "top 2"])
def test_experts_by_hand(fields):
  config = TransformerConfig(vocab_size=9, embed_dim=8, mlp_dim=6, num_heads=1, num_decoder_layers=1, **fields)
  layer, rng = Experts(config), np.random.default_rng(0)
  x = rng.normal(size=(2, 8, 8)).astype(np.float32)
  shapes = nn.unbox(jax.eval_shape(layer.init, jax.random.key(0), x, None, True))["params"]
  params = jax.tree.map(lambda p: rng.normal(size=p.shape).astype(p.dtype), shapes)
  valid = np.arange(8)[None] < np.array([[8], [5]])
  got, losses = layer.apply({"params": params}, x, valid, True)
  places, expected = capacity(config, 8), np.zeros_like(x)
  assert places == (4 if fields is SWITCH else 2)
  for row in range(2):
    logits = x[row] @ params["router"]
    probabilities = softmax(logits)
    order, used = np.argsort(-probabilities, axis=-1), np.zeros(4, int)
    for choice in range(config.experts_per_token):
      for token in range(8):
        expert = order[token, choice]
        used[expert] += 1
        if used[expert] > places:
          continue
        gate = probabilities[token, expert]
        if choice or config.experts_per_token > 1:
          gate /= probabilities[token, order[token, :2]].sum()
        if config.gated_mlp:
          gelu = np.asarray(jax.nn.gelu(x[row, token] @ params["wi_0"][expert], approximate=False))
          inner = gelu * (x[row, token] @ params["wi_1"][expert])
        else:
          inner = np.maximum(x[row, token] @ params["wi"][expert], 0)
        expected[row, token] += gate * (inner @ params["wo"][expert])
    logits, probabilities = logits[valid[row]], probabilities[valid[row]]
    share = np.bincount(probabilities.argmax(-1), minlength=4) / len(probabilities)
    balance = 4 * np.sum(share * probabilities.mean(0))
    z = np.mean(np.log(np.exp(logits).sum(-1)) ** 2)
    np.testing.assert_allclose(losses[row], [balance, z], rtol=1e-4)
  np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)


def batch_of(rows):
  rng = np.random.default_rng(1)
  draw = lambda length: rng.integers(2, 48, (rows, length)).astype(np.int32)  # noqa: E731
  targets = draw(4)
  return {
    "encoder_input_tokens": draw(6), "decoder_input_tokens": draw(4), "decoder_target_tokens": targets,
    "decoder_loss_weights": np.ones(targets.shape, np.float32),
  }  # fmt: skip


def loss_function(model, settings=LossSettings(z_loss=0.0)):  # noqa: B008
  def loss(params, batch, total=None):
    outputs = model.apply({"params": params}, batch, deterministic=False)
    total = batch if total is None else total
    divide_by = divisors(total, settings)._replace(auxiliary=model.auxiliary_counts(total))
    return loss_and_metrics(outputs, batch, settings, divide_by)

  return loss


def test_losses_are_added_and_those_of_microbatches_add_up(t5):
  built, batch = t5(**SWITCH, num_encoder_layers=1, num_decoder_layers=1), batch_of(4)
  compiled = built.jit(lambda params, part, total: loss_function(built.model)(params, part, total))
  loss, metrics = compiled(built.params, batch, batch)
  config, tokens = built.config, metrics["target_tokens"]
  assert 0.9 < metrics["balance_loss"] < 4 and metrics["router_z_loss"] > 0
  added = config.balance_loss * metrics["balance_loss"] + config.router_z_loss * metrics["router_z_loss"]
  np.testing.assert_allclose(loss, metrics["loss"] / tokens + added, rtol=1e-6)
  halves = [{name: x[rows] for name, x in batch.items()} for rows in (slice(0, 2), slice(2, 4))]
  parts = [compiled(built.params, half, batch)[0] for half in halves]
  np.testing.assert_allclose(sum(parts), loss, rtol=1e-5)
  assert "auxiliary" not in built(batch)


def test_flops_are_those_of_the_products():
  sizes = dict(vocab_size=50, embed_dim=16, mlp_dim=24, num_heads=2, num_encoder_layers=2, num_decoder_layers=2)
  config = TransformerConfig(**sizes, **TOP_2, positions="none")
  batch = {
    f"{side}_input_tokens": jax.ShapeDtypeStruct((2, n), "int32") for side, n in (("encoder", 8), ("decoder", 6))
  }
  params = nn.unbox(jax.eval_shape(T5(config).init, jax.random.key(0), batch))
  traced = traced_flops(lambda p, b: T5(config).apply(p, b)["logits"], params, batch)
  assert sum(forward_flops_by_part(config, 2, 8, 6).values()) == traced


@pytest.mark.parametrize(
  "fields", [dict(num_experts=-1), dict(num_experts=2, experts_per_token=3), dict(num_experts=2, use_bias=True),
             dict(num_experts=2, num_decoder_layers=0, num_encoder_layers=1)],
)  # fmt: skip
def test_invalid_settings(fields):
  with pytest.raises(UserError, match="expert"):
    TransformerConfig(**dict(vocab_size=9, embed_dim=8, mlp_dim=8, num_heads=1, num_decoder_layers=1) | fields)


def test_meshes_have_an_expert_axis_where_it_is_longer_than_one():
  assert parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:8]).axis_names == ("data", "fsdp", "tensor")
  mesh = parallel.make_mesh(parallel.MeshAxes(data=2, expert=4), jax.devices()[:8])
  assert dict(mesh.shape) == {"data": 2, "fsdp": 1, "expert": 4, "tensor": 1}
  assert parallel.row_shards(mesh.shape) == 8 and parallel.batch_shards(mesh).total == 8
  config = TransformerConfig(vocab_size=8, embed_dim=8, mlp_dim=8, num_heads=1, num_decoder_layers=1, num_experts=6)
  with pytest.raises(parallel.MeshError, match="num_experts = 6"):
    check_splits(config, mesh)


@pytest.mark.parametrize(
  "family", ["decoder", pytest.param("scanned", marks=pytest.mark.slow(reason="compiles more for eight devices"))]
)
def test_eight_devices_compute_what_one_does(t5, t5_lm, family):
  """Loss and gradients with experts on four groups of two devices; each holds one expert of four."""
  batch = batch_of(8)
  if family == "decoder":
    built = t5_lm(**SWITCH, vocab_size=48, num_decoder_layers=1)
    del batch["encoder_input_tokens"]
  else:
    built = t5(**SWITCH, vocab_size=48, scan_layers=True)
  gradients = lambda params, batch: jax.value_and_grad(loss_function(built.model), has_aux=True)(params, batch)  # noqa: E731
  (expected, _), expected_gradients = built.jit(gradients)(built.params, batch)
  mesh = parallel.make_mesh(parallel.MeshAxes(data=1, expert=4, tensor=2), jax.devices()[:8])
  boxed = jax.eval_shape(built.model.init, jax.random.key(0), batch)["params"]
  shardings = parallel.parameter_shardings(boxed, mesh)
  layers = shardings["decoder"]["layers" if family == "scanned" else "layers_0"]
  assert layers["mlp"]["wi"].shard_shape((2, 4, 16, 24)[-len(layers["mlp"]["wi"].spec) :])[-3:] == (1, 16, 12)
  with parallel.sharding_context(mesh):
    axes = nn.logical_to_mesh_axes(("batch", "length")), nn.logical_to_mesh_axes(("expert", "expert_rows"))
    assert tuple(map(tuple, axes)) == ((("data", "fsdp", "expert"), None), ("expert", ("data", "fsdp")))
    rows = {name: jax.device_put(x, parallel.batch_sharding(mesh)) for name, x in batch.items()}
    (loss, _), found = built.jit(gradients)(jax.device_put(built.params, shardings), rows)
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), found, expected_gradients)
