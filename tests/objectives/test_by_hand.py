"""Small rows and vocabularies, for which all possible outputs of an objective can be listed."""

import types

import numpy as np
import pytest

from t5like.errors import UserError
from t5like.objectives import CATALOGUE, Draws, Ragged, Rows, SpecialTokens
from t5like.objectives.bart import Bart
from t5like.objectives.cutting import document_rows, sentence_rows, separate, stream_rows
from t5like.objectives.denoising import BertStyle, IidDropTokens, IidReplaceSpans
from t5like.objectives.masking import MaskedLM, SpanMaskedLM
from t5like.objectives.mass import Mass
from t5like.objectives.noise import noise_counts
from t5like.objectives.randomness import combine
from t5like.objectives.ul2 import UL2, Denoiser

SPECIAL = SpecialTokens(
  vocab_size=14, pad=0, eos=1, sentinels=(13, 12), mask=2, cls=3, sep=4, others=frozenset({5, 99}), sentence_ends=(6,)
)
TEXT = [6, 7, 8, 9, 10, 11]


def rows_of(*texts, others=None):
  def ragged(texts):
    return Ragged.of(np.concatenate([np.asarray(t, np.int32) for t in texts]), np.array([len(t) for t in texts]))

  rows = ragged(texts)
  return Rows(rows.tokens, rows.lengths, None if others is None else ragged(others))


def draws(count, seed=0):
  return Draws.of(seed, 0, np.arange(count))


def listed(ragged):
  return [tokens[:n].tolist() for tokens, n in zip(ragged.tokens, ragged.lengths, strict=True)]


def test_only_text_can_be_hidden_or_sampled():
  assert SPECIAL.replacement_ids.tolist() == TEXT
  padded = Ragged(np.array([[7, 1, 8, 9], [99, 6, 2, 0]]), np.array([3, 4]))  # 99 is beyond the vocabulary
  assert SPECIAL.is_text(padded).tolist() == [[True, False, True, False], [False, True, False, False]]
  assert (SPECIAL.start, SpecialTokens(9, pad=None, eos=8).start, SpecialTokens(9, pad=5, eos=8).start) == (0, 8, 8)


def test_special_tokens_of_a_vocabulary():
  starts = np.zeros(9, bool)
  vocabulary = types.SimpleNamespace(
    vocab_size=9, pad_id=0, bos_id=6, eos_id=1, sentinel_ids=[8, 7], mask_id=None, cls_id=2, sep_id=3,
    special_ids=[4], sentence_end_ids=[5, 6], word_starts=starts, opens_texts=True,
    cls_last=False,
  )  # fmt: skip
  expected = SpecialTokens(9, 0, 1, (8, 7), 8, 2, 3, 6, True, frozenset({4}), (5, 6))  # the first sentinel is the mask
  found = SpecialTokens.of(vocabulary)
  assert found == expected and found.word_starts is starts and found.start == 6
  vocabulary.mask_id = 4
  assert SpecialTokens.of(vocabulary).mask == 4
  vocabulary.mask_id, vocabulary.sentinel_ids = None, []
  assert SpecialTokens.of(vocabulary).mask is None


ALL_RANDOM = dict(mask_share=0.0, random_share=1.0)


@pytest.mark.parametrize(
  "objective, drawn",
  [
    (MaskedLM(noise_density=0.9, **ALL_RANDOM), TEXT),
    (SpanMaskedLM(noise_density=0.9, **ALL_RANDOM), TEXT),
    (Mass(share=0.9, **ALL_RANDOM), TEXT),
    (BertStyle(noise_density=0.9, random_share=0.99), TEXT),
    (BertStyle(noise_density=0.9, random_share=0.99, variant="t5"), range(3, 14)),  # as in the original: all but 3 ids
  ],
)
def test_random_replacements_cover_exactly_the_allowed_ids(objective, drawn):
  rows = rows_of(*[[7] * 20] * 200)
  shown = objective(rows, draws(200), SPECIAL).inputs.tokens[:, 1:20]
  found = set(np.unique(shown).tolist()) - ({2} if isinstance(objective, BertStyle) else set())
  assert found == set(drawn)


def test_masked_lm_rounds_and_predicts_at_least_one_token():
  """[CLS] and [SEP] count: 5 * 0.15 and 12 * 0.15 = 1.8; of 4 * 0.9 = 4 only two are text."""
  for length, density, count in ((3, 0.15, 1), (1, 0.15, 1), (10, 0.15, 2), (2, 0.9, 2)):
    result = MaskedLM(noise_density=density)(rows_of([7] * length), draws(1), SPECIAL)
    assert result.weights.sum() == count and not result.weights[0, [0, -1]].any()


def test_next_sentence_pairs_by_hand():
  """Without a sentence end inside, a row is split in the middle; the end of the last sentence does not count."""
  many, text = 400, [7, 8, 9, 10, 11, 7, 6]
  rows = rows_of(*[text] * many, others=[[8, 8]] * many)
  result = MaskedLM(next_sentence=True, mask_share=0.0, random_share=0.0)(rows, draws(many), SPECIAL)
  follows, random = [3, 7, 8, 9, 4, 10, 11, 7, 6, 4], [3, 7, 8, 9, 4, 8, 8, 4]  # the other document has two tokens
  assert listed(result.inputs) == [random if label else follows for label in result.labels]
  assert result.labels.dtype == np.int32 and abs(result.labels.mean() - 0.5) < 0.075  # three standard deviations
  rows = rows_of(*[[7, 6, 8, 6, 9]] * many, others=[[8] * 9] * many)
  firsts = {tuple(row[1 : row.index(4)]) for row in listed(MaskedLM(next_sentence=True, mask_share=0.0,
            random_share=0.0)(rows, draws(many), SPECIAL).inputs)}  # fmt: skip
  assert firsts == {(7, 6), (7, 6, 8, 6)}
  with pytest.raises(ValueError, match="another document"):
    MaskedLM(next_sentence=True)(rows_of([7, 8]), draws(1), SPECIAL)


def test_spanbert_predicts_complete_words_and_a_special_token_separates_words():
  """Even ids start words: 8 9 | 10 11 11 | and after the end of a document 7 | 8."""
  special = SpecialTokens(14, 0, 1, mask=2, cls=3, sep=4, word_starts=np.arange(14) % 2 == 0)
  rows = rows_of(*[[8, 9, 10, 11, 11, 1, 7, 8]] * 300)
  words = [(1, 2), (3, 4, 5), (7,), (8,)]
  result = SpanMaskedLM(geometric=0.99)(rows, draws(300), special)  # spans of one word; of four words one
  found = {tuple(np.flatnonzero(row).tolist()) for row in result.weights}
  assert found == set(words)
  assert SpanMaskedLM()(rows_of([8, 9]), draws(1), special).weights.sum() == 2  # a single word is predicted


@pytest.mark.parametrize(
  "given, expected",
  [
    ((1, 0.15, 3.0), (0, 0)),  # no text would be left
    ((2, 0.15, 3.0), (1, 1)),
    ((10, 0.15, 3.0), (2, 1)),  # 1.5 to even
    ((30, 0.15, 3.0), (4, 1)),  # 4.5 to even
    ((100, 0.15, 2.0), (15, 8)),  # 7.5 to even
    ((100, 0.15, 6.0), (15, 2)),
    ((4, 0.9, 1.0), (3, 1)),  # one token of text remains, which cannot separate two spans
    ((10, 0.5, 1.0), (5, 5)),
    ((10, 0.6, 1.0), (6, 4)),
  ],
)
def test_noise_counts(given, expected):
  assert noise_counts(*given) == expected
  tokens, spans = noise_counts(np.array([given[0]]), *given[1:])
  assert (tokens.tolist(), spans.tolist()) == ([expected[0]], [expected[1]]) and tokens.dtype == np.int64


def test_mass_hides_every_half_equally_often_and_80_10_10_of_it():
  count = 3000
  result = Mass()(rows_of(*[[7, 8, 9, 10]] * count), draws(count), SPECIAL)
  targets = [tuple(row) for row in listed(result.targets)]
  assert set(targets) == {(7, 8), (8, 9), (9, 10)}
  assert all(abs(targets.count(t) / count - 1 / 3) < 0.04 for t in set(targets))
  shown, text = result.inputs.tokens, np.array([7, 8, 9, 10])
  assert abs((shown == 2).mean() / 0.5 - 0.8) < 0.02
  replaced = 0.1 * 5 / 6  # one in six random tokens equals the original
  assert abs(((shown != 2) & (shown != text)).mean() / 0.5 - replaced) < 0.015


def test_a_text_of_one_token_becomes_targets_only():
  result = CATALOGUE["prefix_lm"](rows_of([7], [8, 9]), draws(2), SPECIAL)
  assert listed(result.inputs) == [[], [8]] and listed(result.targets) == [[7], [9]]


def test_rows_of_documents():
  tokens, lengths = separate(np.array([7, 8, 9]), np.array([2, 0, 1]), 1)
  assert tokens.tolist() == [7, 8, 1, 1, 9, 1] and lengths.tolist() == [3, 1, 2]
  as_lists = lambda pair: tuple(x.tolist() for x in pair)  # noqa: E731
  assert as_lists(stream_rows(7, 3)) == ([0, 3, 6], [3, 3, 1]) and as_lists(stream_rows(6, 3)) == ([0, 3], [3, 3])
  assert as_lists(document_rows(np.array([5, 2, 4]), 2)) == ([0, 2, 4, 5, 7, 9], [2, 2, 1, 2, 2, 2])
  # Sentences of 2, 2, 1 and 7 tokens, and 3 without an end; rows of 4.
  assert as_lists(sentence_rows(np.array([2, 4, 5, 12]), 15, 4)) == ([0, 4, 5, 9, 12], [4, 1, 4, 3, 3])
  assert as_lists(sentence_rows(np.array([2, 4]), 4, 4)) == ([0], [4])


# By hand, for 128 input tokens: (raw, inputs, targets), unit, separated, closed, shifted.
STREAM, DOCUMENT, SENTENCES = "stream", "document", "sentences"
LAYOUTS = {
  "prefix_lm": ((127, 128, 128), DOCUMENT, False, True, False),
  "deshuffling": ((127, 128, 128), DOCUMENT, False, True, False),
  "bert_style": ((127, 128, 128), STREAM, False, True, False),
  "mass_style": ((127, 128, 128), STREAM, False, True, False),
  "iid_drop_tokens": ((127, 128, 33), STREAM, False, True, False),  # 19.05 + 3 * 4.02, and end-of-sequence
  "lm": ((127, 0, 128), STREAM, False, True, False),
  "full_lm": ((128, 0, 128), STREAM, True, False, False),
  "causal_lm": ((129, 0, 128), STREAM, True, False, True),
  "bert_mlm": ((126, 128, 128), DOCUMENT, False, True, False),
  "bert_mlm_nsp": ((125, 128, 128), DOCUMENT, False, True, False),
  "roberta": ((126, 128, 128), SENTENCES, True, True, False),
  "spanbert": ((126, 128, 128), DOCUMENT, False, True, False),
  "albert": ((125, 128, 128), DOCUMENT, False, True, False),
  "xlnet": ((125, 128, 128), STREAM, True, True, False),
  "bart": ((127, 128, 128), STREAM, False, True, False),
  "mass": ((127, 128, 65), STREAM, False, True, False),  # 63.5 to even, and end-of-sequence
  "permuted_lm": ((127, 128, 43), STREAM, False, True, False),  # 21 tokens and their sentinels
  "ul2": ((126, 128, 126), STREAM, False, True, False),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name):
  objective = CATALOGUE[name]
  lengths = objective.lengths(128)
  flags = objective.unit, objective.separated, objective.closed, objective.shifted
  assert ((lengths.raw, lengths.inputs, lengths.targets), *flags) == LAYOUTS[name]
  assert objective.needs_others == (name == "bert_mlm_nsp")
  assert objective.labels_rows == (name in ("bert_mlm_nsp", "albert"))
  assert objective.targets_vary == (name in ("bert_style", "mass_style", "iid_drop_tokens"))


@pytest.mark.parametrize("name", CATALOGUE)
def test_inputs_that_are_too_short_are_refused(name):
  eight = isinstance(CATALOGUE[name], MaskedLM | Bart | UL2) or name in ("permuted_lm", "xlnet")
  least = 8 if eight else 2 if name.endswith("lm") and name != "prefix_lm" else 4
  assert CATALOGUE[name].lengths(least).raw > 0
  with pytest.raises(UserError, match=rf": {least - 1} \(expected at least {least}\)"):
    CATALOGUE[name].lengths(least - 1)


def test_settings_of_the_papers():
  corruption = [CATALOGUE[f"span_corruption{n}"] for n in ("", "_2", "_5", "_10")]
  assert [(o.noise_density, o.mean_span_length, o.variant) for o in corruption] == [
    (0.15, mean, "paper") for mean in (3.0, 2.0, 5.0, 10.0)
  ]
  iid = [CATALOGUE[f"iid_replace_spans{n}"] for n in ("", "_10_percent", "_25_percent", "_50_percent")]
  assert [(o.noise_density, o.variant) for o in iid] == [(0.15, "paper"), (0.1, "paper"), (0.25, "t5"), (0.5, "t5")]
  assert [(d.mode, d.mean_span_length, d.noise_density, d.rate) for d in CATALOGUE["ul2"].denoisers] == [
    ("R", 3, 0.15, 1.0), ("X", 3, 0.5, 1.0), ("X", 32, 0.5, 1.0), ("X", 32, 0.15, 1.0), ("S", None, None, 1.0),
  ]  # fmt: skip
  bart = {name: (o.noise, o.noise_density, o.mean_span_length, o.permute_sentences, o.rotate)
          for name, o in CATALOGUE.items() if isinstance(o, Bart)}  # fmt: skip
  assert bart == {
    "bart": ("infill", 0.3, 3.0, True, False),
    "bart_token_masking": ("mask", 0.15, 3.0, False, False),
    "bart_token_deletion": ("delete", 0.15, 3.0, False, False),
    "bart_text_infilling": ("infill", 0.3, 3.0, False, False),
    "bart_sentence_permutation": ("none", 0.3, 3.0, True, False),
    "bart_document_rotation": ("none", 0.3, 3.0, False, True),
  }
  masked = {name: (o.noise_density, o.mask_share, o.random_share, o.max_predictions, o.next_sentence,
            o.whole_sentences) for name, o in CATALOGUE.items() if isinstance(o, MaskedLM)}  # fmt: skip
  assert masked == {
    "bert_mlm": (0.15, 0.8, 0.1, None, False, False),
    "bert_mlm_nsp": (0.15, 0.8, 0.1, None, True, False),
    "roberta": (0.15, 0.8, 0.1, None, False, True),
    "spanbert": (0.15, 0.8, 0.1, None, False, False),
    "albert": (0.15, 0.8, 0.1, None, False, False),
    "electra": (0.15, 0.85, 0.0, None, False, False),
  }
  assert (CATALOGUE["spanbert"].geometric, CATALOGUE["spanbert"].longest_span) == (0.2, 10)
  assert (CATALOGUE["mass"].share, CATALOGUE["permuted_lm"].share) == (0.5, 1 / 6)


def with_sentinels(count):
  return SpecialTokens(vocab_size=900, pad=0, eos=1, sentinels=tuple(range(899, 899 - count, -1)), mask=2)


@pytest.mark.parametrize(
  "objective, needed",
  [
    # 0.15 + 510 * 0.1275 = 65.2 spans, plus four times sqrt(511 * 0.1275 * (1 - 3 * 0.1275)) = 6.34, plus a final one.
    (IidReplaceSpans(), 92),
    (UL2(), 89),  # 510 tokens, half of them noise in spans of 3: 85, plus a final one and three modes
    (CATALOGUE["span_corruption"], 29),  # 28 spans and a final one
    (CATALOGUE["permuted_lm"], 85),  # a sixth of 511
  ],
)
def test_sentinels_needed_at_512_inputs(objective, needed):
  lengths = objective.lengths(512)
  objective.check(lengths, with_sentinels(needed))
  with pytest.raises(UserError, match=f"needs {needed} sentinels"):
    objective.check(lengths, with_sentinels(needed - 1))


@pytest.mark.parametrize("name", ["mass_style", "bert_style", "mass", "bart_token_masking", "bart_text_infilling"])
def test_a_vocabulary_without_a_required_mask_is_refused(name):
  objective = CATALOGUE[name]
  with pytest.raises(UserError, match="needs a mask token"):
    objective.check(objective.lengths(64), SpecialTokens(vocab_size=9, pad=0, eos=1))
  CATALOGUE["bart_token_deletion"].check(objective.lengths(64), SpecialTokens(vocab_size=9, pad=0, eos=1))


@pytest.mark.parametrize(
  "settings, words",
  [
    (dict(mask_share=0.8, random_share=0.3), "sum of at most 1"),
    (dict(mask_share=-0.1), "non-negative"),
    (dict(next_sentence=True, whole_sentences=True), "mutually exclusive"),
    (dict(noise_density=1.0), "between 0 and 1"),
  ],
)
def test_masked_lm_refuses_invalid_settings(settings, words):
  with pytest.raises(UserError, match=words):
    MaskedLM(**settings)
  MaskedLM(mask_share=0.9, random_share=0.1)


def test_encoders_need_cls_and_sep():
  for missing in ("cls", "sep"):
    special = SpecialTokens(**dict(vocab_size=9, pad=0, eos=1, mask=2, cls=3, sep=4) | {missing: None})
    with pytest.raises(UserError, match="CLS"):
      MaskedLM().check(MaskedLM().lengths(64), special)


def test_ul2_lengths_fit_the_longest_targets_and_rates_are_used():
  """Six tokens, three of them noise in three spans: six, a final sentinel and end-of-sequence."""
  lengths = UL2(denoisers=[Denoiser("X", 1, 0.5)]).lengths(8)
  assert (lengths.raw, lengths.inputs, lengths.targets) == (6, 8, 8)
  special, rows = with_sentinels(40), rows_of(*[range(10, 30)] * 4000)
  modes = UL2(denoisers=[("R", 3, 0.15, 1.0), ("S", None, None, 3.0)])(rows, draws(4000), special).inputs.tokens[:, 0]
  assert abs((modes == special.sentinels[-1]).mean() - 0.75) < 0.03
  assert set(modes.tolist()) == {special.sentinels[-3], special.sentinels[-1]}
  for bad in ([], [("R", 3, 0.15, 0.0)], [("R", 3, 0.15, 2.0), ("S", None, None, -1.0)]):
    with pytest.raises(UserError, match="not all 0"):
      UL2(denoisers=bad)
  for bad in (("R", None, 0.15), ("S", 3, None)):
    with pytest.raises(UserError, match="span length"):
      UL2(denoisers=[bad])


def test_lengths_fit_dropped_tokens():
  """At 10%, no published length: 12.7 + 3 * sqrt(11.43) = 22.8, plus end-of-sequence; at 15%, the paper's 104."""
  assert IidDropTokens(0.1).lengths(128).targets == 24
  assert IidDropTokens().lengths(512).targets == 104


def test_lengths_fit_replaced_spans():
  """At 20% of 511 tokens: 102.2 tokens, 81.8 spans and 2; the variance of their sum is
  511 * (0.5504 - 2 * 0.0576) = 14.9^2, and lengths allow for three times 14.9 more."""
  assert IidReplaceSpans(0.2).lengths(512).targets == 231


def test_random_numbers_equal_those_of_splitmix64():
  """Steele et al. 2014: the first output of seed 0 is 0xE220A8397B1DCDAF; the next follow their algorithm."""
  mask = 2**64 - 1

  def splitmix(state):
    while True:
      state = (state + 0x9E3779B97F4A7C15) & mask
      x = state
      x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
      x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
      yield x ^ (x >> 31)

  assert int(combine(0)[0]) == 0xE220A8397B1DCDAF == next(splitmix(0))
  one = next(splitmix(7))
  assert int(combine(7, 9)[0]) == next(splitmix(one ^ 9))
  keys = combine(7, 9, np.arange(3))
  bits, other = (Draws.of(7, 9, np.arange(3)).bits(purpose, 4) for purpose in ("a", "b"))
  stream = splitmix(int(combine(keys, 0xE8B7BE43)[2]))  # the CRC-32 of "a"
  assert bits[2].tolist() == [next(stream) for _ in range(4)]
  assert not np.any(bits == other)
  uniform = Draws.of(0, 0, np.arange(20_000)).uniform("u", 1)
  assert 0 <= uniform.min() < 0.001 and 0.999 < uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.01
