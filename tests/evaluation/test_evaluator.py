"""Decoded answers equal those of a full forward pass per token."""

import flax.linen as nn
import jax
import numpy as np
import pytest
import seqio
from padded_examples import padded_examples

from t5like import parallel
from t5like.data.layouts import LAYOUTS
from t5like.decoding import DecodeSettings
from t5like.evaluation.answering import generate_answers, rank_answers
from t5like.evaluation.evaluator import first_span, like_targets
from t5like.inference.batching import BatchShape
from t5like.inference.generation import Generator
from t5like.inference.prompts import prompt_batch
from t5like.inference.ranking import CandidateScorer
from t5like.models.config import TransformerConfig
from t5like.models.gpt import GPT
from t5like.models.t5 import T5
from t5like.objectives import Lengths

# Untied: with a tied embedding an untrained decoder mostly repeats its last token.
SIZE = dict(vocab_size=40, embed_dim=16, mlp_dim=32, num_heads=2, num_decoder_layers=2, tie_embeddings=False)
MODELS = {
  "t5": T5(TransformerConfig(**SIZE, num_encoder_layers=2)),
  "lm": GPT(TransformerConfig(**SIZE)),
  "prefix_lm": GPT(TransformerConfig(**SIZE, prefix_lm=True)),
}
EOS, MAX_LENGTH = 1, 6
# Rows of different lengths with EOS, padded to 5; one per device.
INPUTS = np.array([[7, 8, 9, 1, 0], [5, 1, 0, 0, 0], [9, 9, 4, 6, 1], [1, 0, 0, 0, 0]] * 2, np.int32)


def greedy_by_hand(model, forward, row: np.ndarray) -> list[int]:
  """Appends the most likely token to the targets, with a full forward pass for each."""
  layout, answer = LAYOUTS[model.batch_layout], []
  while len(answer) < MAX_LENGTH and EOS not in answer:
    # A placeholder for the next token, which is predicted but not read.
    targets = np.array([answer + [2] + [0] * (MAX_LENGTH - len(answer) - 1)], np.int32)
    batch = layout(padded_examples(row[None], targets), Lengths(0, 5, MAX_LENGTH))
    position = int(np.flatnonzero(batch["decoder_loss_weights"][0])[-1])
    answer.append(int(np.argmax(forward(batch)[0, position])))
  return answer + [0] * (MAX_LENGTH - len(answer))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MODELS)
def test_answers_equal_a_forward_pass_for_every_token(name):
  model = MODELS[name]
  examples = padded_examples(INPUTS, np.ones((len(INPUTS), 2), np.int32))
  batch = LAYOUTS[model.batch_layout](examples, Lengths(0, 5, 2))
  variables = nn.meta.unbox(jax.jit(model.init)(jax.random.key(3), batch))
  mesh = parallel.make_mesh(parallel.MeshAxes())
  prompts = [row[row > 0].tolist() for row in INPUTS]
  if name != "t5":
    prompts = [[0, *row] for row in prompts]  # the start token
  written = generate_answers(Generator(model, mesh, EOS), variables["params"], prompts, DecodeSettings(max_length=6), 8)
  forward = jax.jit(lambda batch: model.apply(variables, batch)["logits"])
  expected = [greedy_by_hand(model, forward, row) for row in INPUTS[:4]]
  found = [row.tokens for row in written]
  assert found[:4] == [row[: row.index(EOS)] if EOS in row else row for row in expected] == found[4:]
  assert len({tuple(row) for row in expected}) > 1  # the answers depend on the inputs
  # The log-likelihood includes EOS.
  ended = [[*row, EOS] if len(row) < MAX_LENGTH else row for row in found]
  _, scores = rank_answers(CandidateScorer(model, mesh), variables["params"], prompts, [[row] for row in ended])
  assert [row.log_likelihood for row in written] == pytest.approx([row[0] for row in scores], rel=1e-4)


@pytest.mark.parametrize(
  ("generated", "span"),
  [
    ([99, 5, 6, 98, 7], [5, 6]),
    ([5, 6, 98, 7], [5, 6]),
    ([99, 5, 6], [5, 6]),
    ([98, 5], []),
    ([99, 99, 5], []),
    ([], []),
  ],
)
def test_infilling_answers_with_the_span_of_the_first_sentinel(generated, span):
  assert first_span(generated, (99, 98, 97)) == span


def test_prompt_masks_end_where_the_answer_begins():
  prompts = prompt_batch("prefix_lm", [[0, 9, 4, 1], [0, 8, 1]], BatchShape(3, 5))
  assert prompts["decoder_input_tokens"].tolist() == [[0, 9, 4, 1, 0], [0, 8, 1, 0, 0], [0] * 5]
  for name in ("decoder_causal_attention", "decoder_segment_ids"):  # a filler row has one token
    assert prompts[name].tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]]


@pytest.mark.parametrize("decoded", [[105, 106, 1, 0, 0], [105, 1, 0, 0, 0], [105, 106, 107, 108, 109]])
def test_answers_of_ids_end_as_targets_do(decoded):
  """As in seqio, whose vocabulary of plain ids keeps the end of sequence."""
  tokens = decoded[: decoded.index(EOS)] if EOS in decoded else decoded
  assert like_targets(tokens, [7, EOS], EOS, len(decoded)) == seqio.PassThroughVocabulary(200, EOS).decode(decoded)
  assert like_targets(tokens, [7], EOS, len(decoded)) == tokens
