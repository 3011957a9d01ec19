"""Embeddings and mask filling with a model whose hidden states are known: token id and position."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like import parallel
from t5like.errors import UserError
from t5like.inference.embeddings.sentences import SpooledSentences, VectorsOnly
from t5like.inference.encodings import MaskFiller, TextEmbedder, nearest_rows, planner
from t5like.inference.rows import Row
from t5like.models import BERT, TransformerConfig

MESH = parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:2])
MASK = 9


class Known:
  """Hidden states are (id, position); the logit of a token falls by 1 per unit of distance from the position."""

  def __init__(self, layout="encoder", **config):
    self.batch_layout = layout
    known = dict(position_limit=None, vocab_size=12, mlm_head=True)
    self.config = types.SimpleNamespace(**(known | config))

  def apply(self, variables, given, method):
    if method == "project":
      return -jnp.abs(given[..., 1:].astype(jnp.float32) - jnp.arange(12, dtype=jnp.float32)[None, None, :])
    assert method == ("encode" if self.batch_layout == "encoder_decoder" else "hidden_states")
    tokens = given["decoder_input_tokens" if "decoder_input_tokens" in given else "encoder_input_tokens"]
    places = jnp.broadcast_to(jnp.arange(tokens.shape[1])[None, :], tokens.shape)
    return jnp.stack([tokens, places], axis=-1).astype(jnp.bfloat16)


@pytest.mark.parametrize("layout", ["encoder", "encoder_decoder", "decoder"])
def test_the_mean_is_over_all_tokens_of_a_text_including_id_0(layout):
  found = TextEmbedder(Known(layout), MESH, "mean")({}, [[5, 0, 7], [4], [2, 4]])
  assert found.dtype == np.float32 and found.tolist() == [[4, 1], [4, 0], [3, 0.5]]


def test_cls_is_the_first_state():
  assert TextEmbedder(Known(), MESH, "cls")({}, [[5, 6], [7, 8, 9]]).tolist() == [[5, 0], [7, 0]]
  with pytest.raises(UserError, match="unknown pooling 'meen'"):
    TextEmbedder(Known(), MESH, "meen")
  with pytest.raises(UserError, match="has no \\[CLS\\]"):
    TextEmbedder(Known("encoder_decoder"), MESH, "cls")


def test_masks_are_filled_in_order():
  filled = MaskFiller(Known(), MESH, MASK, top=3)({}, [[1, MASK, 2, MASK], [3, 4], [5, 6, 7, 8, MASK]])
  # At position p the most likely token is p; of its equally likely neighbors the smaller id comes first.
  assert [ids.tolist() for _, ids in filled] == [[[1, 0, 2], [3, 2, 4]], [], [[4, 3, 5]]]
  weights = np.exp(-np.abs(np.arange(12) - 3.0))
  np.testing.assert_allclose(filled[0][0][1], (weights / weights.sum())[[3, 2, 4]], rtol=1e-5)
  for top in (0, 13):
    with pytest.raises(UserError, match=f"invalid number of tokens per mask: {top}"):
      MaskFiller(Known(), MESH, MASK, top)
  for model in (Known(mlm_head=False), Known("encoder_decoder")):
    with pytest.raises(UserError, match="cannot fill masks"):
      MaskFiller(model, MESH, MASK, 1)


def test_nearest_rows_by_cosine():
  among = np.array([[0.0, 2.0], [3.0, 0.0], [1.0, 1.0], [5.0, 0.0], [0.0, 0.0]], np.float32)
  similarities, rows = nearest_rows(np.array([[10.0, 0.0], [0.0, -1.0]], np.float32), among, 3)
  assert rows.tolist() == [[1, 3, 2], [1, 3, 4]]  # ties: the first row; the zero vector has similarity 0 to all
  np.testing.assert_allclose(similarities, [[1, 1, 0.5**0.5], [0, 0, 0]], atol=1e-6)
  assert nearest_rows(among[:1], among, 9)[1].shape == (1, 5)
  assert nearest_rows(among[:1], np.ones((4, 2), np.float32), 2)[1].tolist() == [[0, 1]]
  opposite = np.array([[np.nan, np.nan], [-1.0, 0.0]], np.float32)
  assert nearest_rows(np.array([[1.0, 0.0]], np.float32), opposite, 2)[1].tolist() == [[1, 0]]


def test_nearest_rows_in_blocks_of_a_file(tmp_path):
  """More rows than a block and more queries than one pass, from a memory-mapped file; equal rows keep their order."""
  rng = np.random.default_rng(0)
  np.save(tmp_path / "v.npy", rng.normal(size=(70_000, 4)).astype(np.float32))
  among = np.load(tmp_path / "v.npy", mmap_mode="r+")
  among[[3, 66_000, 69_999]] = among[40_000]
  among[5] = np.nan  # a rejected text
  queries = np.concatenate([among[40_000:40_001], rng.normal(size=(300, 4)).astype(np.float32)])
  similarities, rows = nearest_rows(queries, among, 5)
  assert rows[0, :4].tolist() == [3, 40_000, 66_000, 69_999] and 5 not in rows
  unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)  # noqa: E731
  expected = -np.sort(-np.nan_to_num(unit(queries) @ unit(among).T, nan=-2.0), axis=1)[:, :5]
  np.testing.assert_allclose(similarities, expected, atol=1e-6)


def test_sentences_are_kept_on_disk(tmp_path):
  sentences = SpooledSentences(width=2)
  sentences.add([Row(0, "", "zwölf", {}), Row(2, "", "", {})], np.array([[1, 2], [3, 4]], np.float32))
  assert sentences.finish()[0] == ("zwölf", 1) and sentences[1] == ("", 3) and len(sentences) == 2
  np.testing.assert_array_equal(sentences.vectors, [[1, 2], [3, 4]])
  np.save(tmp_path / "v.npy", np.eye(3, dtype=np.float16))
  assert VectorsOnly(tmp_path / "v.npy")[1] == (None, 2)
  for content in (np.arange(3.0), np.zeros((0, 4), np.float32), np.ones((2, 2), np.int32)):
    np.save(tmp_path / "bad.npy", content)
    with pytest.raises(UserError, match="does not hold vectors"):
      VectorsOnly(tmp_path / "bad.npy")
  (tmp_path / "text.npy").write_text("not an array")
  with pytest.raises(UserError, match="is not a file of vectors"):
    VectorsOnly(tmp_path / "text.npy")


def test_batches_are_limited_to_learned_positions():
  assert planner(Known(position_limit=8), MESH, 4).smallest(3, 7).length == 8
  assert planner(Known(), MESH, 4).smallest(3, 7).rows == 4
  assert planner(Known(position_limit=5), MESH, 4).smallest(1, 5).length == 5


@pytest.mark.parametrize("top", [0, 101, 2.0, "3", None])
def test_a_wrong_number_of_tokens_per_mask_is_refused(top):
  config = TransformerConfig(vocab_size=100, embed_dim=8, mlp_dim=8, num_heads=1, num_encoder_layers=1, mlm_head=True)
  with pytest.raises(UserError, match="invalid number of tokens per mask"):
    MaskFiller(BERT(config), None, 4, top)
