"""The families of encoders: padding and positions of RoBERTa, and the default heads of each."""

import dataclasses

import flax.linen as nn
import jax
import numpy as np
import pytest

from t5like import parallel
from t5like.errors import UserError
from t5like.experiments.compatibility import LATER_FIELDS, model_fingerprint
from t5like.finetuning.methods import PromptTuning
from t5like.interop.layouts import flatten, stack_layers, unflatten
from t5like.models import BERT, TransformerConfig
from t5like.models.heads import ClassificationHead, MultipleChoiceHead, attach_head
from t5like.models.shapes import boxed_shapes

BERT_LIKE = TransformerConfig(
  vocab_size=16, embed_dim=8, mlp_dim=12, num_heads=2, num_encoder_layers=1, norm="layer", norm_position="post",
  use_bias=True, positions="learned", max_positions=6, num_token_types=1, embedding_norm=True, pooler=True,
)  # fmt: skip
ALBERT = dataclasses.replace(BERT_LIKE, num_encoder_layers=4, layer_groups=2, embedding_dim=4, mlm_head=True)
DEBERTA = dataclasses.replace(
  BERT_LIKE, positions="disentangled", relative_buckets=4, relative_max_distance=9, relative_norm=True, pooler=False,
  num_encoder_layers=2, mlm_head=True,
)  # fmt: skip
ROBERTA = dataclasses.replace(BERT_LIKE, padding_id=1, position_offset=2, pooler=False)


def test_the_padding_id_is_a_fact_of_the_model():
  """RoBERTa's <s> is 0 and its padding 1: 0 is text, however padding is marked."""
  model = BERT(ROBERTA, family="roberta")
  rows = np.array([[0, 5, 0, 7, 2, 1], [0, 4, 2, 1, 1, 1]], np.int32)
  real, tokens = rows != 1, "encoder_input_tokens"
  variables = jax.jit(model.init)(jax.random.key(0), {tokens: rows})
  assert variables["params"]["token_embedder"]["position_embedding"].value.shape == (6 + 2, 8)
  states = jax.jit(lambda batch: model.apply(variables, batch, method="hidden_states"))
  found = np.asarray(states({tokens: rows}))
  for more in (
    {"encoder_segment_ids": real.astype(np.int32)},
    {"encoder_lengths": real.sum(1).astype(np.int32)},
    {"encoder_segment_ids": real.astype(np.int32), "encoder_positions": np.arange(6, dtype=np.int32) * real},
  ):
    # Batches are padded with 0. Padding has its own states only where it reads the text, not with segments.
    same = np.ones_like(real) if "encoder_lengths" in more else real
    np.testing.assert_allclose(states({tokens: rows * real, **more})[same], found[same], atol=1e-6)
  shorter = states({tokens: rows[:, :5]})
  np.testing.assert_allclose(shorter[real[:, :5]], found[:, :5][real[:, :5]], atol=1e-6)
  bert = BERT(dataclasses.replace(ROBERTA, padding_id=0))
  other = jax.jit(lambda batch: bert.apply(variables, batch, method="hidden_states"))
  assert np.abs(np.asarray(other({tokens: rows})) - found).max() > 1e-2


def test_a_model_with_one_token_type_reads_pairs_with_it():
  """As in transformers, where the tokenizer of such a model gives no types: a type of 1 was outside of the table."""
  model = BERT(BERT_LIKE)
  batch = {"encoder_input_tokens": np.array([[2, 5, 3, 7, 3]], np.int32)}
  variables = jax.jit(model.init)(jax.random.key(0), batch)
  states = jax.jit(lambda batch: model.apply(variables, batch, method="hidden_states"))
  pair = batch | {"encoder_token_types": np.array([[0, 0, 0, 1, 1]], np.int32)}
  np.testing.assert_array_equal(states(pair), states(batch))


@pytest.mark.parametrize(
  "family, config, head, expected",
  [
    ("bert", BERT_LIKE, ClassificationHead(labels=("a", "b")), ("pooler", None)),
    ("bert", ROBERTA, ClassificationHead(labels=("a", "b")), ("cls", "tanh")),
    ("electra", ROBERTA, ClassificationHead(labels=("a", "b")), ("cls", "gelu_erf")),
    ("deberta-v2", ROBERTA, MultipleChoiceHead(choices=2), ("cls", "gelu_erf")),
    ("distilbert", ROBERTA, ClassificationHead(labels=("a", "b")), ("cls", "relu")),
    ("roberta", BERT_LIKE, ClassificationHead(labels=("a", "b")), ("cls", "tanh")),
    ("roberta", ROBERTA, MultipleChoiceHead(choices=2), ("pooler", None)),
    ("xlm-roberta", ROBERTA, MultipleChoiceHead(choices=2, mix_layers=True), ("cls", "tanh")),
  ],
)
def test_heads_are_by_default_those_of_the_family(family, config, head, expected):
  model = attach_head(BERT(config, family=family), head)
  assert (model.head.pooling, model.head.hidden) == expected
  assert model.config.pooler == (expected[0] == "pooler") and model.backbone.family == family


@pytest.mark.parametrize(
  "fields, words",
  [
    ({"padding_id": 16}, "padding_id: 16"),
    ({"padding_id": -1}, "padding_id"),
    ({"position_offset": -1}, "at least 0"),
    ({"layer_groups": 2}, "divisor of num_encoder_layers = 1"),
    ({"layer_groups": 0}, "positive"),
  ],
)
def test_impossible_values_are_rejected(fields, words):
  with pytest.raises(UserError, match=words):
    dataclasses.replace(ROBERTA, **fields)


def test_an_unknown_family_is_answered_with_the_nearest():
  with pytest.raises(UserError, match="invalid BERT.family: 'robreta'") as error:
    BERT(ROBERTA, family="robreta").init(jax.random.key(0), {"encoder_input_tokens": np.ones((1, 2), np.int32)})
  assert error.value.lines["nearest"].startswith("roberta")


@pytest.mark.parametrize(
  "config",
  [
    pytest.param(ROBERTA, marks=pytest.mark.slow),
    dataclasses.replace(ALBERT, num_encoder_layers=2, layer_groups=1),
    pytest.param(DEBERTA, marks=pytest.mark.slow),
  ],
  ids=["roberta", "albert", "deberta"],
)
def test_stacked_and_rematerialized_layers_on_eight_devices_give_the_same_gradients(config):
  rows = np.random.default_rng(0).integers(2, 16, (4, 6)).astype(np.int32)
  batch = {"encoder_input_tokens": rows}
  plain = BERT(config)
  params = nn.unbox(jax.jit(plain.init)(jax.random.key(0), batch))["params"]

  def gradients(model, params):
    def loss(params):
      outputs = model.apply({"params": params}, batch)
      return sum((x.astype("float32") ** 2).mean() for x in outputs.values())

    return jax.jit(jax.grad(loss))(params)

  expected = stack_layers(flatten(jax.device_get(gradients(plain, params))))
  model = BERT(dataclasses.replace(config, scan_layers=True, remat="full"))
  mesh = parallel.make_mesh(parallel.MeshAxes(data=2, fsdp=2, tensor=2))
  with parallel.sharding_context(mesh):
    shardings = parallel.parameter_shardings(boxed_shapes(model), mesh)
    stacked = jax.device_put(unflatten(stack_layers(flatten(params))), shardings)
    found = flatten(jax.device_get(gradients(model, stacked)))
  assert found.keys() == expected.keys()
  for path, gradient in expected.items():
    np.testing.assert_allclose(found[path], gradient, rtol=1e-3, atol=1e-5, err_msg=path)


def test_layers_of_a_group_share_their_parameters():
  """ALBERT: as many different layers as groups, each run several times; states of all runs."""
  model, batch = BERT(ALBERT), {"encoder_input_tokens": np.array([[2, 5, 3]], np.int32)}
  params = nn.unbox(jax.jit(model.init)(jax.random.key(0), batch))["params"]
  states = lambda model, params: jax.jit(  # noqa: E731
    lambda params: model.apply({"params": params}, batch, all_layers=True, method="hidden_states")
  )(params)
  assert sorted(params["encoder"]) == ["layers_0", "layers_1"]
  written_out = {"layers_0": 0, "layers_1": 0, "layers_2": 1, "layers_3": 1}
  separate = params | {"encoder": {name: params["encoder"][f"layers_{group}"] for name, group in written_out.items()}}
  other = BERT(dataclasses.replace(ALBERT, layer_groups=None))
  expected = states(other, separate)
  assert expected.shape == (5, 1, 3, 8)
  stacked = unflatten(stack_layers(flatten(params)))
  for config, arrays in ((ALBERT, params), (dataclasses.replace(ALBERT, scan_layers=True), stacked)):
    np.testing.assert_allclose(states(BERT(config), arrays), expected, atol=1e-6)


def test_a_learned_prompt_has_the_width_of_the_embeddings():
  ((prompt,),) = PromptTuning(length=3).sites(BERT(ALBERT)).values()
  assert prompt.width == ALBERT.embedding_dim


def test_fingerprints_of_earlier_models_have_not_changed():
  """Fields that came later count only where they are set; so earlier checkpoints match."""
  defaults = {field.name: field.default for field in dataclasses.fields(TransformerConfig)}
  assert LATER_FIELDS.items() <= defaults.items()
  assert not LATER_FIELDS.keys() & model_fingerprint(BERT_LIKE, None).keys()
  own = {"padding_id": 1, "position_offset": 2}
  assert model_fingerprint(ROBERTA, None) == model_fingerprint(BERT_LIKE, None) | own | {"pooler": False}
