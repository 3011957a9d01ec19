"""Switches of decoders: grouped heads, window, ALiBi, QK-norm and others, packed, cached and on eight devices."""

import dataclasses

import flax.linen as nn
import jax
import numpy as np
import pytest

from t5like import parallel
from t5like.decoding import DecodeSettings
from t5like.errors import UserError
from t5like.experiments.compatibility import check_splits
from t5like.inference.generation import Generator
from t5like.models import GPT, TransformerConfig
from t5like.models.positions import rotary_frequencies
from t5like.models.stepping import prepare

LLAMA = dict(
  norm="rms", use_bias=False, positions="rotary", num_heads=4, num_kv_heads=2, activation="silu", gated_mlp=True,
  tie_embeddings=False,
)  # fmt: skip
VARIANTS = {
  "grouped, window": LLAMA | dict(attention_window=3),
  "QK-norm, norms of branches": LLAMA | dict(qk_norm=True, norm_position="branch", scan_layers=True),
  "ALiBi": dict(positions="alibi", num_heads=4, embedding_norm=True, num_kv_heads=1),
  "ALiBi, window, prefix LM": dict(positions="alibi", num_heads=4, attention_window=4, prefix_lm=True),
  "projected tokens": dict(embedding_dim=6, embedding_projection="tokens", norm_position="post", position_offset=2),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("variant", VARIANTS)
def test_cached_steps_equal_a_full_pass(gpt, tokens, variant):
  """After prompts of 5 and 2 tokens, with two hypotheses per row, and with the weights that decoding prepares."""
  built = gpt(**VARIANTS[variant])
  rows, lengths, steps = tokens(2, 11), (5, 2), 5
  inside = (np.arange(5)[None] < np.array(lengths)[:, None]).astype(np.int32)
  batch = {"decoder_input_tokens": rows[:, :5] * inside, "decoder_segment_ids": inside}
  fed = np.stack([rows[i, n - 1 : n - 1 + steps] for i, n in enumerate(lengths)])  # from each prompt's last token

  def decode(params, fed):
    model, variables = prepare(built.model, params)
    cache = model.apply(variables, batch, steps, 2, method="start_decoding")

    def step(cache, tokens):
      return model.apply(variables, tokens, cache, method="decode_step")[::-1]

    return jax.lax.scan(step, cache, np.repeat(fed, 2, axis=0).T)[1]

  got = np.asarray(built.jit(decode)(built.params, fed)).transpose(1, 0, 2)[::2]
  whole = {"decoder_input_tokens": rows}
  if built.config.prefix_lm:
    whole["decoder_causal_attention"] = (np.arange(11)[None] < np.array(lengths)[:, None]).astype(np.int32)
  expected = np.asarray(built(whole)["logits"])
  for row, length in enumerate(lengths):
    np.testing.assert_allclose(got[row], expected[row, length - 1 : length - 1 + steps], rtol=0, atol=2e-5)


def test_a_window_hides_what_is_further_away(gpt, tokens):
  """Two layers see the last 5 tokens, 3 per layer; examples of a packed row do not see each other."""
  built = gpt(**VARIANTS["grouped, window"])
  rows = tokens(1, 11)
  changed = rows.copy()
  changed[0, 3] = 1 + rows[0, 3] % 40
  one, other = (np.asarray(built({"decoder_input_tokens": x})["logits"])[0] for x in (rows, changed))
  differs = np.any(np.abs(one - other) > 1e-6, axis=-1)
  assert differs.tolist() == [False] * 3 + [True] * 5 + [False] * 3
  segments = np.array([[1] * 4 + [2] * 7], np.int32)
  positions = np.array([[*range(4), *range(7)]], np.int32)
  packed = {"decoder_input_tokens": rows, "decoder_segment_ids": segments, "decoder_positions": positions}
  alone = np.asarray(built({"decoder_input_tokens": rows[:, 4:]})["logits"])[0]
  np.testing.assert_allclose(np.asarray(built(packed)["logits"])[0, 4:], alone, rtol=0, atol=1e-5)


def test_rotary_frequencies_by_hand():
  """Llama 3.1: wavelengths below 8192 / 4 are kept, those above 8192 / 1 stretched by 8, others interpolated."""
  sizes = dict(vocab_size=5, embed_dim=8, mlp_dim=8, num_heads=1, head_dim=128, positions="rotary", rotary_base=5e5)
  plain = rotary_frequencies(TransformerConfig(**sizes))
  scaled = rotary_frequencies(TransformerConfig(**sizes, rotary_scaling="llama3", rotary_factor=8.0))
  wavelengths = 2 * np.pi / plain.astype(np.float64)
  ratio = scaled / plain
  np.testing.assert_allclose(ratio[wavelengths < 2048], 1.0, rtol=1e-6)
  np.testing.assert_allclose(ratio[wavelengths > 8192], 1 / 8, rtol=1e-6)
  between = (wavelengths > 2048) & (wavelengths < 8192)
  kept = (8192 / wavelengths[between] - 1) / 3
  np.testing.assert_allclose(ratio[between], (1 - kept) / 8 + kept, rtol=1e-5)
  assert between.sum() == 6
  halved = rotary_frequencies(TransformerConfig(**sizes, rotary_scaling="linear", rotary_factor=2.0))
  np.testing.assert_allclose(halved, plain / 2, rtol=1e-6)


@pytest.mark.parametrize(
  "fields, words",
  [
    (dict(num_kv_heads=3), "num_kv_heads: 3"),
    (dict(attention_window=0), "attention_window: 0"),
    (dict(rotary_scaling="yarn"), "rotary_scaling: 'yarn'"),
    (dict(rotary_scaling="llama3", rotary_high_factor=1.0), "rotary_high_factor"),
    (dict(rotary_factor=0.0), "rotary_factor"),
  ],
)
def test_invalid_settings(fields, words):
  with pytest.raises(UserError, match=words):
    TransformerConfig(**dict(vocab_size=9, embed_dim=8, mlp_dim=8, num_heads=4) | fields)


def test_heads_of_keys_must_be_divisible_by_the_tensor_axis():
  config = TransformerConfig(vocab_size=8, embed_dim=8, mlp_dim=8, num_heads=8, num_kv_heads=2)
  with pytest.raises(parallel.MeshError, match="kv_heads = 2"):
    check_splits(config, parallel.make_mesh(parallel.MeshAxes(data=2, tensor=4), jax.devices()[:8]))


@pytest.mark.slow(reason="compiles for eight devices")
@pytest.mark.parametrize("variant", ["grouped, window", "QK-norm, norms of branches", "ALiBi, window, prefix LM"])
def test_eight_devices_compute_what_one_does(gpt, tokens, variant):
  """Loss, gradients and greedy outputs, with heads and their keys split over two devices."""
  built = gpt(**VARIANTS[variant] | {"num_kv_heads": 2}, vocab_size=48)
  batch = {"decoder_input_tokens": tokens(8, 11) % 48}
  if built.config.prefix_lm:
    batch["decoder_causal_attention"] = np.tile(np.arange(11) < 4, (8, 1)).astype(np.int32)

  def loss(params):
    logits = built.model.apply({"params": params}, batch)["logits"]
    return -jax.nn.log_softmax(logits)[:, :-1].mean() + (logits**2).mean()

  expected = jax.jit(jax.value_and_grad(loss))(built.params)
  mesh = parallel.make_mesh(parallel.MeshAxes(data=2, fsdp=2, tensor=2), jax.devices()[:8])
  axes = nn.get_partition_spec(jax.eval_shape(built.model.init, jax.random.key(0), batch))["params"]
  with parallel.sharding_context(mesh):
    shardings = nn.logical_to_mesh_sharding(axes, mesh)
    params = jax.device_put(built.params, shardings)
    got = jax.jit(jax.value_and_grad(loss))(params)
  np.testing.assert_allclose(got[0], expected[0], rtol=1e-5)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), got[1], expected[1])
  one = parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:1])
  prompts = {"decoder_input_tokens": batch["decoder_input_tokens"][:, :4]}
  prompts |= {name: np.ones((8, 4), np.int32) for name in ("decoder_segment_ids", "decoder_causal_attention")}
  outputs = [
    Generator(built.model, where, None)(given, prompts, DecodeSettings(max_length=6)).tokens
    for where, given in ((one, built.params), (mesh, params))
  ]
  np.testing.assert_array_equal(*outputs)


def test_an_unknown_family_is_an_error():
  config = TransformerConfig(vocab_size=8, embed_dim=8, mlp_dim=8, num_heads=2, num_decoder_layers=1)
  model = GPT(dataclasses.replace(config, num_kv_heads=1), "lama")
  with pytest.raises(UserError, match="invalid GPT.family"):
    jax.eval_shape(model.init, jax.random.key(0), {"decoder_input_tokens": np.ones((1, 2), np.int32)})
