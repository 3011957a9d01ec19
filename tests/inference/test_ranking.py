"""Likelihoods of candidates equal sums over full forward passes."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from t5like import parallel
from t5like.inference.ranking import CandidateScorer
from t5like.models import GPT, T5, TransformerConfig

SIZE = dict(vocab_size=30, embed_dim=16, mlp_dim=32, num_heads=2, num_decoder_layers=1, tie_embeddings=False)
MODELS = {
  "t5": T5(TransformerConfig(**SIZE, num_encoder_layers=1)),
  "lm": GPT(TransformerConfig(**SIZE)),
  "prefix_lm": GPT(TransformerConfig(**SIZE, prefix_lm=True)),
}
INPUTS = [[5, 6, 7, 8], [9], [11, 12]]
CANDIDATES = [[[3, 1], [4, 4, 1]], [[7]], [[8, 1], [9, 1], [10, 11, 12, 1]]]


def by_hand(model, params, text: list[int], answer: list[int]) -> float:
  """Scores one unpadded pair."""
  if model.batch_layout == "encoder_decoder":
    batch, before = {"encoder_input_tokens": [text], "decoder_input_tokens": [[0, *answer[:-1]]]}, 0
  else:
    batch, before = {"decoder_input_tokens": [[0, *text, *answer[:-1]]]}, len(text)
    if model.batch_layout == "prefix_lm":
      batch["decoder_causal_attention"] = [[1] * (len(text) + 1) + [0] * (len(answer) - 1)]
  batch = {name: np.array(rows, np.int32) for name, rows in batch.items()}
  logits = np.asarray(model.apply({"params": params}, batch)["logits"][0], np.float64)[before:]
  logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
  return sum(logits[i, token] for i, token in enumerate(answer))


def parameters(model):
  token = np.ones((1, 2), np.int32)
  batch = {"encoder_input_tokens": token, "decoder_input_tokens": token}
  shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), batch)["params"])
  rng = np.random.default_rng(0)
  return jax.tree.map(lambda x: rng.normal(0.0, 0.4, x.shape).astype(x.dtype), nn.meta.unbox(shapes))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MODELS)
def test_likelihoods_equal_those_of_full_forward_passes(name):
  model = MODELS[name]
  params = parameters(model)
  scorer = CandidateScorer(model, parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:2]), batch_size=4)
  scores = scorer(params, INPUTS, CANDIDATES)
  assert [len(row) for row in scores] == [2, 1, 3]
  for row, number in ((0, 1), (1, 0), (2, 2)):
    answer, score = CANDIDATES[row][number], scores[row][number]
    expected = by_hand(model, params, INPUTS[row], answer)
    np.testing.assert_allclose(score.log_likelihood, expected, rtol=1e-4)
    np.testing.assert_allclose(score.per_token, expected / len(answer), rtol=1e-4)


def test_an_answer_may_end_at_the_last_position_of_the_model():
  model = GPT(TransformerConfig(**SIZE, positions="learned", max_positions=8))
  params, text, answer = parameters(model), [5, 6, 7, 8, 9], [10, 11, 1]
  scorer = CandidateScorer(model, parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:1]), batch_size=1)
  ((score,),) = scorer(params, [text], [[answer]])
  np.testing.assert_allclose(score.log_likelihood, by_hand(model, params, text, answer), rtol=1e-4)
