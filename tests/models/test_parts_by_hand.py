"""The parts of a model compared with numpy."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import ScopeParamShapeError

from t5like.errors import UserError
from t5like.kernels.activations import add_bias
from t5like.kernels.attention import Mask
from t5like.models import BERT, GPT, T5, TransformerConfig
from t5like.models.attention import Attention, Context, RelativeBiasTable, describe_backend
from t5like.models.bert import predictions_per_row
from t5like.models.blocks import MLP, Block
from t5like.models.cache import select_hypotheses, start_cache
from t5like.models.embedder import Embedder, LogitsDense
from t5like.models.gpt import prompt_lengths
from t5like.models.layers import Norm, dense, kernel_init, parameter
from t5like.models.padding import encoder_valid
from t5like.models.positions import rotary_frequencies, rotate, sinusoids
from t5like.models.stack import Stack

SIZE = dict(vocab_size=50, embed_dim=4, mlp_dim=6, num_heads=2, num_encoder_layers=1, num_decoder_layers=1)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3, 4)).astype(np.float32)


def config(**fields):
  return TransformerConfig(**SIZE | fields)


def random_params(module, *args):
  shapes = nn.unbox(jax.eval_shape(module.init, jax.random.key(0), *args))["params"]
  return jax.tree.map(lambda x: RNG.normal(0.0, 0.7, x.shape).astype(x.dtype), shapes)


class Parameter(nn.Module):
  init_x: nn.initializers.Initializer
  shape: tuple[int, ...] = (2,)

  @nn.compact
  def __call__(self):
    return parameter(self, "x", self.init_x, self.shape, jnp.float32)


def test_a_parameter_that_is_given_is_not_drawn_again_and_must_fit():
  drawn = []
  init = lambda *given: drawn.append(1) or nn.initializers.ones(*given)  # noqa: E731
  variables = jax.tree.map(lambda x: 3 * x, Parameter(init).init(jax.random.key(0)))
  assert len(drawn) == 1
  np.testing.assert_array_equal(Parameter(init).apply(variables), [3.0, 3.0])
  assert len(drawn) == 1
  with pytest.raises(ScopeParamShapeError):
    Parameter(init, shape=(3,)).apply(variables)


def test_sinusoids():
  """Vaswani et al. 2017, 3.5, at width 4: wavelengths 2 pi and 100 * 2 pi."""
  p = np.array([[0.0, 1.0, 7.0, 500.0]])
  expected = np.stack([np.sin(p), np.sin(p / 100), np.cos(p), np.cos(p / 100)], axis=-1)
  np.testing.assert_allclose(sinusoids(jnp.asarray(p, jnp.int32), 4), expected, atol=1e-4)


def test_gradients_of_biases_are_summed_in_float32():
  """Also of bfloat16 rows, whose sum in bfloat16 would lose the small ones: 256 + 1 is 256."""
  rows = jnp.ones((2, 300, 4), jnp.bfloat16)
  config = TransformerConfig(vocab_size=8, embed_dim=4, mlp_dim=4, num_heads=1, compute_dtype="bfloat16", use_bias=True)
  layer = dense(config, 3, (None, None))
  variables = nn.unbox(layer.init(jax.random.key(0), rows))
  gradient = jax.grad(lambda v: jnp.sum(layer.apply(v, rows), dtype=jnp.float32))
  np.testing.assert_array_equal(gradient(variables)["params"]["bias"], np.full(3, 600, np.float32))
  inner = str(jax.make_jaxpr(gradient)(variables))
  assert "f32[3] = reduce_sum" in inner and "bf16[3] = reduce_sum" not in inner
  x, bias = np.float32([[1, 2, 3]]), np.float32([4, 5, 6])
  np.testing.assert_array_equal(add_bias(x, bias), [[5, 7, 9]])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("base", [10_000.0, 16.0])
def test_rotary_positions_rotate_complex_numbers(base):
  """Su et al. 2021: pair i of 4 at position p is multiplied by exp(1j p base^(-i/2))."""
  x = RNG.normal(size=(2, 3, 2, 4)).astype(np.float32)
  positions = np.array([[0, 1, 5], [3, 2, 40]])
  angles = positions[:, :, None, None] * np.array([1.0, base**-0.5])
  rotated = (x[..., :2] + 1j * x[..., 2:]) * np.exp(1j * angles)
  expected = np.concatenate([rotated.real, rotated.imag], axis=-1)
  config = TransformerConfig(vocab_size=5, embed_dim=8, mlp_dim=8, num_heads=2, positions="rotary", rotary_base=base)
  found = rotate(jnp.asarray(x), jnp.asarray(positions), rotary_frequencies(config))
  np.testing.assert_allclose(found, expected, atol=1e-5)


def by_definition(x, params, scale, causal, rotation=lambda x: x):
  """Computes self-attention of [batch, length, embed] with two heads, in float64."""
  heads = lambda name: np.asarray(x @ params[name]["kernel"], np.float64).reshape(*x.shape[:2], 2, -1)  # noqa: E731
  query, key, value = rotation(heads("query")), rotation(heads("key")), heads("value")
  scores = scale * np.einsum("bqhd,bkhd->bhqk", query, key)
  if causal:
    scores = np.where(np.tril(np.ones(scores.shape[2:], bool)), scores, -np.inf)
  weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
  return np.einsum("bhqk,bkhd->bqhd", weights, value).reshape(*x.shape[:2], -1) @ params["out"]["kernel"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("positions", ["none", "rotary"])
def test_attention(scaled, positions):
  """Scores are divided by sqrt(head_dim) if configured; keys and queries are rotated, values are not."""
  module = Attention(config(head_dim=4, scale_attention=scaled, positions=positions, rotary_base=9.0))
  context = Context(mask=Mask(causal=True))
  params = random_params(module, X, context, None)

  def rotation(x):
    angles = np.arange(3)[:, None, None] * np.array([1.0, 9.0**-0.5])
    rotated = (x[..., :2] + 1j * x[..., 2:]) * np.exp(1j * angles)
    return np.concatenate([rotated.real, rotated.imag], axis=-1) if positions == "rotary" else x

  expected = by_definition(X, params, 0.5 if scaled else 1.0, True, rotation)
  found, keys_values = module.apply({"params": params}, X, context, None)
  np.testing.assert_allclose(found, expected, atol=1e-5)
  assert keys_values is None
  _, keys_values = module.apply({"params": params}, X, dataclasses.replace(context, return_kv=True), None)
  np.testing.assert_allclose(keys_values["value"].reshape(2, 3, 8), X @ params["value"]["kernel"], atol=1e-5)


def test_embeddings_are_scaled_before_positions_are_added():
  """By sqrt(4)."""
  embedder = Embedder(config(scale_embeddings=True, positions="learned", max_positions=3, num_token_types=1))
  tables = {"embedding": 3.0, "position_embedding": 10.0, "token_type_embedding": 100.0}
  params = {name: jnp.full((50, 4), value) for name, value in tables.items()}
  params = params | {name: params[name][:n] for name, n in (("position_embedding", 3), ("token_type_embedding", 1))}
  found = embedder.apply({"params": params}, np.array([[7, 8]]), deterministic=True)
  np.testing.assert_array_equal(found, np.full((1, 2, 4), 116.0))


def test_the_configured_back_end_is_used():
  module = Attention(config(attention_backend="pallas_tpu"))
  with pytest.raises(UserError, match="'pallas_tpu' does not run on this machine"):
    jax.eval_shape(module.init, jax.random.key(0), X, Context(mask=Mask()), None)


def test_gated_mlp():
  """The activation applies to the first product only; with biases."""
  module = MLP(config(gated_mlp=True, activation="silu", use_bias=True))
  params = random_params(module, X, True)
  products = {n: X @ params[n]["kernel"] + params[n]["bias"] for n in ("wi_0", "wi_1")}
  h = products["wi_0"] / (1 + np.exp(-products["wi_0"])) * products["wi_1"]
  expected = h @ params["wo"]["kernel"] + params["wo"]["bias"]
  np.testing.assert_allclose(module.apply({"params": params}, X, True), expected, atol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("norm, position", [("rms", "pre"), ("layer", "post")])
def test_a_block_adds_residuals_and_normalizes(norm, position):
  module = Block(config(positions="none", norm=norm, norm_position=position, norm_epsilon=0.5))
  context = Context(mask=Mask())
  params = random_params(module, X, None, context)

  def normed(x, name):
    x = x - x.mean(-1, keepdims=True) if norm == "layer" else x
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.5) * params[name]["scale"]
    return x + params[name].get("bias", 0.0)

  def mlp(x):
    return np.maximum(x @ params["mlp"]["wi"]["kernel"], 0) @ params["mlp"]["wo"]["kernel"]

  def attend(x):
    return by_definition(x, params["attention"], 1.0, False)

  expected = X
  for name, branch in (("attention_norm", attend), ("mlp_norm", mlp)):
    if position == "pre":
      expected = expected + branch(normed(expected, name))
    else:
      expected = normed(expected + branch(expected), name)
  found, keys_values = module.apply({"params": params}, X, None, context)
  np.testing.assert_allclose(found, expected, atol=1e-5)
  assert keys_values is None


def test_norms_compute_in_float32_and_return_the_compute_dtype():
  module = Norm(config(compute_dtype="bfloat16"))
  params = {"scale": jnp.full(4, 3.0)}
  found = module.apply({"params": params}, X)
  assert found.dtype == jnp.bfloat16
  expected = 3 * X / np.sqrt((X**2).mean(-1, keepdims=True) + 1e-6)
  np.testing.assert_array_equal(found, jnp.asarray(expected, jnp.bfloat16))


def initialized(*inits):
  """Returns parameters of several initializers, compiled as one function."""
  return jax.jit(lambda key: [nn.unbox(init(key))["params"] for init in inits])(jax.random.key(0, impl="rbg"))


WIDE = dict(vocab_size=999, embed_dim=64, mlp_dim=128, num_heads=4, num_encoder_layers=2, num_decoder_layers=4)


def test_the_initialization_of_bert_and_gpt():
  """Normal with stddev 0.02; GPT-2 scales residual projections by 1 / sqrt(2 layers); biases 0, norms 1."""
  settings = config(**WIDE, initializer="normal", scale_residual_init=True, use_bias=True, norm="layer",
                    num_token_types=300, positions="learned", max_positions=300)  # fmt: skip
  x, tokens = np.ones((1, 1, 64), np.float32), np.zeros((1, 1), np.int32)
  attention, mlp, tables, output, norm = initialized(
    lambda key: Attention(settings).init(key, x, Context(mask=Mask()), None),
    lambda key: MLP(settings).init(key, x, True),
    lambda key: Embedder(settings).init(key, tokens, deterministic=True),
    lambda key: LogitsDense(settings).init(key, x),
    lambda key: Norm(settings).init(key, x),
  )
  plain = list(tables.values())
  assert len(plain) == 3
  plain += [attention["query"]["kernel"], attention["value"]["kernel"], mlp["wi"]["kernel"], output["kernel"]]
  for values in plain:
    np.testing.assert_allclose(np.std(values), 0.02, rtol=0.05)
  for last in (attention["out"], mlp["wo"]):
    np.testing.assert_allclose(np.std(last["kernel"]), 0.02 / 12**0.5, rtol=0.05)
    assert not last["bias"].any()
  unscaled = kernel_init(dataclasses.replace(settings, scale_residual_init=False), "residual")
  np.testing.assert_allclose(np.std(unscaled(jax.random.key(0), (64, 64))), 0.02, rtol=0.05)
  assert not norm["bias"].any() and (norm["scale"] == 1).all()


def test_the_initialization_of_t5s_relative_positions_and_scaled_queries():
  settings = config(**WIDE, scale_attention=True, relative_buckets=512, relative_max_distance=600)
  x = np.ones((1, 1, 64), np.float32)
  table, attention = initialized(
    lambda key: RelativeBiasTable(settings).init(key, True),
    lambda key: Attention(settings).init(key, x, Context(mask=Mask()), None),
  )
  table = table["rel_embedding"]
  limit = (3 / ((512 + 4) / 2)) ** 0.5  # uniform, with the variance 1 / mean of both sizes
  assert table.shape == (4, 512) and np.abs(table).max() < limit
  np.testing.assert_allclose(np.std(table), limit / 3**0.5, rtol=0.05)
  # If scores are scaled, the query kernel is not.
  np.testing.assert_allclose(np.std(attention["query"]["kernel"]), 64**-0.5, rtol=0.05)


def test_layers_in_a_loop_are_initialized_differently():
  stack, context = Stack(config(scan_layers=True), 2), Context(mask=Mask())
  init = jax.jit(lambda key: nn.unbox(stack.init(key, X, context)))
  kernel = init(jax.random.key(0, impl="rbg"))["params"]["layers"]["mlp"]["wi"]["kernel"]
  assert kernel.shape == (2, 4, 6) and not np.any(kernel[0] == kernel[1])


def test_the_padding_mask_of_an_encoder():
  """Segment ids take precedence over lengths, and lengths over the padding id."""
  batch = {"encoder_input_tokens": np.array([[5, 0, 6, 0]])}
  assert encoder_valid(batch).tolist() == [[True, False, True, False]]
  batch["encoder_lengths"] = np.array([3])
  assert encoder_valid(batch).tolist() == [[True, True, True, False]]
  batch["encoder_segment_ids"] = np.array([[1, 2, 0, 0]])
  assert encoder_valid(batch).tolist() == [[True, True, False, False]]


def test_prompt_lengths():
  tokens = {"decoder_input_tokens": np.array([[5, 6, 7], [8, 0, 0]])}
  assert prompt_lengths(tokens).tolist() == [3, 3]
  assert prompt_lengths(tokens | {"decoder_segment_ids": np.array([[1, 1, 1], [1, 0, 0]])}).tolist() == [3, 1]
  prefix = {"decoder_causal_attention": np.array([[1, 1, 0], [0, 0, 0]])}
  assert prompt_lengths(tokens | prefix).tolist() == [2, 1]  # a row of padding counts as one token


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scanned", [False, True])
def test_a_cache_starts_after_the_prompts(scanned):
  """Prompts of three tokens and of one, two hypotheses each; the first step is fed their last tokens."""
  key = np.arange(12, dtype=np.float32).reshape(2, 3, 1, 2)
  keys_values = {"self": {"key": key, "value": -key}, "cross": {"key": key, "value": -key}}
  keys_values = jax.tree.map(lambda x: x[None], keys_values) if scanned else (keys_values,)
  cache = start_cache(keys_values, np.array([3, 1]), 5, 2, scanned)
  assert cache["index"].tolist() == [2, 2, 0, 0] and cache["generated_length"] == 0
  assert cache["prompt_valid"].tolist() == [[True, True], [False, False]]
  layer = jax.tree.map(lambda x: x[0], cache["layers"]) if scanned else cache["layers"][0]
  assert layer["generated"].shape == (4, 2, 1, 5, 2) and not layer["generated"].any()
  both = np.stack([key, -key], axis=1).swapaxes(2, 3)  # [batch, 2, heads, length, kv]
  np.testing.assert_array_equal(layer["cross"], both)
  np.testing.assert_array_equal(layer["prompt"], both[:, :, :, :2])


def test_selecting_hypotheses_of_a_cache():
  """The cache remembers who wrote a token; keys and values do not move."""
  cache = {"layers": 7, "index": 1, "origins": np.broadcast_to(np.arange(3, dtype=np.int32)[None, :, None], (2, 3, 4))}
  moved = select_hypotheses(cache | {"generated_length": 1}, np.array([[2, 0, 0], [1, 1, 2]]))
  assert moved["origins"][:, :, 0].tolist() == [[2, 0, 0], [1, 1, 2]] and moved["layers"] == 7 and moved["index"] == 1
  moved = select_hypotheses(moved | {"generated_length": 2}, np.array([[1, 0, 2], [2, 2, 0]]))
  assert moved["origins"][:, :, 0].tolist() == [[0, 2, 0], [2, 2, 1]]
  assert moved["origins"][:, :, 1].tolist() == [[1, 0, 2], [2, 2, 0]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("prefix_lm", [False, True])
def test_only_a_prefix_lm_uses_the_prefix(t5_lm, tokens, prefix_lm):
  """And the upper half of its buckets, for keys after the query."""
  built, batch = t5_lm(prefix_lm=prefix_lm), {"decoder_input_tokens": tokens(1, 3)}
  params = jax.tree.map(np.copy, built.params)
  params["decoder"]["relpos_bias"]["rel_embedding"][:, 16:] += 1.0

  def run(params, others):
    with_prefix = batch | {"decoder_causal_attention": np.ones((1, 3), np.int32)}
    given = ((params, batch), (params, with_prefix), (others, with_prefix))
    return [built.model.apply({"params": p}, b)["logits"] for p, b in given]

  plain, read, other = built.jit(run)(built.params, params)
  assert (np.abs(plain - read).max() > 1e-3) == prefix_lm
  assert (np.abs(read - other).max() > 1e-3) == prefix_lm


def test_predictions_per_row_are_multiples_of_eight_up_to_the_row_length():
  assert [predictions_per_row(0.15, n) for n in (8, 10, 54, 107, 512)] == [8, 8, 16, 24, 80]
  assert predictions_per_row(0.5, 16) == 8 and predictions_per_row(0.51, 16) == 16


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1])
def test_invalid_shares_of_predictions_are_rejected(share):
  with pytest.raises(UserError, match="predicted_share"):
    jax.eval_shape(BERT(config(mlm_head=True), share).init, jax.random.key(0), {"encoder_input_tokens": X[..., 0]})


def test_token_types_default_to_zero_and_the_pooler_reads_the_first_token(bert, tokens):
  built = bert()
  row = tokens(2, 5)
  without = built({"encoder_input_tokens": row})
  zeros = built({"encoder_input_tokens": row, "encoder_token_types": np.zeros_like(row)})
  np.testing.assert_array_equal(without["logits"], zeros["logits"])
  pooler, head = built.params["pooler"], built.params["nsp_head"]
  pooled = np.tanh(np.asarray(without["hidden_states"])[:, 0] @ pooler["kernel"] + pooler["bias"])
  np.testing.assert_allclose(without["pooled"], pooled, atol=1e-5)
  np.testing.assert_allclose(without["nsp_logits"], pooled @ head["kernel"] + head["bias"], atol=1e-5)


@pytest.mark.parametrize("fields", [dict(num_heads=1), dict(head_dim=1), dict(dropout_rate=0.0, mlp_dropout_rate=0.99),
                                    dict(relative_buckets=4, relative_max_distance=3), dict(max_positions=1),
                                    dict(num_decoder_layers=4096), dict(vocab_size=2**31 - 1)])  # fmt: skip
def test_the_limits_of_ranges_are_valid(fields):
  config(**fields)


@pytest.mark.parametrize(
  "fields, word",
  [
    (dict(head_dim=0), "head_dim"), (dict(max_positions=0), "max_positions"), (dict(vocab_size=0), "vocab_size"),
    (dict(num_token_types=-1), "num_token_types"), (dict(num_decoder_layers=-1), "num_decoder_layers"),
    (dict(mlp_dropout_rate=1.0), "mlp_dropout_rate"), (dict(attention_dropout_rate=-0.1), "attention_dropout_rate"),
    (dict(positions="sinusoidal", embed_dim=5, head_dim=2), "embed_dim"), (dict(mlp_dim=0), "mlp_dim"),
    (dict(relative_max_distance=2**31), "relative_max_distance"), (dict(num_encoder_layers=4097), "num_encoder_layers"),
  ],
)  # fmt: skip
def test_more_invalid_fields_are_rejected(fields, word):
  with pytest.raises(UserError, match=word):
    config(**fields)


def test_the_defaults_are_those_of_t5():
  """As in Raffel et al. 2019 and the released 1.0 models."""
  found = dataclasses.asdict(TransformerConfig(vocab_size=8, embed_dim=8, mlp_dim=8, num_heads=2))
  expected = dict(
    head_dim=4, num_encoder_layers=0, num_decoder_layers=0, activation="relu", gated_mlp=False, norm="rms",
    norm_epsilon=1e-6, norm_position="pre", use_bias=False, scale_attention=False, share_encoder_decoder=False,
    prefix_lm=False, positions="relative_bias", relative_buckets=32, relative_max_distance=128,
    share_relative_bias=True, max_positions=None, rotary_base=10_000.0, tie_embeddings=True, scale_embeddings=False,
    scale_logits=True, embedding_norm=False, num_token_types=0, pooler=False, mlm_head=False, nsp_head=False,
    dropout_rate=0.0, attention_dropout_rate=None, mlp_dropout_rate=None, final_dropout=True, initializer="fan_in",
    initializer_stddev=0.02, scale_residual_init=False, param_dtype="float32", compute_dtype="float32",
    logits_dtype="float32", scan_layers=False, layer_loop="auto", remat="none", attention_backend="auto",
    padding_id=0, position_offset=0, embedding_dim=None, layer_groups=None, discriminator_head=False,
    use_key_bias=True, relative_norm=False, share_position_projections=False, convolution_width=0,
    num_kv_heads=None, qk_norm=False, attention_window=None, rotary_scaling="default", rotary_factor=1.0,
    rotary_low_factor=1.0, rotary_high_factor=4.0, rotary_original_length=8192, embedding_projection="sum",
    positions_per_stack=False, start_id=None, opening_id=None, logits_bias=False,
    num_experts=0, experts_per_token=1, expert_capacity=1.25, balance_loss=0.01, router_z_loss=0.001,
    shared_stacks="all", layer_signal=False, residual="plain", tie_inputs=True, softmax_mixtures=0,
    softmax_clusters="", synthesizer="none",
  )  # fmt: skip
  assert found == dict(vocab_size=8, embed_dim=8, mlp_dim=8, num_heads=2) | expected


def test_the_back_end_of_each_kind_of_attention():
  settings = config(head_dim=64, compute_dtype="bfloat16")
  lines = describe_backend(settings, 512, 128, platform="tpu").splitlines()
  assert [line.split(" (")[0] for line in lines] == ["encoder and decoder: pallas_tpu", "cross: splash_tpu"]
  assert describe_backend(settings, 0, 512, platform="tpu").startswith("pallas_tpu (")
  learned = dataclasses.replace(settings, positions="none")
  assert describe_backend(learned, 0, 512, platform="tpu").startswith("splash_tpu (")
  alibi = dataclasses.replace(settings, positions="alibi")  # splash attention has no bias
  assert describe_backend(alibi, 0, 512, platform="tpu").startswith("pallas_tpu (")
  prefix = dataclasses.replace(learned, prefix_lm=True)
  assert describe_backend(prefix, 0, 512, platform="tpu").startswith("pallas_tpu (")
  for dropped in (dict(attention_dropout_rate=0.1), dict(dropout_rate=0.1)):
    assert describe_backend(dataclasses.replace(learned, **dropped), 0, 512, platform="tpu").startswith("pallas_tpu (")
  undropped = dataclasses.replace(learned, dropout_rate=0.1, attention_dropout_rate=0.0)
  assert describe_backend(undropped, 0, 512, platform="tpu").startswith("splash_tpu (")


@pytest.mark.parametrize("model, layout", [(T5, "encoder_decoder"), (BERT, "encoder"), (GPT, "decoder")])
def test_batch_layouts(model, layout):
  assert model(config()).batch_layout == layout
  assert GPT(config(prefix_lm=True)).batch_layout == "prefix_lm"
