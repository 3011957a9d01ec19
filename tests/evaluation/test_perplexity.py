"""Loss, perplexity and bits per byte, compared with Hugging Face on the same weights and with hand-computed values."""

import json
import math
from pathlib import Path

import flax.linen as nn
import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from t5like import parallel
from t5like.errors import UserError
from t5like.evaluation.perplexity import BatchLosses, TextLoss, causal_loss, denoising_loss, sliding_windows
from t5like.inference.ranking import CandidateScorer
from t5like.interop import huggingface
from t5like.models.bert import BERT
from t5like.models.config import TransformerConfig
from t5like.models.t5 import T5
from t5like.objectives import CATALOGUE, SpecialTokens
from t5like.vocabularies import load_vocabulary

pytestmark = pytest.mark.usefixtures("one_device")

GOLDEN = Path(__file__).parents[1] / "data/golden/gpt2_bytes"


@pytest.fixture(scope="module")
def golden():
  return json.loads((GOLDEN / "losses.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def gpt():
  return huggingface.load(GOLDEN)


@pytest.fixture(scope="module")
def mesh():
  return parallel.make_mesh(parallel.MeshAxes())


def test_windows_by_hand():
  counted = [(w.begin, w.length, w.counted) for w in sliding_windows([10], window=4, stride=3)]
  assert counted == [(0, 4, 4), (3, 4, 3), (6, 4, 3)]
  assert [(w.text, w.counted) for w in sliding_windows([2, 0, 5], window=4, stride=4)] == [(0, 2), (2, 4), (2, 1)]
  with pytest.raises(UserError, match="every token counts once"):
    sliding_windows([10], window=4, stride=5)


@hypothesis.given(st.lists(st.integers(0, 40), max_size=4), st.integers(1, 12), st.data())
def test_every_token_counts_exactly_once(lengths, window, data):
  stride = data.draw(st.integers(1, window))
  seen = [np.zeros(length, int) for length in lengths]
  for w in sliding_windows(lengths, window, stride):
    assert 1 <= w.counted <= w.length <= window
    seen[w.text][w.begin + w.length - w.counted : w.begin + w.length] += 1
  assert all((times == 1).all() for times in seen)


def test_losses_equal_hugging_face_in_every_window(golden, gpt, mesh):
  text = golden["text"]
  tokens = load_vocabulary("byte").encode(text)
  losses = BatchLosses(gpt.model, mesh, batch_size=8)
  size = len(text.encode())
  for windows, nats in golden["nats"].items():
    found = causal_loss(losses, gpt.params, [tokens], size, 0, *map(int, windows.split(",")))
    assert found.nats == pytest.approx(nats, rel=1e-6) and found.tokens == size
  # One token per byte: bits per byte equal bits per token.
  assert found.scores()["bits_per_byte"] == pytest.approx(found.loss / math.log(2))
  first = causal_loss(losses, gpt.params, [tokens[:47]], 47, 0, 48, 48)
  assert first.loss == pytest.approx(golden["mean_loss_of_first_positions"], rel=1e-5)


def test_candidate_likelihoods_equal_hugging_face(golden, gpt, mesh):
  encode = load_vocabulary("byte").encode
  scorer = CandidateScorer(gpt.model, mesh, start_id=0, batch_size=8)
  for prompt, expected in golden["log_likelihoods"].items():
    (found,) = scorer(gpt.params, [encode(prompt)], [[encode(label) for label in expected]])
    assert [item.log_likelihood for item in found] == pytest.approx(list(expected.values()), rel=1e-5)


def test_bits_per_byte_by_hand():
  """Two tokens of probability 1/4 for a text of 8 bytes: 4 bits over 8 bytes."""
  scores = TextLoss(nats=2 * math.log(4), tokens=2, correct=1, bytes=8).scores()
  assert scores["bits_per_byte"] == pytest.approx(0.5) and scores["perplexity"] == pytest.approx(4.0)
  assert scores["accuracy"] == 50


SIZE = dict(vocab_size=384, embed_dim=8, mlp_dim=8, num_heads=2)
DENOISERS = {
  "span_corruption": T5(TransformerConfig(**SIZE, num_encoder_layers=1, num_decoder_layers=1)),
  "electra": BERT(TransformerConfig(**SIZE, num_encoder_layers=1, mlm_head=True)),  # rows hold one document each
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", DENOISERS)
def test_the_loss_of_a_uniform_denoiser_is_the_log_of_the_vocabulary_size(name, mesh):
  """With all parameters 0 each of 384 ids is equally likely. The last batch is not full."""
  model, objective = DENOISERS[name], CATALOGUE[name]
  vocabulary = load_vocabulary("byte")
  special = SpecialTokens.of(vocabulary)
  token = np.ones((1, 1), np.int32)
  shapes = jax.eval_shape(model.init, jax.random.key(0), {"encoder_input_tokens": token, "decoder_input_tokens": token})
  params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), nn.meta.unbox(shapes["params"]))
  texts = ["Call me Ishmael. " * 20, "Some years ago, never mind how long precisely."]
  size = sum(len(text) for text in texts)
  if name == "electra":  # the byte vocabulary has no special tokens for encoders
    special = SpecialTokens(384, pad=0, eos=1, mask=258, cls=259, sep=260, others=frozenset({0, 1, 2, 258, 259, 260}))
  found = denoising_loss(
    BatchLosses(model, mesh, 4), params, [vocabulary.encode(text) for text in texts], size, objective,
    objective.lengths(64), special,
  )  # fmt: skip
  assert found.loss == pytest.approx(math.log(384), rel=1e-6)
  assert found.bytes == pytest.approx(0.15 * size, rel=0.1)  # both mask 15 % of the tokens, which are bytes here
  marks = found.tokens - found.bytes
  assert marks > 5 if name == "span_corruption" else abs(marks) <= 1  # sentinels and EOS are predicted but not text
  assert found.scores()["bits_per_byte"] == pytest.approx(found.tokens * math.log2(384) / found.bytes)
