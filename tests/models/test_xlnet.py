"""XLNet: what its streams may see, packed rows, a mesh, filled masks, and rows that end in <cls>."""

import dataclasses
import io

import flax.linen as nn
import jax
import numpy as np
import pytest
import sentencepiece

from t5like import parallel
from t5like.errors import UserError
from t5like.finetuning.methods import LoRA
from t5like.inference.encodings import MaskFiller
from t5like.interop.hf_tokenizers import TextSpecialTokens, save_tokenizer
from t5like.interop.layouts import flatten, unflatten
from t5like.models import TransformerConfig, XLNet
from t5like.models.tuning import merge
from t5like.objectives import SpecialTokens
from t5like.objectives.ragged import Ragged
from t5like.objectives.segments import PairForm
from t5like.vocabularies import load_vocabulary

CONFIG = TransformerConfig(
  vocab_size=30, embed_dim=8, mlp_dim=12, num_heads=2, num_encoder_layers=2, positions="transformer_xl", norm="layer",
  norm_position="post", use_bias=True, scale_attention=True, scale_logits=False, mlm_head=True, initializer="normal",
  initializer_stddev=0.4, scan_layers=True,
)  # fmt: skip
MODEL = XLNet(CONFIG)
ORDER = np.array([[0, 2, 0, 1, 4, 0, 3, 0]], np.int32)


@pytest.fixture(scope="module")
def params():
  batch = {"encoder_input_tokens": np.ones((1, 2), np.int32)}
  return nn.unbox(jax.jit(MODEL.init)(jax.random.key(0), batch))["params"]


@pytest.fixture(scope="module")
def apply():
  return jax.jit(lambda params, batch: MODEL.apply({"params": params}, batch))


def targets(tokens: np.ndarray) -> dict[str, np.ndarray]:
  return {
    "encoder_input_tokens": tokens, "encoder_loss_weights": (ORDER > 0).astype(np.float32), "encoder_order": ORDER,
    "encoder_segment_ids": np.ones_like(tokens), "encoder_target_tokens": tokens,
  }  # fmt: skip


def test_a_prediction_depends_on_tokens_before_it_in_the_order_only(params, apply):
  tokens = np.arange(7, 15, dtype=np.int32)[None]
  before = np.asarray(apply(params, targets(tokens))["logits"])[0]
  for position, order in enumerate(ORDER[0]):
    changed = tokens.copy()
    changed[0, position] = 20
    after = np.asarray(apply(params, targets(changed))["logits"])[0]
    differs = np.abs(after - before).max(axis=-1) > 1e-6
    assert differs[ORDER[0] > 0].tolist() == (ORDER[0] > order)[ORDER[0] > 0].tolist(), position


def test_packed_and_padded_rows_have_the_states_of_separate_ones(params):
  run = jax.jit(lambda batch: MODEL.apply({"params": params}, batch, method="hidden_states"))
  tokens = np.array([[7, 8, 9, 10, 11, 0]], np.int32)
  both = run({"encoder_input_tokens": tokens, "encoder_segment_ids": np.array([[1, 1, 2, 2, 2, 0]], np.int32)})
  for part in (slice(0, 2), slice(2, 5)):
    alone = run({"encoder_input_tokens": np.pad(tokens[:, part], ((0, 0), (1, 3)))})  # padded on both sides
    width = part.stop - part.start
    np.testing.assert_allclose(alone[:, 1 : 1 + width], both[:, part], atol=1e-5)


def test_masks_are_filled_from_the_query_stream(params):
  """The token under a mask does not matter: its own embedding is not read."""
  mesh = parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:1])
  tokens = [7, 8, 5, 9, 10]
  ((odds, ids),) = MaskFiller(MODEL, mesh, 5, top=3)(params, [tokens])
  batch = {
    "encoder_input_tokens": np.array([tokens], np.int32),
    "encoder_loss_weights": np.array([[0, 0, 1, 0, 0]], np.float32),
  }
  logits = np.asarray(MODEL.apply({"params": params}, batch)["logits"])[0, 2]
  assert ids.tolist() == [np.argsort(-logits)[:3].tolist()]
  np.testing.assert_allclose(odds[0], np.sort(jax.nn.softmax(logits))[::-1][:3], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("axes", [dict(data=8), dict(fsdp=2, tensor=2, data=2)])
def test_a_mesh_of_eight_devices_computes_the_same(params, axes):
  """Loss and gradients of both streams with a memory."""
  rng = np.random.default_rng(0)
  batch = targets(rng.integers(6, 29, (8, 8)).astype(np.int32))
  batch = {name: np.broadcast_to(x, (8, 8)).copy() for name, x in batch.items()}
  batch["encoder_loss_weights"][:, :2] = 0
  model = MODEL.clone(memory_length=2, predicted_share=0.5)

  def loss(params, batch):
    outputs = model.apply({"params": params}, batch, deterministic=False)
    return -jax.nn.log_softmax(outputs["logits"])[..., 7].mean()

  expected = jax.jit(jax.value_and_grad(loss))(params, batch)
  mesh = parallel.make_mesh(parallel.MeshAxes(**axes), jax.devices())
  boxed = jax.eval_shape(model.init, jax.random.key(0), batch)["params"]
  with parallel.sharding_context(mesh):
    placed = nn.logical_to_mesh_sharding(nn.get_partition_spec(boxed), mesh, parallel.LOGICAL_AXIS_RULES)
    found = jax.jit(jax.value_and_grad(loss))(jax.device_put(params, placed), batch)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, expected)


def test_lora_starts_at_the_base_and_is_merged_into_it(params, apply):
  """Of both streams, whose queries have other biases; keys and positions are adapted, too."""
  tuned, batch = LoRA(targets=(".*/attention/(query|key|value|position)",), rank=2).tune(MODEL), targets(ORDER + 7)
  shapes = flatten(nn.unbox(jax.eval_shape(tuned.init, jax.random.key(0), batch))["params"])
  rng = np.random.default_rng(0)
  own = {path: rng.normal(size=x.shape).astype(np.float32) for path, x in shapes.items() if "lora" in path}
  assert len(own) == 8  # two of each matrix, which are stacked
  base = apply(params, batch)["logits"]
  logits = jax.jit(lambda params: tuned.apply({"params": params}, batch)["logits"])
  started = {path: x if path.endswith("lora_a") else np.zeros_like(x) for path, x in own.items()}
  np.testing.assert_array_equal(logits(unflatten(flatten(params) | started)), base)
  changed = unflatten(flatten(params) | own)
  left, merged = merge(tuned.tuning, changed)
  assert left is None and np.abs(logits(changed) - base).max() > 0.1
  np.testing.assert_allclose(apply(merged, batch)["logits"], logits(changed), rtol=0, atol=2e-4)


def test_other_architectures_are_refused():
  for changes in (dict(pooler=True), dict(norm_position="pre")):
    with pytest.raises(UserError, match=next(iter(changes))):
      jax.eval_shape(XLNet(dataclasses.replace(CONFIG, **changes)).init, jax.random.key(0), targets(ORDER))


def test_a_vocabulary_with_xlnets_tokens_ends_rows_with_cls(tmp_path):
  """As published: <unk> <s> </s> <cls> <sep> <pad> <mask>; no sentinels are added."""
  texts = ["the cat sat on the mat", "a dog ran to the house", "one two three four five six seven"] * 5
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(texts), model_writer=model, vocab_size=60, hard_vocab_limit=False, minloglevel=2,
    control_symbols=["<cls>", "<sep>", "<pad>", "<mask>", "<eod>"], user_defined_symbols=["<eop>"],
  )  # fmt: skip
  (tmp_path / "spiece.model").write_bytes(model.getvalue())
  vocabulary = load_vocabulary(str(tmp_path / "spiece.model"))
  ids = (vocabulary.cls_id, vocabulary.sep_id, vocabulary.pad_id, vocabulary.mask_id)
  assert ids == (3, 4, 5, 6) and vocabulary.cls_last and not vocabulary.sentinel_ids
  form = PairForm.of(SpecialTokens.of(vocabulary))
  first, second = (Ragged.full(np.array([vocabulary.encode(text)], np.int32)) for text in texts[:2])
  one, two = int(first.lengths[0]), int(second.lengths[0])
  row = form.join(first, second, one + two + 5)
  expected = [*first.tokens[0], 4, *second.tokens[0], 4, 3]
  assert row.tokens[0].tolist() == [*expected, 0, 0] and row.lengths.tolist() == [one + two + 3]
  assert row.token_types[0].tolist() == [0] * (one + 1) + [1] * (two + 1) + [2, 0, 0]
  assert form.join(first, None, one).tokens[0].tolist() == [*first.tokens[0][:-2], 4, 3]  # truncated
  save_tokenizer(tmp_path / "out", vocabulary, TextSpecialTokens())
  exported = load_vocabulary(str(tmp_path / "out" / "tokenizer.json"))
  assert exported.cls_last and (exported.cls_id, exported.sep_id) == (3, 4)
  assert exported.tokenizer.encode(texts[0], texts[1]).ids == expected
  assert exported.tokenizer.encode(texts[0], texts[1]).type_ids == row.token_types[0][: len(expected)].tolist()
