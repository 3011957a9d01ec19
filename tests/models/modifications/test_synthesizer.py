"""Synthesizer against the paper's formulae in numpy: scores, packed rows, cached steps, parameters, FLOPs, devices."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like import parallel
from t5like.decoding import DecodeSettings
from t5like.errors import UserError
from t5like.finetuning.methods.lora import LoRA
from t5like.finetuning.methods.prefixes import PrefixTuning
from t5like.inference.generation import Generator
from t5like.kernels.attention import AttentionSpec, Mask, RelativeBias, choose_backend
from t5like.models import T5, TransformerConfig
from t5like.models.attention import Context, describe_backend
from t5like.models.config import CHOICES
from t5like.models.modifications.synthesizer import SynthesizerAttention
from t5like.models.stack import INSIDE
from t5like.planning.flops import forward_flops_by_part, traced_flops

ONE = parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:1])
MODES = CHOICES["synthesizer"][1:]
SIZES = dict(vocab_size=50, embed_dim=16, mlp_dim=24, num_heads=2, head_dim=8, max_positions=12)


def random(shapes, seed=0):
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda x: rng.normal(0.0, 0.5, x.shape).astype(x.dtype), nn.unbox(shapes))


def by_hand(mode, params, x, allowed, bias):
  """Tay et al. 2020, sections 3.1 and 3.2, for one row x [length, embed], one head after the other."""
  p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
  n, heads = len(x), []
  for h in range(2):
    part = slice(8 * h, 8 * h + 8)
    if mode.startswith("dense"):  # F(x) = W2 relu(W1 x): W1 is the query
      scores = np.maximum(x @ p["query"]["kernel"][:, part], 0) @ p["synthesizer"][:, :n]
    elif mode == "factorized":
      scores = (p["query_factors"][h] @ p["key_factors"][h].T)[:n, :n]
    else:
      scores = p["position_scores"][h, :n, :n]
    if "plus" in mode:
      products = (x @ p["query"]["kernel"][:, part]) @ (x @ p["key"]["kernel"][:, part]).T
      a = 1 / (1 + np.exp(-p["alpha"][0])) if mode.endswith("alpha") else None
      scores = products + scores if a is None else (1 - a) * products + a * scores
    weights = np.exp(np.where(allowed, scores + bias[h], -np.inf))
    weights = weights / weights.sum(-1, keepdims=True)
    heads.append(weights @ (x @ p["value"]["kernel"][:, part]))
  return np.concatenate(heads, axis=-1) @ p["out"]["kernel"]


@pytest.mark.parametrize("mode", MODES)
def test_attention_by_hand(mode):
  """Also a packed row: its second example has the results of a row of its own. T5's bias is added last."""
  layer, x = SynthesizerAttention(TransformerConfig(**SIZES, synthesizer=mode)), random(jnp.zeros((2, 7, 16)))
  table = random(jnp.zeros((32, 2)), 1)
  context = Context(mask=Mask(causal=True), bias=RelativeBias(jnp.asarray(table), bidirectional=False))
  params = random(jax.eval_shape(layer.init, jax.random.key(0), x, context, None), 2)["params"]
  back = np.maximum(np.arange(7)[:, None] - np.arange(7)[None, :], 0)  # below 16: a bucket for each distance
  expected = [by_hand(mode, params, row, np.tri(7, dtype=bool), table[back].transpose(2, 0, 1)) for row in x]
  got = layer.apply({"params": params}, x, context, None)[0]
  np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5)
  segments = jnp.asarray([[1] * 3 + [2] * 4])
  packed = dataclasses.replace(
    context, mask=Mask(causal=True, query_segments=segments, key_segments=segments),
    positions=jnp.asarray([[*range(3), *range(4)]]),
  )  # fmt: skip
  got = layer.apply({"params": params}, np.concatenate([x[:1, :3], x[1:, :4]], axis=1), packed, None)[0][0]
  np.testing.assert_allclose(got, np.concatenate([expected[0][:3], expected[1][:4]]), rtol=0, atol=2e-5)


def test_initialization_is_that_of_the_authors_code():
  """A mean of both to begin with; Glorot's range for [512 queries, 8 heads, 512 keys] in TensorFlow's order of axes."""

  def start(mode):
    config = TransformerConfig(**SIZES | dict(num_heads=8, max_positions=512, embed_dim=64), synthesizer=mode)
    layer, x = SynthesizerAttention(config), jnp.ones((1, 2, 64))
    return nn.unbox(layer.init(jax.random.key(0), x, Context(mask=Mask()), None))["params"]

  random = start("random_plus_alpha")
  np.testing.assert_array_equal(random["alpha"], [0.0])
  limit = (6 / (8 * 512 + 512 * 512)) ** 0.5
  assert 0.99 * limit < np.abs(random["position_scores"]).max() <= limit
  limit = (6 / (16 * 8 + 16 * 512)) ** 0.5
  assert 0.99 * limit < np.abs(start("factorized")["key_factors"]).max() <= limit
  assert abs(start("dense")["synthesizer"].std() * 8**0.5 - 1) < 0.05  # 1 / sqrt(kv)


@pytest.mark.parametrize(
  "mode, millions", [("dense", 224), ("dense_plus", 243), ("dense_plus_alpha", 243), ("factorized", 207),
                     ("random", 254), ("random_plus", 292), ("random_plus_alpha", 292)]
)  # fmt: skip
def test_the_papers_counts(mode, millions):
  """Narang et al. 2021, Table 1. Self-attention has 8 heads of 128, the defaults of its class there, not 12 of 64."""
  sizes = dict(embed_dim=768, num_heads=8, head_dim=128, max_positions=512)
  layer = SynthesizerAttention(TransformerConfig(**SIZES | sizes, synthesizer=mode))
  shapes = jax.eval_shape(layer.init, jax.random.key(0), jnp.ones((1, 2, 768)), Context(mask=Mask()), None)
  each = sum(leaf.size for leaf in jax.tree.leaves(shapes))
  assert round((222_903_552 + 24 * (each - 4 * 768 * 768)) / 1e6) == millions


def built_t5(t5, mode, **fields):
  return t5(synthesizer=mode, max_positions=12, **fields)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_scanned", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_beams_score_as_full_passes(t5_lm, tokens, mode, is_scanned):
  """Beams of a decoder with prompts of unequal lengths score as full passes over their outputs."""
  more = dict(scan_layers=is_scanned, remat="full" if is_scanned else "none")
  built = t5_lm(synthesizer=mode, max_positions=12, **more)
  prompts, lengths = tokens(2, 5), np.array([3, 5])
  real = (np.arange(5)[None, :] < lengths[:, None]).astype(np.int32)
  given = {"decoder_input_tokens": prompts * real, "decoder_segment_ids": real}
  settings = DecodeSettings(max_length=6, method="beam", beams=3, n_best=2, length_penalty=0.0)
  found = Generator(built.model, ONE, None)(built.params, given, settings)
  tokens, scores = np.asarray(found.tokens), np.asarray(found.scores)
  for row, best in np.ndindex(2, 2):
    first = lengths[row]
    whole = np.concatenate([prompts[row, :first], tokens[row, best]])[None]
    logits = jax.nn.log_softmax(built({"decoder_input_tokens": whole})["logits"][0])
    total = sum(logits[at - 1, whole[0, at]] for at in range(first, first + 6))
    np.testing.assert_allclose(scores[row, best], total, rtol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_flops_are_those_of_the_products(mode):
  config = TransformerConfig(**SIZES, num_encoder_layers=2, num_decoder_layers=2, positions="none", synthesizer=mode)
  lengths = {f"{side}_input_tokens": n for side, n in (("encoder", 7), ("decoder", 5))}
  batch = {name: jax.ShapeDtypeStruct((2, n), "int32") for name, n in lengths.items()}
  params = nn.unbox(jax.eval_shape(T5(config).init, jax.random.key(0), batch))
  traced = traced_flops(lambda p, b: T5(config).apply(p, b)["logits"], params, batch)
  assert sum(forward_flops_by_part(config, 2, 7, 5).values()) == traced


def test_weights_are_shown(t5, tokens):
  built = built_t5(t5, "factorized", positions="none")
  batch = {"encoder_input_tokens": tokens(2, 6)}
  _, shown = built.model.apply({"params": built.params}, batch, method="encode", mutable=[INSIDE])
  layer = built.params["encoder"]["layers_1"]["attention"]
  factors = [layer[name][1, :6].astype(np.float64) for name in ("query_factors", "key_factors")]
  expected = np.exp(factors[0] @ factors[1].T)
  got = shown[INSIDE]["encoder"]["self"][0][1, 0, 1]
  np.testing.assert_allclose(got, expected / expected.sum(-1, keepdims=True), rtol=1e-4)


def test_no_fused_kernel_computes_it():
  spec = AttentionSpec("bfloat16", 64, 512, 512, synthesized=True)
  assert choose_backend("auto", spec, "tpu") == ("xla", "unfused: fused attention has no synthesized scores")
  config = TransformerConfig(
    **SIZES | dict(head_dim=64, max_positions=512, compute_dtype="bfloat16"), synthesizer="dense"
  )
  lines = describe_backend(config, 512, 512, platform="tpu").splitlines()
  assert lines[0].startswith("encoder and decoder: xla (unfused: fused attention has no synthesized")
  assert lines[1].startswith("cross: splash_tpu")


@pytest.mark.parametrize(
  "fields, words",
  [
    (dict(max_positions=None), "max_positions: None"),
    (dict(num_kv_heads=1), "num_kv_heads"),
    (dict(positions="rotary"), "positions = 'rotary'"),
    (dict(synthesizer="fixed"), "synthesizer: 'fixed'"),
  ],
)
def test_invalid_settings(fields, words):
  with pytest.raises(UserError, match=words):
    TransformerConfig(**SIZES | dict(synthesizer="dense", num_decoder_layers=1) | fields)


def test_rows_longer_than_its_positions_are_refused(t5, t5_lm, tokens):
  with pytest.raises(UserError, match="rows of 13 tokens are too long for a model with 12"):
    built_t5(t5, "random")({"encoder_input_tokens": tokens(1, 13), "decoder_input_tokens": tokens(1, 3)})
  built = t5_lm(synthesizer="dense", max_positions=12)
  generate = Generator(built.model, ONE, None)
  with pytest.raises(UserError, match="exceeds the model's positions"):
    generate(built.params, {"decoder_input_tokens": tokens(1, 6)}, DecodeSettings(max_length=8))


def test_fine_tuning_methods(t5):
  model = built_t5(t5, "random").model
  assert len(LoRA().sites(model)) == 8  # values of four self-attentions, query and value of two cross-attentions
  with pytest.raises(UserError, match="no scores for the keys of a prefix"):
    PrefixTuning().sites(model)


@pytest.mark.slow(reason="compiles for eight devices")
@pytest.mark.parametrize("mode", ["dense_plus_alpha", "random", "factorized"])
def test_eight_devices_compute_what_one_does(t5, tokens, mode):
  built = built_t5(t5, mode, vocab_size=48, scan_layers=mode == "random", remat="full" if mode == "random" else "none")
  batch = {"encoder_input_tokens": tokens(8, 9) % 48, "decoder_input_tokens": tokens(8, 7) % 48}
  loss = lambda params: jnp.mean(built.model.apply({"params": params}, batch)["logits"] ** 2)  # noqa: E731
  expected = jax.jit(jax.value_and_grad(loss))(built.params)
  mesh = parallel.make_mesh(parallel.MeshAxes(data=2, fsdp=2, tensor=2), jax.devices()[:8])
  shardings = parallel.parameter_shardings(jax.eval_shape(built.model.init, jax.random.key(0), batch)["params"], mesh)
  with parallel.sharding_context(mesh):
    got = jax.jit(jax.value_and_grad(loss))(jax.device_put(built.params, shardings))
  np.testing.assert_allclose(got[0], expected[0], rtol=1e-5)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), got[1], expected[1])
