"""Variants of a model: equivalent ones have equal results, others differ as they should."""

from math import erf

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like.interop.layouts import flatten
from t5like.kernels.activation_functions import ACTIVATIONS
from t5like.models import GPT, T5, TransformerConfig

SIZE = dict(vocab_size=50, embed_dim=16, mlp_dim=24, num_heads=2, num_encoder_layers=2, num_decoder_layers=2)


def dropout_key(seed: int):
  return jax.random.key(seed, impl="rbg")  # compiles many times faster than the default generator


def loss_and_gradients(built, batch):
  """Returns the mean squared logit and its gradients, with dropout from a fixed key."""

  def loss(params):
    outputs = built.model.apply({"params": params}, batch, deterministic=False, rngs={"dropout": dropout_key(1)})
    return jnp.mean(jnp.square(outputs["logits"]))

  return built.jit(jax.value_and_grad(loss))(built.params)


@pytest.fixture
def batch(tokens):
  return {"encoder_input_tokens": tokens(2, 6), "decoder_input_tokens": tokens(2, 5)}


@pytest.mark.parametrize(
  ("family", "scan_layers"),
  [("t5_lm", False), *(pytest.param("t5", scan, marks=pytest.mark.slow) for scan in (False, True))],
)
def test_remat_changes_memory_not_gradients(family, batch, scan_layers, request):
  make = request.getfixturevalue(family)
  settings = dict(scan_layers=scan_layers, dropout_rate=0.1, num_decoder_layers=1)
  settings |= {"num_encoder_layers": 1} if family == "t5" else {}
  plain, expected = loss_and_gradients(make(**settings), batch)
  for remat in ("elementwise", "full", *(["dots"] if scan_layers else [])):
    loss, gradients = loss_and_gradients(make(**settings, remat=remat), batch)
    np.testing.assert_allclose(loss, plain, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), gradients, expected)


def test_shared_stacks_are_one_set_of_parameters(t5, batch):
  built = t5(share_encoder_decoder=True)
  assert set(built.params) == {"token_embedder", "shared"}
  moved = jax.tree.map(np.copy, built.params)
  moved["shared"]["layers_0"]["mlp"]["wi"]["kernel"] += 0.1
  apply = built.jit(lambda params: built.model.apply({"params": params}, batch, method="encode"))
  assert np.abs(apply(moved) - apply(built.params)).max() > 1e-3, "the encoder uses the decoder's MLP"


def test_activations_by_their_formulas():
  x = np.linspace(-3, 3, 13).astype(np.float32)
  tanh = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
  exact = np.array([0.5 * v * (1 + erf(v / 2**0.5)) for v in x])
  expected = {"relu": np.maximum(x, 0), "gelu": tanh, "gelu_erf": exact, "silu": x / (1 + np.exp(-x))}
  elu = np.where(x > 0, x, 1.6732632 * (np.exp(x) - 1))
  expected |= {"elu": np.where(x > 0, x, np.exp(x) - 1), "selu": 1.0507010 * elu, "linear": x}
  expected |= {"softplus": np.log(1 + np.exp(x)), "sigmoid": 1 / (1 + np.exp(-x))}
  assert set(expected) == set(ACTIVATIONS)
  for name, values in expected.items():
    np.testing.assert_allclose(ACTIVATIONS[name](x), values, rtol=0, atol=2e-6)
  np.testing.assert_array_equal(jax.vmap(jax.grad(ACTIVATIONS["relu"]))(x), x > 0)


@pytest.mark.parametrize(
  "fields, saved",
  [
    (dict(activation="relu"), 1),  # the result of the activation, which the next product needs
    (dict(activation="gelu"), 2),  # also its input, but not its tanh
    (dict(activation="gelu", gated_mlp=True), 3),
    (dict(activation="gelu", gated_mlp=True, remat="elementwise"), 2),
    (dict(activation="gelu", remat="full"), 0),
  ],
)
def test_an_mlp_saves_only_the_activations_it_needs(fields, saved):
  config = TransformerConfig(**SIZE | dict(num_encoder_layers=0, num_decoder_layers=1) | fields)
  tokens = jax.ShapeDtypeStruct((7, 5), np.int32)
  batch = {"decoder_input_tokens": tokens}
  params = nn.unbox(jax.eval_shape(GPT(config).init, jax.random.key(0), batch))

  def residuals(params, tokens):
    return jax.vjp(lambda params: GPT(config).apply(params, {"decoder_input_tokens": tokens})["logits"], params)[1]

  shapes = [x.shape for x in jax.tree.leaves(jax.eval_shape(residuals, params, tokens))]
  assert sum(shape == (7, 5, config.mlp_dim) for shape in shapes) == saved


@pytest.mark.slow
def test_bfloat16_compute_stays_close_and_logits_float32(t5, batch):
  full, half = t5(), t5(compute_dtype="bfloat16")
  outputs = half(batch)["logits"]
  assert outputs.dtype == jnp.float32
  np.testing.assert_allclose(outputs, full(batch)["logits"], rtol=0, atol=0.15)
  assert t5(compute_dtype="bfloat16", logits_dtype="bfloat16")(batch)["logits"].dtype == jnp.bfloat16


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  "tied, embedding_scale, logits_scale", [(True, 4.0, 0.25), (False, 1.0, 0.25), (False, 1.0, 1.0)]
)
def test_embedding_scale_and_logits_scale(t5_lm, tokens, tied, embedding_scale, logits_scale):
  """With layers that add nothing, a model is embedding -> norm -> projection, which is computed by hand."""
  fields = dict(scale_embeddings=embedding_scale != 1.0, scale_logits=logits_scale != 1.0, tie_embeddings=tied)
  built = t5_lm(positions="none", **fields)
  built.params = jax.tree.map(np.copy, built.params)
  for layer in ("layers_0", "layers_1"):
    built.params["decoder"][layer]["attention"]["out"]["kernel"][:] = 0
    built.params["decoder"][layer]["mlp"]["wo"]["kernel"][:] = 0
  row = tokens(1, 3)
  table, scale = built.params["token_embedder"]["embedding"], built.params["decoder"]["final_norm"]["scale"]
  x = table[row] * embedding_scale  # sqrt(16)
  normed = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * scale
  output = table.T if tied else built.params["logits_dense"]["kernel"]
  expected = np.einsum("...d,dv->...v", normed * logits_scale, output)
  np.testing.assert_allclose(built({"decoder_input_tokens": row})["logits"], expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_dropout_is_off_by_default_and_differs_by_key(t5, batch):
  built = t5(dropout_rate=0.5)
  run = built.jit(
    lambda key: built.model.apply({"params": built.params}, batch, deterministic=False, rngs={"dropout": key})
  )
  first, again, other = (run(dropout_key(k))["logits"] for k in (0, 0, 1))
  np.testing.assert_array_equal(first, again)
  assert np.abs(first - other).max() > 1e-2
  np.testing.assert_array_equal(built(batch)["logits"], built(batch)["logits"])


@pytest.mark.slow
def test_masked_positions_can_be_projected_alone(bert, tokens):
  """The MLM head on selected positions equals the rows of the full head."""
  built = bert()
  batch = {"encoder_input_tokens": tokens(2, 6)}
  variables = {"params": built.params}
  hidden = built.model.apply(variables, batch, method="hidden_states")
  chosen = built.model.apply(variables, hidden[:, [1, 4]], method="project")
  np.testing.assert_allclose(chosen, built(batch)["logits"][:, [1, 4]], rtol=0, atol=1e-5)


@pytest.mark.parametrize("scan_layers", [False, True])
def test_every_parameter_has_logical_axes(scan_layers):
  model = T5(TransformerConfig(**SIZE | dict(tie_embeddings=False, scan_layers=scan_layers)))
  token = np.ones((1, 2), np.int32)
  boxed = jax.eval_shape(model.init, jax.random.key(0), {"encoder_input_tokens": token, "decoder_input_tokens": token})
  axes = flatten(jax.tree.map(tuple, nn.get_partition_spec(boxed)["params"], is_leaf=lambda x: not isinstance(x, dict)))
  shapes = flatten(nn.unbox(boxed)["params"])
  known = {"embed", "mlp", "heads", "vocab", "layers", None}
  for path, names in axes.items():
    assert len(names) == len(shapes[path].shape) and set(names) <= known, (path, names)
    assert ("layers" in names) == ("/layers/" in path), (path, names)
  kernel = "encoder/layers/attention/query/kernel" if scan_layers else "encoder/layers_0/attention/query/kernel"
  assert axes[kernel] == (("layers",) if scan_layers else ()) + ("embed", "heads")


def test_t5_initialization():
  """Attention is unscaled: stddevs are (embed * head)^-0.5 for query kernels, embed^-0.5 for keys, 1 for embeddings."""
  config = TransformerConfig(
    vocab_size=1000, embed_dim=64, mlp_dim=128, num_heads=8, head_dim=16, num_encoder_layers=1, num_decoder_layers=1
  )
  token = np.ones((1, 2), np.int32)
  batch = {"encoder_input_tokens": token, "decoder_input_tokens": token}
  init = jax.jit(lambda key: nn.unbox(T5(config).init(key, batch)))
  params = init(jax.random.key(0))["params"]
  layer = params["decoder"]["layers_0"]
  expected = {
    "embedding": (params["token_embedder"]["embedding"], 1.0),
    "query": (layer["attention"]["query"]["kernel"], (64 * 16) ** -0.5),
    "key": (layer["cross_attention"]["key"]["kernel"], 64**-0.5),
    "out": (layer["attention"]["out"]["kernel"], 128**-0.5),
    "wo": (layer["mlp"]["wo"]["kernel"], 128**-0.5),
  }
  for name, (values, stddev) in expected.items():
    np.testing.assert_allclose(np.std(values), stddev, rtol=0.05, err_msg=name)
