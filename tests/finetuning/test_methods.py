"""Every method on every family: step 0, what trains, merging, and settings that do not fit."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

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
  T5Adapter,
  Together,
)
from t5like.models import BERT, GPT, T5, TransformerConfig
from t5like.models.shapes import boxed_shapes
from t5like.models.tuning import merge

SIZES = dict(vocab_size=32, embed_dim=8, num_heads=2, head_dim=4, mlp_dim=16)
BERT_LIKE = dict(
  norm="layer", norm_position="post", use_bias=True, positions="learned", max_positions=16, scale_attention=True,
  activation="gelu_erf", embedding_norm=True,
)  # fmt: skip
FAMILIES = {
  "t5": T5(
    TransformerConfig(**SIZES, num_encoder_layers=2, num_decoder_layers=2, gated_mlp=True, tie_embeddings=False)
  ),
  "bert": BERT(TransformerConfig(**SIZES, **BERT_LIKE, num_encoder_layers=2, num_decoder_layers=0, mlm_head=True)),
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
  "lora and adapter": Together(methods=[LoRA(rank=2), PfeifferAdapter()]),
}
MERGED = ("lora", "rslora", "dora", "ia3", "norms")


def scanned(model, stacked=True):
  return model.clone(config=dataclasses.replace(model.config, scan_layers=stacked))


def logits(model, params, **more):
  return model.apply({"params": params}, BATCH, **more)["logits"]


def flat(tree):
  return traverse_util.flatten_dict(tree, sep="/")


def initialized(model, method):
  """Returns the base's parameters, the tuned model and its initial parameters."""
  base = flat(nn.unbox(model.init(jax.random.key(0), BATCH)["params"]))
  tuned = method.tune(model)
  params = flat(nn.unbox(tuned.init(jax.random.key(1), BATCH)["params"])) | base | method.initial(base, model, None)
  nested = lambda tree: traverse_util.unflatten_dict(tree, sep="/")  # noqa: E731
  return nested(base), tuned, nested(params)


def trained(method, params):
  return method.episodes(read_variables(params), 1)[0].selection


def moved(params, selection):
  """Returns the parameters after a large step of those that train."""
  keys = iter(jax.random.split(jax.random.key(2), 999))
  step = lambda x: x + 0.1 * jax.random.normal(next(keys), x.shape)  # noqa: E731
  return selection.put(params, jax.tree.map(step, selection.take(params)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", METHODS)
def test_step_0_equals_the_base_and_merging_changes_nothing(name, family):
  model, method = FAMILIES[family], METHODS[name]
  base, tuned, params = initialized(model, method)
  before, start = logits(model, base), logits(tuned, params)
  assert np.allclose(before, start, atol=1e-5) if name == "dora" else np.array_equal(before, start)
  changed = moved(params, trained(method, params))
  after = logits(tuned, changed)
  assert np.abs(after - before).max() > 1e-3
  left, merged = merge(tuned.tuning, changed)
  assert (left is None or not left.sites) == (name in MERGED)
  if name in MERGED:
    assert flat(merged).keys() == flat(base).keys()
    np.testing.assert_allclose(logits(model, merged), after, atol=1e-5)


@pytest.mark.parametrize("name", ["lora", "ia3", "houlsby"])
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

  def count(model, method, part=""):
    variables = read_variables(nn.unbox(boxed_shapes(method.tune(model))))
    return sum(v.size for v in variables.all if method.owns(v) and part in v.path)

  t5 = T5(TransformerConfig(
    vocab_size=32128, embed_dim=768, num_heads=12, head_dim=64, mlp_dim=3072, num_encoder_layers=12,
    num_decoder_layers=12, scan_layers=True,
  ))  # fmt: skip
  bert = BERT(TransformerConfig(
    **BERT_LIKE | dict(max_positions=512), vocab_size=30522, embed_dim=768, num_heads=12, head_dim=64, mlp_dim=3072,
    num_encoder_layers=12, num_decoder_layers=0,
  ))  # fmt: skip
  assert count(t5, LoRA()) == 884_736
  assert count(t5, T5Adapter(size=32), "_adapter/down") + count(t5, T5Adapter(size=32), "_adapter/up") == 1_179_648
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
  rngs = {"dropout": jax.random.key(0)}
  assert np.array_equal(logits(tuned, changed), logits(tuned, changed))
  assert not np.allclose(logits(tuned, changed, rngs=rngs), logits(tuned, changed))


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
