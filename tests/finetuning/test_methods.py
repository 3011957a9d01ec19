"""Every method on every family: step 0, what trains, merging, and settings that do not fit."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from random_parameters import random_parameters

from t5like.errors import UserError
from t5like.finetuning import read_variables
from t5like.finetuning.methods import (
  IA3,
  BitFit,
  HoulsbyAdapter,
  LoRA,
  NormsOnly,
  ParallelAdapter,
  PfeifferAdapter,
  PrefixTuning,
  PromptTuning,
  T5Adapter,
  Together,
)
from t5like.finetuning.methods.adapters import Bottleneck, Extension
from t5like.finetuning.methods.lora import LowRank, LowRankTable
from t5like.finetuning.methods.scaling import Scaled
from t5like.models import BERT, GPT, T5, TransformerConfig
from t5like.models.shapes import boxed_shapes
from t5like.models.stepping import prepare
from t5like.models.tuning import merge

SIZES = dict(vocab_size=32, embed_dim=8, num_heads=2, head_dim=4, mlp_dim=16)
BERT_LIKE = dict(
  norm="layer", norm_position="post", use_bias=True, positions="learned", max_positions=16, scale_attention=True,
  activation="gelu_erf", embedding_norm=True,
)  # fmt: skip
LAYERS = dict(num_encoder_layers=2, num_decoder_layers=2)
FAMILIES = {
  "t5": T5(
    TransformerConfig(**SIZES, num_encoder_layers=2, num_decoder_layers=2, gated_mlp=True, tie_embeddings=False)
  ),
  "bert": BERT(TransformerConfig(**SIZES, **BERT_LIKE, num_encoder_layers=2, num_decoder_layers=0, mlm_head=True)),
  # Shared layers and factorized embeddings; disentangled attention.
  "albert": BERT(
    TransformerConfig(**SIZES, **BERT_LIKE, num_encoder_layers=2, layer_groups=1, embedding_dim=4, mlm_head=True)
  ),
  "deberta": BERT(
    TransformerConfig(
      **SIZES, **(BERT_LIKE | dict(positions="disentangled")), num_encoder_layers=2, relative_buckets=4, mlm_head=True
    )
  ),
  "gpt": GPT(TransformerConfig(**SIZES, num_encoder_layers=0, num_decoder_layers=2, scan_layers=True)),
}
TOKENS = np.random.default_rng(0).integers(1, 32, (2, 6), np.int32)
BATCH = {"encoder_input_tokens": TOKENS, "decoder_input_tokens": TOKENS}
ALL = r".*attention/.*|.*mlp/w.*"
METHODS = {
  "lora": LoRA(rank=2),
  "rslora": LoRA(targets=[ALL], rank=3, rslora=True, ranks={".*wo": 1}, alphas={".*out": 4.0}),
  "dora": LoRA(rank=2, dora=True),
  "ia3": IA3(),
  "houlsby": HoulsbyAdapter(size=3),
  "pfeiffer": PfeifferAdapter(reduction=2),
  "parallel": ParallelAdapter(),
  "t5": T5Adapter(size=4),
  "norms": NormsOnly(),
  "prompt": PromptTuning(length=3),
  "prefix": PrefixTuning(length=3, hidden=0),
  "projected": PrefixTuning(length=3, hidden=4),
  "lora and adapter": Together(methods=[LoRA(rank=2), PfeifferAdapter()]),
}
MERGED = ("lora", "rslora", "dora", "ia3", "norms")
ADDED = ("prompt", "prefix", "projected")  # tokens, keys or values, which change the result from the start


def scanned(model, stacked=True):
  return model.clone(config=dataclasses.replace(model.config, scan_layers=stacked))


def logits(model, params, **more):
  return model.apply({"params": params}, BATCH, **more)["logits"]


def flat(tree):
  return traverse_util.flatten_dict(tree, sep="/")


def initialized(model, method):
  """Returns the base's parameters, the tuned model and its initial parameters."""
  base, tuned = flat(random_parameters(model, BATCH)), method.tune(model)
  params = flat(nn.unbox(tuned.init(jax.random.key(1), BATCH)["params"])) | base | method.initial(base, model, None)
  nested = lambda tree: traverse_util.unflatten_dict(tree, sep="/")  # noqa: E731
  return nested(base), tuned, nested(params)


def trained(method, params):
  return method.episodes(read_variables(params), 1)[0].selection


def moved(params, selection):
  """Returns the parameters after a large step of those that train."""
  rng = np.random.default_rng(2)
  step = lambda x: x + 0.1 * rng.normal(size=x.shape).astype(np.float32)  # noqa: E731
  return selection.put(params, jax.tree.map(step, selection.take(params)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  ("name", "family"),
  [(name, "t5") for name in METHODS]
  + [(name, "bert") for name in ("lora", "dora", "ia3", "houlsby", "pfeiffer", "parallel", "prompt", "projected")]
  + [
    pytest.param(name, family, marks=pytest.mark.slow)
    for family in ("albert", "deberta")
    for name in ("lora", "dora", "ia3", "houlsby", "prompt", "projected")
  ]
  + [(name, "gpt") for name in ("rslora", "ia3", "t5", "lora and adapter", "prompt", "prefix")],
)
def test_step_0_equals_the_base_and_merging_changes_nothing(name, family):
  model, method = FAMILIES[family], METHODS[name]
  base, tuned, params = initialized(model, method)
  before, start = logits(model, base), logits(tuned, params)
  assert before.shape == start.shape
  if name not in ADDED:
    assert np.allclose(before, start, atol=1e-5) if name == "dora" else np.array_equal(before, start)
  changed = moved(params, trained(method, params))
  after = logits(tuned, changed)
  assert np.abs(after - before).max() > 1e-3
  left, merged = merge(tuned.tuning, changed)
  assert (left is None or not left.sites) == (name in MERGED)
  if name in MERGED:
    assert flat(merged).keys() == flat(base).keys()
    np.testing.assert_allclose(logits(model, merged), after, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lora", "houlsby", "projected"])
def test_scanned_and_separate_layers_are_equal(name):
  model, method = FAMILIES["t5"], METHODS[name]
  _, tuned, params = initialized(model, method)
  changed = moved(params, trained(method, params))
  stacked = {
    stack: {"layers": jax.tree.map(lambda *x: jnp.stack(x), changed[stack]["layers_0"], changed[stack]["layers_1"])}
    | {part: x for part, x in changed[stack].items() if not part.startswith("layers_")}
    for stack in ("encoder", "decoder")
  }
  scan = method.tune(scanned(model))
  np.testing.assert_allclose(logits(scan, changed | stacked), logits(tuned, changed), atol=1e-5)
  for remat in ("full", "dots"):
    config = dataclasses.replace(scan.config, remat=remat, layer_loop="unrolled")
    again = scan.clone(config=config)
    np.testing.assert_allclose(logits(again, changed | stacked), logits(tuned, changed), atol=1e-5)


def test_published_numbers_of_parameters():
  """T5 base: 884,736 for LoRA on q and v, 1,179,648 for T5's adapters of 32 units; Houlsby on BERT base 2,379,264."""

  def count(model, method, *parts):
    variables = read_variables(nn.unbox(boxed_shapes(method.tune(model))))
    return sum(v.size for v in variables.all if method.owns(v) and any(part in v.path for part in parts or ("",)))

  t5 = T5(TransformerConfig(
    vocab_size=32128, embed_dim=768, num_heads=12, head_dim=64, mlp_dim=3072, num_encoder_layers=12,
    num_decoder_layers=12, scan_layers=True,
  ))  # fmt: skip
  bert = BERT(TransformerConfig(
    **BERT_LIKE | dict(max_positions=512), vocab_size=30522, embed_dim=768, num_heads=12, head_dim=64, mlp_dim=3072,
    num_encoder_layers=12, num_decoder_layers=0, scan_layers=True,
  ))  # fmt: skip
  assert count(t5, LoRA()) == 884_736
  assert count(t5, T5Adapter(size=32), "_adapter/down", "_adapter/up") == 1_179_648
  assert count(bert, LoRA()) == 294_912
  assert count(bert, HoulsbyAdapter(), "_adapter") == 2_379_264


def test_layers_by_number_also_when_scanned():
  for model in (FAMILIES["t5"], scanned(FAMILIES["t5"])):
    method = LoRA(targets=[r"encoder/layers_1/attention/query"], rank=2)
    variables = read_variables(nn.unbox(boxed_shapes(method.tune(model))))
    assert {v.numbered for v in variables.all if method.owns(v)} == {
      "encoder/layers_1/attention/query/lora_a", "encoder/layers_1/attention/query/lora_b",
    }  # fmt: skip


def test_lora_dropout_only_in_training():
  model, method = FAMILIES["gpt"], LoRA(rank=2, dropout=0.5)
  _, tuned, params = initialized(model, method)
  changed = moved(params, trained(method, params))
  plain = jax.jit(lambda params: logits(tuned, params))
  dropped = jax.jit(lambda params: logits(tuned, params, rngs={"dropout": jax.random.key(0)}))
  assert np.array_equal(plain(changed), plain(changed))
  assert not np.allclose(dropped(changed), plain(changed))


def test_lora_scales_its_update_and_drops_its_inputs_at_their_rate():
  class Layer(nn.Module):
    @nn.compact
    def __call__(self, x):
      return LowRank(64, scale=3.0, dropout=0.25, magnitude=False, inputs=64, outputs=64, axes=(None, None))(
        self, jnp.zeros_like, x
      )

  apply = functools.partial(Layer().apply, {"params": {"lora_a": jnp.eye(64), "lora_b": jnp.eye(64)}})
  ones = jnp.ones((200, 64))
  assert np.array_equal(apply(ones), 3 * ones)
  values, counts = np.unique(apply(ones, rngs={"dropout": jax.random.key(0)}), return_counts=True)
  assert values.tolist() == [0, 4] and abs(counts[0] / ones.size - 0.25) < 0.02


def test_dora_by_hand():
  """The column (3, 4) has norm 5, which is a constant in the gradient; the bias is not scaled."""

  class Layer(nn.Module):
    @nn.compact
    def __call__(self, x):
      kernel, bias = (self.param(name, nn.initializers.zeros, (2, 1)[-n:]) for name, n in (("kernel", 2), ("bias", 1)))
      dora = LowRank(1, scale=1.0, dropout=0.0, magnitude=True, inputs=2, outputs=1, axes=(None, None))
      return dora(self, lambda x: x @ kernel + bias[None], x)

  def output(a):
    given = {"kernel": [[3.0], [4.0]], "bias": [7.0], "lora_b": [[1.0]], "magnitude": [10.0]}
    return Layer().apply({"params": {name: jnp.array(x) for name, x in given.items()} | {"lora_a": a}}, x)[0, 0]

  x = jnp.array([[1.0, 0.0]])
  value, gradient = jax.value_and_grad(output)(jnp.zeros((2, 1)))
  assert float(value) == pytest.approx(10 * 3 / 5 + 7) and gradient.tolist() == [[pytest.approx(10 / 5)], [0]]


def test_merged_weights_by_hand():
  """A kernel [2, 3] and its bias."""
  layer = {"kernel": np.array([[3.0, 0, 1], [0, 8, 2]]), "bias": np.array([1.0, 2, 3])}
  kernel, bias = merged_arrays(Scaled(False, 3, None), layer | {"ia3": np.array([1.0, 10, 100])})
  assert kernel == [[3, 0, 100], [0, 80, 200]] and bias == [1, 20, 300]
  kernel, bias = merged_arrays(Scaled(True, 2, None), layer | {"ia3": np.array([1.0, 10])})
  assert kernel == [[3, 0, 1], [0, 80, 20]] and bias == [1, 2, 3]
  update = {"lora_a": np.array([[0.0], [2]]), "lora_b": np.array([[1.0, 0, -0.5]])}
  lora = LowRank(1, scale=2.0, dropout=0.0, magnitude=False, inputs=2, outputs=3, axes=(None, None))
  assert merged_arrays(lora, layer | update) == [[[3, 0, 1], [4, 8, 0]], [1, 2, 3]]
  # The columns (3, 4), (0, 8) and (1, 0) have norms of 5, 8 and 1.
  dora, magnitude = dataclasses.replace(lora, magnitude=True), {"magnitude": np.array([10.0, 4, 3])}
  assert merged_arrays(dora, layer | update | magnitude) == [[[6, 0, 3], [8, 4, 0]], [1, 2, 3]]


def test_the_update_of_an_embedding_by_hand():
  table = LowRankTable(1, scale=3.0, inputs=2, outputs=2, axes=(None, None))

  class Embedder(nn.Module):
    @nn.compact
    def __call__(self):
      return table.factors(self)

  update = {"lora_a": jnp.array([[0.0], [2.0]]), "lora_b": jnp.array([[1.0, -1.0]])}
  a, scaled_b = Embedder().apply({"params": update})
  assert a.tolist() == [[0], [2]] and scaled_b.tolist() == [[3, -3]]
  merged = table.merged({"embedding": jnp.ones((2, 2)), **update})
  assert merged.keys() == {"embedding"} and merged["embedding"].tolist() == [[1, 1], [7, -5]]


def merged_arrays(extension, weights):
  merged = extension.merged({name: jnp.asarray(x, jnp.float32) for name, x in weights.items()})
  assert merged.keys() == {"kernel", "bias"}
  return [merged[name].tolist() for name in ("kernel", "bias")]


@pytest.mark.parametrize(("settings", "scale"), [({}, 6 / 4), ({"rslora": True}, 6 / 2), ({"alphas": {".*": 8.0}}, 2)])
def test_the_scale_of_lora(settings, scale):
  sites = LoRA(rank=4, alpha=6.0, **settings).sites(FAMILIES["t5"])
  assert {extension.scale for (extension,) in sites.values()} == {scale}


def test_lora_starts_with_torchs_uniform_values():
  class Layer(nn.Module):
    @nn.compact
    def __call__(self, x):
      size = dict(rank=64, inputs=100, outputs=5, axes=(None, None))
      return LowRank(scale=1.0, dropout=0.0, magnitude=False, **size)(self, lambda x: x[:, :5], x)

  params = nn.unbox(Layer().init(jax.random.key(0), jnp.ones((1, 100))))["params"]
  # Within 1 / sqrt(100).
  assert 0.099 < np.abs(params["lora_a"]).max() <= 0.1 and not params["lora_b"].any()


@pytest.mark.parametrize("kind", ["houlsby", "pfeiffer", "parallel", "sublayer"])
def test_where_adapters_read_and_add(kind):
  """f(v) = 4 relu(v down + 1) up, of the sublayer's input h, its result y, and the residual stream x."""
  rng = np.random.default_rng(0)
  down, up, x, y, h = (rng.normal(size=shape).astype(np.float32) for shape in ((8, 3), (3, 8), *[(2, 1, 8)] * 3))
  f = lambda v: 4 * np.maximum(v @ down + 1, 0) @ up  # noqa: E731
  own_norm = lambda v: v / np.sqrt(np.mean(v**2, axis=-1, keepdims=True) + 1e-6)  # noqa: E731
  expected = {
    "houlsby": x + y + f(y), "parallel": x + y + f(h), "pfeiffer": x + y + f(7 * (x + y)),
    "sublayer": x + y + f(own_norm(x + y)),
  }[kind]  # fmt: skip
  params = {"down": {"kernel": down, "bias": np.ones(3, np.float32)}, "up": {"kernel": up, "bias": np.zeros(8)}}
  params |= {"norm": {"scale": np.ones(8, np.float32)}} if kind == "sublayer" else {}
  adapter = Bottleneck(FAMILIES["t5"].config, Extension(kind, 3, "relu", 4.0, True, 0.0, True))
  found = adapter.apply({"params": params}, *map(jnp.asarray, (x, y, h)), norm=lambda v: 7 * v)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_the_size_of_adapters_is_rounded():
  """A third of a width of 8 are 3 hidden units."""
  (extension,) = {extension for (extension,) in PfeifferAdapter(reduction=3).sites(FAMILIES["t5"]).values()}
  assert (extension.size, extension.scale) == (3, 1.0)
  (extension,) = {extension for (extension,) in ParallelAdapter().sites(FAMILIES["t5"]).values()}
  assert (extension.size, extension.scale) == (4, 4.0)


@pytest.mark.parametrize(
  ("method", "family", "message"),
  [
    (LoRA(targets=["encoder/querry"]), "t5", "matches no matrix"),
    (LoRA(ranks={".*key": 4}), "t5", "ranks matches no matrix"),
    (LoRA(rank=9), "t5", "rank 9 of LoRA is above the width"),
    (LoRA(targets=["token_embedder/embedding"]), "bert", "tied to token_embedder"),
    (BitFit(), "t5", "this model has none"),
    (Together(methods=[LoRA(rank=2), IA3(targets=[".*value"])]), "t5", "both extend"),
  ],
)
def test_what_does_not_fit_is_refused(method, family, message):
  with pytest.raises(UserError, match=message):
    method.tune(FAMILIES[family])


def test_bitfit_trains_biases_of_bert():
  model, method = FAMILIES["bert"], BitFit()
  base, tuned, params = initialized(model, method)
  assert np.array_equal(logits(model, base), logits(tuned, params))
  selection = trained(method, params)
  assert selection.layers and all(path.endswith("/bias") for path in selection.layers)


@pytest.mark.parametrize(
  "settings", [dict(rank=0), dict(rank=1.5), dict(alpha=0), dict(dropout=1.0), dict(targets=[]), dict(targets=["("])]
)
def test_invalid_settings_are_refused(settings):
  with pytest.raises(UserError):
    LoRA(**settings)


def decoded(model, params, prompts, steps=4):
  """Returns the logits of tokens that are fed one by one, after a pass over the prompts."""
  model, variables = prepare(model, params)
  batch = {"encoder_input_tokens": TOKENS, "decoder_input_tokens": prompts}
  cache = jax.jit(lambda variables: model.apply(variables, batch, steps, method="start_decoding"))(variables)
  tokens, found = model.apply(variables, batch, method="first_tokens"), []
  advance = jax.jit(lambda tokens, cache: model.apply(variables, tokens, cache, method="decode_step"))
  for step in range(steps):
    logits, cache = advance(tokens, cache)
    found.append(logits)
    tokens = jnp.asarray(TOKENS[:, step + 1] if model.batch_layout == "encoder_decoder" else TOKENS[:, step + 3])
  return np.stack(found, axis=1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", ["t5", "gpt", "gpt2"])
@pytest.mark.parametrize("name", ["lora", "prompt", "projected", "houlsby"])
def test_decoding_step_by_step_equals_one_pass(name, family):
  gpt2 = dict(positions="learned", max_positions=12, num_decoder_layers=2)
  model = GPT(TransformerConfig(**SIZES, **gpt2)) if family == "gpt2" else FAMILIES[family]
  method = METHODS[name]
  _, tuned, params = initialized(model, method)
  changed = moved(params, trained(method, params))
  steps = decoded(tuned, changed, TOKENS[:, :3], 3)
  if family == "t5":
    inputs = np.concatenate([np.zeros((2, 1), np.int32), TOKENS[:, 1:3]], axis=1)
    whole = jax.jit(tuned.apply)({"params": changed}, BATCH | {"decoder_input_tokens": inputs})["logits"]
  else:
    whole = logits(tuned, changed)[:, 2:5]
  np.testing.assert_allclose(steps, whole, atol=1e-4)


def test_decoding_fuses_merged_products():
  model, method = FAMILIES["gpt"], METHODS["lora"]
  _, tuned, params = initialized(model, method)
  plain, variables = prepare(tuned, params)
  assert plain.tuning is None and "qkv" in variables["fused"]["decoder"]["layers_0"]["attention"]


def test_a_prefix_needs_attention_in_its_place():
  with pytest.raises(UserError, match="'cross', but the model has no attention there"):
    PrefixTuning(places=["cross"]).tune(FAMILIES["gpt"])


@pytest.mark.slow
def test_a_prefix_in_one_place_only():
  for place, stacks in {"encoder": {"encoder"}, "decoder": {"decoder"}, "cross": {"decoder"}}.items():
    method = PrefixTuning(length=2, hidden=4, places=[place])
    variables = read_variables(nn.unbox(boxed_shapes(method.tune(FAMILIES["t5"]))))
    own = [v.path for v in variables.all if method.owns(v)]
    assert {path.split("/")[0] for path in own} == stacks
    assert all(("cross_attention" in path) == (place == "cross") for path in own)
  # 10 keys and values in the 24 layers of GPT-2 medium.
  medium = GPT(TransformerConfig(
    vocab_size=50257, embed_dim=1024, num_heads=16, head_dim=64, mlp_dim=4096, num_decoder_layers=24, scan_layers=True,
  ))  # fmt: skip
  method = PrefixTuning(length=10, hidden=0)
  variables = read_variables(nn.unbox(boxed_shapes(method.tune(medium))))
  assert sum(v.size for v in variables.all if method.owns(v)) == 491_520


class Pieces:
  """A vocabulary of characters."""

  def encode(self, text):
    return [ord(c) - 90 for c in text]


@pytest.mark.parametrize("init", ["vocabulary", "labels", "text", "file"])
def test_initial_prompts(init, tmp_path):
  table = np.arange(64 * 8, dtype=np.float32).reshape(64, 8)
  rows = lambda *ids: table[list(ids)]  # noqa: E731
  np.save(tmp_path / "prompt.npy", rows(5, 6, 7))
  settings = {"labels": {"labels": ["ab", "c"]}, "text": {"text": "ab"}, "file": {"file": str(tmp_path / "prompt.npy")}}
  method = PromptTuning(length=3, init=init, **settings.get(init, {}))
  found = method.initial({"token_embedder/embedding": table}, FAMILIES["t5"], Pieces())["token_embedder/prompt"]
  expected = {"text": rows(7, 8, 7), "file": rows(5, 6, 7), "labels": np.stack([rows(7, 8).mean(0), table[9]])}
  assert found.shape == (3, 8)
  assert np.array_equal(found[: len(expected.get(init, ()))], expected.get(init, np.zeros((0, 8))))
  assert all(any(np.array_equal(row, each) for each in table) for row in found[2:])


@pytest.mark.parametrize(
  ("lengths", "packed", "message"),
  [
    ({"encoder_length": 8}, True, "packed rows"),
    ({"encoder_length": 2}, False, "longer than a row"),
    ({"encoder_length": 14}, False, "exceed the model's 16 positions"),
  ],
)
def test_rows_that_a_prompt_does_not_fit(lengths, packed, message):
  with pytest.raises(UserError, match=message):
    PromptTuning(length=3).check_rows(FAMILIES["bert"], lengths, packed)


@pytest.mark.slow
def test_a_prefix_belongs_to_every_packed_example():
  """Two examples in a row give the logits that each has alone."""
  model, method = FAMILIES["t5"], METHODS["projected"]
  _, tuned, params = initialized(model, method)
  segments, positions = np.repeat([[1, 2]], 3, axis=1), np.tile(np.arange(3), 2)[None]
  rows = {"input_tokens": TOKENS[:1], "segment_ids": segments, "positions": positions}
  packed = {f"{side}_{name}": x.astype(np.int32) for side in ("encoder", "decoder") for name, x in rows.items()}
  apply = lambda batch: tuned.apply({"params": params}, batch)["logits"]  # noqa: E731
  both = apply(packed)
  for start in (0, 3):
    tokens = TOKENS[:1, start : start + 3]
    alone = apply({"encoder_input_tokens": tokens, "decoder_input_tokens": tokens})
    np.testing.assert_allclose(both[:, start : start + 3], alone, atol=1e-5)
