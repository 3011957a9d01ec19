"""Switches of Narang et al. 2021 against a few lines of numpy: units, branches, shared layers, embeddings, outputs."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like.errors import UserError
from t5like.finetuning.methods.lora import LoRA
from t5like.interop import huggingface
from t5like.kernels.attention import Mask
from t5like.models import GPT, T5, TransformerConfig
from t5like.models.attention import Attention, Context
from t5like.models.blocks import MLP, Block
from t5like.models.positions import sinusoids
from t5like.models.stepping import prepare
from t5like.planning.flops import forward_flops_by_part, traced_flops

SIZES = dict(vocab_size=50, embed_dim=16, mlp_dim=24, num_heads=2, head_dim=8)
SELU = 1.0507009873554805, 1.6732632423543772
UNITS = {
  "elu": lambda x: np.where(x > 0, x, np.exp(x) - 1),
  "selu": lambda x: SELU[0] * np.where(x > 0, x, SELU[1] * (np.exp(x) - 1)),
  "softplus": lambda x: np.log(1 + np.exp(x)),
  "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
  "linear": lambda x: x,
  "silu": lambda x: x / (1 + np.exp(-x)),
  "relu": lambda x: np.maximum(x, 0),
}
VARIANTS = {
  "rezero": dict(residual="rezero", norm="none"),
  "fixup, scanned": dict(residual="fixup", norm="none", scan_layers=True),
  "shared layers": dict(layer_groups=1),
  "shared layers, scanned": dict(layer_groups=1, scan_layers=True),
  "shared decoder, both stacks one": dict(share_encoder_decoder=True, layer_groups=1),
  "shared layers of the decoder": dict(layer_groups=1, shared_stacks="decoder", norm="layer"),
  "universal": dict(layer_groups=1, layer_signal=True),
  "universal, scanned": dict(layer_groups=1, layer_signal=True, scan_layers=True, remat="full"),
  "untied": dict(tie_inputs=False, tie_embeddings=False, gated_mlp=True, activation="linear"),
  "untied inputs": dict(tie_inputs=False),
  "factorized": dict(embedding_dim=4, embedding_projection="tokens"),
  "factorized inputs": dict(embedding_dim=4, embedding_projection="tokens", tie_embeddings=False),
  "mixture": dict(softmax_mixtures=3),
  "experts": dict(num_experts=3, experts_per_token=2, expert_capacity=3.0),
  "switch, scanned": dict(num_experts=3, expert_capacity=3.0, scan_layers=True),
  "adaptive": dict(softmax_clusters="10,15", tie_embeddings=False),
}


def random(shapes, seed=0):
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda x: rng.normal(0.0, 0.3, x.shape).astype(x.dtype), nn.unbox(shapes))


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("unit", UNITS)
def test_units_by_hand(unit, is_gated):
  if unit == "linear" and not is_gated:
    with pytest.raises(UserError, match="gated_mlp"):
      TransformerConfig(**SIZES, activation=unit)
    return
  mlp, x = MLP(TransformerConfig(**SIZES, activation=unit, gated_mlp=is_gated)), random(jnp.zeros((2, 3, 16)))
  params = random(jax.eval_shape(mlp.init, jax.random.key(0), x, True))["params"]
  kernels = {name: layer["kernel"].astype(np.float64) for name, layer in params.items()}
  inner = UNITS[unit](x @ kernels["wi_0"]) * (x @ kernels["wi_1"]) if is_gated else UNITS[unit](x @ kernels["wi"])
  np.testing.assert_allclose(mlp.apply({"params": params}, x, True), inner @ kernels["wo"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("residual", ["rezero", "fixup"])
def test_residual_branches_by_hand(residual):
  config = TransformerConfig(**SIZES, residual=residual, norm="none", positions="none", num_encoder_layers=1)
  block, context, x = Block(config), Context(mask=Mask()), random(jnp.zeros((2, 3, 16)))
  started = nn.unbox(block.init(jax.random.key(0), x, None, context))["params"]
  assert sorted(started) == ["attention", "attention_residual", "mlp", "mlp_residual"]
  np.testing.assert_array_equal(block.apply({"params": started}, x, None, context)[0], x)  # starts as the identity
  params = random(started)

  def numbers(name):
    found = params[f"{name}_residual"]
    return found["scale"][0], found["shift"][0] if residual == "fixup" else 0.0

  (scale, shift), expected = numbers("attention"), x
  attended = Attention(config).apply({"params": params["attention"]}, expected + np.float32(shift), context, None)[0]
  expected = expected + scale * attended
  scale, shift = numbers("mlp")
  expected = expected + scale * MLP(config).apply({"params": params["mlp"]}, expected + np.float32(shift), True)
  np.testing.assert_allclose(block.apply({"params": params}, x, None, context)[0], expected, rtol=0, atol=1e-5)


def test_fixup_starts_branches_at_zero_and_the_rest_smaller():
  """Four branches in 2 layers: inner kernels are half as large as without it."""
  sizes = SIZES | dict(embed_dim=64, mlp_dim=256, num_encoder_layers=2)
  plain, fixed = (
    nn.unbox(Block(TransformerConfig(**sizes, residual=kind)).init(jax.random.key(1), x, None, Context(mask=Mask())))
    for kind, x in (("plain", jnp.ones((1, 2, 64))), ("fixup", jnp.ones((1, 2, 64))))
  )
  for layer, name in (("attention", "query"), ("attention", "key"), ("attention", "value"), ("mlp", "wi")):
    kernels = [params["params"][layer][name]["kernel"] for params in (plain, fixed)]
    np.testing.assert_allclose(kernels[1], 0.5 * kernels[0], rtol=1e-6)
  assert not np.any(fixed["params"]["attention"]["out"]["kernel"]) and not np.any(
    fixed["params"]["mlp"]["wo"]["kernel"]
  )


def batch_of(tokens, decoder_length=5):
  return {"encoder_input_tokens": tokens(2, 7), "decoder_input_tokens": tokens(2, decoder_length)}


@pytest.mark.parametrize("is_scanned", [False, True])
def test_shared_layers_equal_copies(t5, tokens, is_scanned):
  """Four layers of two groups: layers 0 and 1 are the first group, 2 and 3 the second."""
  depth = dict(num_encoder_layers=4, num_decoder_layers=4)
  built, batch = t5(**depth, layer_groups=2), batch_of(tokens)
  assert built.config.stored_layers == {"encoder": 2, "decoder": 2}
  own = {name: dict(part) for name, part in built.params.items()}
  for stack in ("encoder", "decoder"):
    groups = [own[stack].pop(f"layers_{n}") for n in range(2)]
    assert not any(name.startswith("layers") for name in own[stack])
    own[stack] |= {f"layers_{n}": groups[n // 2] for n in range(4)}
    if is_scanned:
      built.params[stack] = {k: v for k, v in built.params[stack].items() if not k.startswith("layers")}
      built.params[stack]["layers"] = jax.tree.map(lambda *x: np.stack(x), *groups)
  shared = T5(dataclasses.replace(built.config, scan_layers=is_scanned))
  apart = T5(dataclasses.replace(built.config, layer_groups=None))
  run = lambda model, params: built.jit(lambda p: model.apply({"params": p}, batch)["logits"])(params)  # noqa: E731
  np.testing.assert_allclose(run(shared, built.params), run(apart, own), rtol=0, atol=1e-5)


def test_layers_of_one_stack_can_be_shared(t5):
  assert t5(layer_groups=1, shared_stacks="encoder").config.stored_layers == {"encoder": 1, "decoder": 2}
  found = t5(layer_groups=1, shared_stacks="decoder").params
  assert {"layers_0", "layers_1"} <= set(found["encoder"]) and "layers_1" not in found["decoder"]


def test_universal_layers_read_position_and_layer(t5_lm, tokens):
  built, rows = t5_lm(layer_groups=1, layer_signal=True, positions="none", norm="none"), tokens(2, 5)
  layer = {"params": built.params["decoder"]["layers_0"]}
  x = jnp.asarray(built.params["token_embedder"]["embedding"][rows])
  for number in range(2):
    signal = sinusoids(jnp.arange(5)[None], 16) + sinusoids(jnp.full((1, 1), number), 16)
    x, _ = Block(built.config).apply(layer, x + signal, None, Context(mask=Mask(causal=True)))
  expected = x @ built.params["token_embedder"]["embedding"].T / 4
  np.testing.assert_allclose(built({"decoder_input_tokens": rows})["logits"], expected, rtol=0, atol=2e-5)
  scanned = GPT(dataclasses.replace(built.config, scan_layers=True))
  params = built.params | {"decoder": {"layers": jax.tree.map(lambda x: x[None], layer["params"])}}
  logits = built.jit(lambda params: scanned.apply({"params": params}, {"decoder_input_tokens": rows})["logits"])(params)
  np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5)


def test_untied_inputs_read_their_own_tables(t5):
  built, tied = t5(tie_inputs=False), t5()
  batch = {"encoder_input_tokens": np.array([[3, 4, 5]]), "decoder_input_tokens": np.array([[6, 7]])}
  tables = {name: built.params[name]["embedding"] for name in ("token_embedder", "decoder_embedder")}
  same = tied.params | {"token_embedder": {"embedding": tables["decoder_embedder"]}}
  built.params = same | {"decoder_embedder": {"embedding": tables["decoder_embedder"]}}
  expected = np.asarray(tied._apply(same, batch)["logits"])
  np.testing.assert_allclose(built(batch)["logits"], expected, rtol=0, atol=1e-6)
  for name, read in (("token_embedder", [3, 4, 5]), ("decoder_embedder", [6, 7])):
    changed = tables["decoder_embedder"].copy()
    changed[read] += 1.0
    logits = np.asarray(built._apply(built.params | {name: {"embedding": changed}}, batch)["logits"])
    assert np.abs(logits - expected).max() > 0.01
    changed = tables["decoder_embedder"].copy()
    changed[[3, 4, 5, 6, 7]] += 1.0
    changed[read] -= 1.0
    logits = np.asarray(built._apply(built.params | {name: {"embedding": changed}}, batch)["logits"])
    kept = [t for t in range(50) if not 3 <= t <= 7]  # the output reads the decoder's table
    np.testing.assert_allclose(logits[..., kept], expected[..., kept], rtol=0, atol=1e-6)


def log_softmax(x):
  return x - np.log(np.sum(np.exp(x), axis=-1, keepdims=True))


def test_outputs_by_hand(gpt):
  hidden = np.random.default_rng(0).normal(size=(2, 3, 16)).astype(np.float32)
  project = lambda built: built.model.apply({"params": built.params}, hidden, method="project")  # noqa: E731
  mixture = gpt(softmax_mixtures=3, use_bias=False)
  kernels = {name: layer["kernel"] for name, layer in mixture.params["logits_mixture"].items()}
  table, prior = mixture.params["token_embedder"]["embedding"], np.exp(log_softmax(hidden @ kernels["prior"]))
  latent = np.tanh(hidden @ kernels["latent"])
  each = [np.exp(log_softmax(latent[..., 16 * k : 16 * k + 16] @ table.T)) for k in range(3)]
  expected = sum(prior[..., k, None] * each[k] for k in range(3))
  np.testing.assert_allclose(np.exp(project(mixture)), expected, rtol=1e-4, atol=1e-7)
  adaptive = gpt(softmax_clusters="10,15", tie_embeddings=False)
  params, got = adaptive.params["logits_dense"], np.asarray(project(adaptive))
  assert {name: x.shape for name, x in params.items() if name[0] != "p"} == {
    "head": (16, 12), "tail_1": (4, 15), "tail_2": (1, 25)
  }  # fmt: skip
  head = log_softmax(hidden @ params["head"])
  first = head[..., 10, None] + log_softmax(hidden @ params["project_1"]["kernel"] @ params["tail_1"])
  second = head[..., 11, None] + log_softmax(hidden @ params["project_2"]["kernel"] @ params["tail_2"])
  np.testing.assert_allclose(got, np.concatenate([head[..., :10], first, second], axis=-1), rtol=0, atol=1e-5)
  np.testing.assert_allclose(np.exp(got).sum(-1), 1.0, rtol=1e-5)


def check_cached_steps(built, tokens, steps=4):
  """Decodes with the weights that decoding prepares; compares with a full pass."""
  batch, fed = {"encoder_input_tokens": tokens(2, 6)}, tokens(2, steps)
  fed[:, 0] = 0

  def decode(params):
    model, variables = prepare(built.model, params)
    cache = model.apply(variables, batch, steps, method="start_decoding")
    step = lambda cache, tokens: model.apply(variables, tokens, cache, method="decode_step")[::-1]  # noqa: E731
    return jax.lax.scan(step, cache, fed.T)[1]

  got = np.asarray(built.jit(decode)(built.params)).transpose(1, 0, 2)
  np.testing.assert_allclose(got, built(batch | {"decoder_input_tokens": fed})["logits"], rtol=0, atol=2e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variant", VARIANTS)
def test_cached_steps_equal_a_full_pass(t5, tokens, variant):
  check_cached_steps(t5(**VARIANTS[variant]), tokens)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["universal, scanned", "shared layers, scanned"])
def test_a_cache_of_stacked_shared_layers(t5, tokens, name):
  """Without the weights that decoding prepares, which are not stacked."""
  built = t5(**VARIANTS[name])
  batch, fed = {"encoder_input_tokens": tokens(2, 6)}, np.array([[0, 5, 9], [0, 8, 3]], np.int32)

  def decode(params):
    cache = built.model.apply({"params": params}, batch, 3, method="start_decoding")
    run = lambda cache, t: built.model.apply({"params": params}, t, cache, method="decode_step")[::-1]  # noqa: E731
    return jax.lax.scan(run, cache, fed.T)[1]

  got = np.asarray(built.jit(decode)(built.params)).transpose(1, 0, 2)
  np.testing.assert_allclose(got, built(batch | {"decoder_input_tokens": fed})["logits"], rtol=0, atol=2e-5)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if "scanned" not in name and name != "universal"])
def test_flops_are_those_of_the_products(variant):
  fields = dict(num_encoder_layers=2, num_decoder_layers=2, positions="none")  # a bias would be a product, too
  config = TransformerConfig(**SIZES | fields | VARIANTS[variant])
  model = T5(config)
  batch = {
    f"{side}_input_tokens": jax.ShapeDtypeStruct((2, n), "int32") for side, n in (("encoder", 7), ("decoder", 5))
  }
  params = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), batch))
  traced = traced_flops(lambda p, b: model.apply(p, b)["logits"], params, batch)
  assert sum(forward_flops_by_part(config, 2, 7, 5).values()) == traced


@pytest.mark.parametrize(
  "fields, words",
  [
    (dict(layer_groups=3), "layer_groups: 3"),
    (dict(layer_signal=True), "layer_signal"),
    (dict(residual="highway"), "residual: 'highway'"),
    (dict(tie_inputs=False, num_encoder_layers=0), "tie_inputs"),
    (dict(embedding_dim=4), "embedding_projection: 'sum'"),
    (dict(softmax_mixtures=-1), "softmax_mixtures"),
    (dict(softmax_mixtures=2, num_decoder_layers=0), "num_decoder_layers"),
    (dict(softmax_clusters="10,15"), "tie_embeddings = False"),
    (dict(softmax_clusters="10,60", tie_embeddings=False), "below vocab_size = 50"),
    (dict(softmax_clusters="10;15", tie_embeddings=False), "softmax_clusters: '10;15'"),
    (dict(share_encoder_decoder=True, shared_stacks="encoder", layer_groups=1), "shared_stacks"),
  ],
)
def test_invalid_combinations(fields, words):
  with pytest.raises(UserError, match=words):
    TransformerConfig(**SIZES | dict(num_encoder_layers=2, num_decoder_layers=2) | fields)


@pytest.mark.parametrize("fields", [dict(residual="rezero"), dict(layer_groups=1), dict(activation="elu")])
def test_no_hugging_face_class_has_them(t5, tmp_path, fields):
  built = t5(**fields)
  with pytest.raises(UserError, match=f"{next(iter(fields))} = "):
    huggingface.save(tmp_path, built.model, built.params)


def test_lora_finds_shared_layers_once_and_no_kernels_of_experts():
  model = lambda name: T5(TransformerConfig(**SIZES, num_encoder_layers=2, num_decoder_layers=2, **VARIANTS[name]))  # noqa: E731
  assert len(LoRA().sites(model("universal"))) == 6  # query and value of three attentions
  assert len(LoRA().sites(model("experts"))) == 12
  with pytest.raises(UserError, match="matches no matrix"):
    LoRA(targets=(".*/mlp/wi",)).sites(model("experts"))
