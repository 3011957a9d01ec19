"""Objectives for encoders, against the fractions in their papers and rows checked by hand."""

import dataclasses

import numpy as np
import pytest

from t5like.errors import UserError
from t5like.objectives import CATALOGUE, Draws, Ragged, Rows, SpecialTokens
from t5like.objectives.masking import MaskedLM, NgramMaskedLM, SpanMaskedLM

CLS, SEP, MASK, STOP = 101, 102, 103, 5
SPECIAL = SpecialTokens(
  vocab_size=2000, pad=0, eos=SEP, mask=MASK, cls=CLS, sep=SEP, others=frozenset(range(104, 200)),
  sentence_ends=(STOP,), word_starts=np.arange(2000) % 3 == 0,
)  # fmt: skip


def rows_of(count, length, seed=0, others=True):
  rng = np.random.default_rng(seed)
  tokens = rng.integers(200, 1000, (count, length)).astype(np.int32)
  tokens[:, 9::10] = STOP
  return Rows.full(tokens) if not others else Rows(
    tokens, np.full(count, length), Ragged.full(rng.integers(1000, 2000, (count, length)).astype(np.int32))
  )  # fmt: skip


def draws(count):
  return Draws.of(0, 0, np.arange(count))


def test_bert_predicts_15_percent_80_10_10():
  result = CATALOGUE["bert_mlm"](rows_of(2000, 510), draws(2000), SPECIAL)
  assert np.all(result.weights.sum(axis=1) == 77)  # round(512 * 0.15), as BERT counts
  chosen = result.weights
  masked = (result.inputs.tokens == MASK) & chosen
  kept = (result.inputs.tokens == result.targets) & chosen
  total = chosen.sum()
  for found, share in ((masked, 0.8), (chosen & ~masked & ~kept, 0.1), (kept, 0.1)):
    assert abs(found.sum() / total - share) < 0.005
  assert np.array_equal(result.inputs.tokens[~chosen], result.targets[~chosen])
  assert result.inputs.tokens[:, 0].tolist() == [CLS] * 2000 and result.inputs.tokens[0, -1] == SEP
  assert abs(chosen[:, 1:-1].mean(axis=0) - 77 / 510).max() < 5 * np.sqrt(0.15 * 0.85 / 2000)  # no position is favored


def test_the_128_token_phase_predicts_at_most_20():
  result = MaskedLM(max_predictions=20)(rows_of(10, 510), draws(10), SPECIAL)
  assert np.all(result.weights.sum(axis=1) == 20)
  assert np.all(MaskedLM(max_predictions=20)(rows_of(10, 126), draws(10), SPECIAL).weights.sum(axis=1) == 19)


def test_electra_masks_85_percent_and_uses_no_random_tokens():
  result = CATALOGUE["electra"](rows_of(500, 510), draws(500), SPECIAL)
  changed = result.inputs.tokens[result.weights & (result.inputs.tokens != result.targets)]
  assert set(changed.tolist()) == {MASK}
  assert abs(len(changed) / result.weights.sum() - 0.85) < 0.01


def test_next_sentence_pairs_are_half_true_and_split_at_sentence_ends():
  count = 2000
  rows = rows_of(count, 61)
  result = CATALOGUE["bert_mlm_nsp"](rows, draws(count), SPECIAL)
  assert abs(result.labels.mean() - 0.5) < 0.05
  for row in range(50):
    text = result.targets[row, : result.inputs.lengths[row]].tolist()
    middle = text.index(SEP)
    first, second = text[1:middle], text[middle + 1 : -1]
    assert text[0] == CLS and text[-1] == SEP and first[-1] == STOP
    assert result.token_types[row, : len(text)].tolist() == [0] * (middle + 1) + [1] * (len(second) + 1)
    original = rows.tokens[row].tolist()
    if result.labels[row] == 0:
      assert first + second == original
    else:
      assert second == rows.others.tokens[row, : len(second)].tolist() and first == original[: len(first)]
      assert len(first) + len(second) == len(original)
  splits = (result.targets == SEP).argmax(axis=1) - 1
  assert set(splits.tolist()) == {10, 20, 30, 40, 50, 60}  # every sentence end is used


def test_roberta_uses_complete_sentences_across_documents_without_pairs():
  roberta = CATALOGUE["roberta"]
  assert (roberta.unit, roberta.separated, roberta.needs_others) == ("sentences", True, False)
  tokens = rows_of(1, 30).tokens
  tokens[0, 12] = SEP  # the end of a document
  result = roberta(Rows.full(tokens), draws(1), SPECIAL)
  assert result.inputs.tokens[0, 13] == SEP and not result.weights[0, 13]


def test_spanbert_predicts_complete_words_and_masks_a_span_as_a_unit():
  count = 1500
  result = SpanMaskedLM()(rows_of(count, 510, others=False), draws(count), SPECIAL)
  weights, shown, text = result.weights, result.inputs.tokens, result.targets
  assert abs(weights.mean() - 0.15) < 0.005
  # Words are predicted completely: if the first token is, so are those that continue it.
  continues = ~SPECIAL.word_starts[text] & ~SPECIAL.reserved[text]
  inner = continues[:, 2:] & ~SPECIAL.reserved[text[:, 1:-1]]
  assert np.array_equal(weights[:, 2:][inner], weights[:, 1:-1][inner])
  # Neighbors in a span are masked together or not at all.
  both = weights[:, 1:] & weights[:, :-1]
  masked = shown == MASK
  assert np.array_equal(masked[:, 1:][both], masked[:, :-1][both])
  # Geometric(0.2) clipped at 10 has mean 3.80. Of about 25.5 words, the last span is trimmed by 2.3 on average
  # (renewal theory: E[L^2] / 2 E[L] - 1/2), so by hand a row has (25.5 + 2.3) / 3.80 = 7.3 spans of 3.5.
  word = np.cumsum(SPECIAL.word_starts[text] & ~SPECIAL.reserved[text], axis=1)
  starts = weights & ~np.pad(weights, ((0, 0), (1, 0)))[:, :-1]
  ends = weights & ~np.pad(weights, ((0, 0), (0, 1)))[:, 1:]
  spans = word[ends] - word[starts] + 1
  assert spans.max() <= 10 and abs(spans.mean() - 3.48) < 0.1


def test_the_original_spans_use_the_budget_of_tokens_exactly_and_start_at_words():
  count = 1500
  result = SpanMaskedLM(variant="original")(rows_of(count, 510, others=False), draws(count), SPECIAL)
  weights, shown, text = result.weights, result.inputs.tokens, result.targets
  assert np.all(weights.sum(axis=1) == 77)  # ceil(0.15 * 510), without [CLS] and [SEP]
  starts = weights & ~np.pad(weights, ((0, 0), (1, 0)))[:, :-1]
  first = starts[:, 1:] & ~SPECIAL.reserved[text[:, 1:]] & ~SPECIAL.reserved[text[:, :-1]]
  assert np.all(SPECIAL.word_starts[text[:, 1:]][first])  # only the end of the last span is cut
  both, masked = weights[:, 1:] & weights[:, :-1], shown == MASK
  assert np.array_equal(masked[:, 1:][both], masked[:, :-1][both])
  # About 3.80 words a span, and more where spans touch.
  word = np.cumsum(SPECIAL.word_starts[text] & ~SPECIAL.reserved[text], axis=1)
  ends = weights & ~np.pad(weights, ((0, 0), (0, 1)))[:, 1:]
  spans = word[ends] - word[starts] + 1
  assert 3.5 < spans.mean() < 5.0 and spans.max() > 10
  with pytest.raises(UserError, match="unknown variant of span_masked_lm: 'google'"):
    SpanMaskedLM(variant="google")


def test_albert_predicts_ngrams_with_odds_of_1_to_n():
  """Every token is a word. With a budget of few tokens, spans hardly ever touch."""
  count = 3000
  special = dataclasses.replace(SPECIAL, word_starts=np.ones(2000, bool))
  ngrams = NgramMaskedLM(noise_density=0.03)
  chosen = ngrams.choose(Ragged.full(rows_of(count, 400, others=False).tokens), draws(count), special)
  assert np.all(chosen.sum(axis=1) == 12)
  starts = np.argwhere(chosen & ~np.pad(chosen, ((0, 0), (1, 0)))[:, :-1])
  ends = np.argwhere(chosen & ~np.pad(chosen, ((0, 0), (0, 1)))[:, 1:])
  lengths = ends[:, 1] - starts[:, 1] + 1
  shares = [np.mean(lengths == n) for n in (1, 2, 3)]
  # 6/11, 3/11 and 2/11; the last of about 8 spans is cut, and a few touch.
  assert np.allclose(shares, [6 / 11, 3 / 11, 2 / 11], atol=0.04) and shares[0] > shares[1] > shares[2]
  assert np.all(NgramMaskedLM(max_predictions=5)(rows_of(9, 400), draws(9), SPECIAL).weights.sum(axis=1) == 5)
  # Each token of an n-gram is masked, replaced or kept by a draw of its own.
  result = NgramMaskedLM()(rows_of(500, 400, others=False), draws(500), SPECIAL)
  both, masked = result.weights[:, 1:] & result.weights[:, :-1], result.inputs.tokens == MASK
  assert abs(np.mean(masked[:, 1:][both] & masked[:, :-1][both]) - 0.64) < 0.02


def test_sentence_order_swaps_consecutive_texts_in_half_of_the_rows():
  count = 2000
  rows = rows_of(count, 61, others=False)
  result = CATALOGUE["albert"](rows, draws(count), SPECIAL)
  assert abs(result.labels.mean() - 0.5) < 0.05
  for row in range(50):
    text = result.targets[row, : result.inputs.lengths[row]].tolist()
    middle = text.index(SEP)
    first, second = text[1:middle], text[middle + 1 : -1]
    if result.labels[row] == 1:
      first, second = second, first
    assert first + second == rows.tokens[row].tolist() and first[-1] == STOP
    types = [0] * (middle + 1) + [1] * (len(text) - middle - 1)
    assert text[0] == CLS and text[-1] == SEP and result.token_types[row, : len(text)].tolist() == types
  one = MaskedLM(sentence_order=True)(Rows.full(np.array([[300]], np.int32)), draws(1), SPECIAL)
  assert one.labels.tolist() == [0]


def test_objectives_for_encoders_need_their_special_tokens():
  with pytest.raises(UserError, match=r"needs \[CLS\] and \[SEP\]"):
    MaskedLM().check(MaskedLM().lengths(128), SpecialTokens(vocab_size=100, pad=0, eos=1, mask=99))
  with pytest.raises(UserError, match="needs a mask token"):
    MaskedLM().check(MaskedLM().lengths(128), SpecialTokens(vocab_size=100, pad=0, eos=1))
  with pytest.raises(UserError, match="mutually exclusive"):
    MaskedLM(next_sentence=True, whole_sentences=True)
  with pytest.raises(UserError, match="mutually exclusive"):
    MaskedLM(next_sentence=True, sentence_order=True)
  with pytest.raises(UserError, match="sum of at most 1"):
    MaskedLM(mask_share=0.8, random_share=0.3)
