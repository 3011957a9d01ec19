"""Properties of every objective in the catalogue, for any rows."""

import dataclasses
import warnings
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5like.errors import UserError
from t5like.objectives import (
  CATALOGUE,
  Draws,
  Lengths,
  Masked,
  Objective,
  Pairs,
  Ragged,
  Rows,
  SpecialTokens,
  find_objective,
  split_task_name,
)
from t5like.objectives.denoising import BertStyle, IidReplaceSpans
from t5like.objectives.span_corruption import SpanCorruption
from t5like.objectives.ul2 import UL2
from t5like.objectives.worked_examples import check_output

SENTINELS = tuple(range(1999, 1899, -1))
# Text is 10..1899; 5 and 6 end sentences, every second id starts a word.
SPECIAL = SpecialTokens(
  vocab_size=2000, pad=0, eos=1, sentinels=SENTINELS, mask=3, cls=2, sep=4, others=frozenset({7, 8}),
  sentence_ends=(5, 6), word_starts=np.arange(2000) % 2 == 0,
)  # fmt: skip
PAIRS = [name for name, objective in CATALOGUE.items() if objective.makes == "pairs"]
MASKED = [name for name, objective in CATALOGUE.items() if objective.makes == "masked"]


def make_rows(lengths, seed=0, special_share=0.0):
  """Returns rows of text with some sentence ends and a fraction `special_share` of special tokens."""
  rng = np.random.default_rng(seed)
  lengths = np.asarray(lengths)

  def some():
    tokens = rng.integers(10, 1900, (len(lengths), int(lengths.max())))
    tokens[rng.random(tokens.shape) < 0.1] = 5
    tokens[rng.random(tokens.shape) < special_share] = 1
    return np.where(np.arange(tokens.shape[1]) < lengths[:, None], tokens, 0).astype(np.int32)

  return Rows(some(), lengths, others=Ragged(some(), lengths))


def apply(name, rows, seed=0, numbers=None):
  objective = CATALOGUE[name] if isinstance(name, str) else name
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    return objective(rows, Draws.of(seed, 0, np.arange(len(rows.tokens)) if numbers is None else numbers), SPECIAL)


def listed(ragged, row):
  assert not ragged.tokens[row, ragged.lengths[row] :].any()
  return ragged.tokens[row, : ragged.lengths[row]].tolist()


ARRAYS = {"pairs": ("inputs", "targets"), "masked": ("inputs",)}


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_noise_of_a_row_does_not_depend_on_the_batch(name):
  rows = make_rows([60, 33, 60, 1, 7, 60])
  full = apply(name, rows)
  for keep in ([4], [2, 0], [5, 3, 1]):
    others = Ragged(rows.others.tokens[keep], rows.others.lengths[keep])
    part = apply(name, Rows(rows.tokens[keep], rows.lengths[keep], others), numbers=np.array(keep))
    for array in ARRAYS[CATALOGUE[name].makes]:
      for index, row in enumerate(keep):
        assert listed(getattr(part, array), index) == listed(getattr(full, array), row)


@pytest.mark.parametrize("name", sorted(set(CATALOGUE) - {"lm", "full_lm", "causal_lm"}))
def test_different_epochs_and_seeds_give_different_noise(name):
  rows, numbers = make_rows([64] * 8), np.arange(8)
  results = [
    CATALOGUE[name](rows, draws, SPECIAL).inputs.tokens.tolist()
    for draws in (Draws.of(0, 0, numbers), Draws.of(0, 1, numbers), Draws.of(1, 0, numbers))
  ]
  assert results[0] != results[1] != results[2] != results[0]


@pytest.mark.parametrize("name", CATALOGUE)
@pytest.mark.parametrize("inputs", [64, 128, 512])
def test_results_fit_the_stated_lengths(name, inputs):
  objective = CATALOGUE[name]
  lengths = objective.lengths(inputs)
  result = apply(name, make_rows([lengths.raw] * 50))
  eos = int(objective.closed and objective.makes == "pairs")
  if lengths.inputs:
    assert result.inputs.lengths.max() + eos <= lengths.inputs
  if objective.makes == "pairs" and not name.startswith("iid"):  # iid noise may occasionally exceed its length
    assert result.targets.lengths.max() + eos <= lengths.targets + int(objective.shifted)


# Objectives whose targets are the hidden spans, each after its sentinel.
SPAN_OBJECTIVES = [
  *(SpanCorruption(density, mean, v) for density in (0.15, 0.5) for mean in (1, 3, 10) for v in ("paper", "t5")),
  *(IidReplaceSpans(density) for density in (0.1, 0.15, 0.25, 0.5)),
  UL2(),
]  # fmt: skip


@given(st.sampled_from(SPAN_OBJECTIVES), st.lists(st.integers(1, 90), min_size=1, max_size=6), st.integers(0, 2**31))
def test_the_text_can_be_rebuilt_from_inputs_and_targets(objective, lengths, seed):
  special_share = 0.0 if getattr(objective, "variant", "") == "t5" else 0.05
  rows = make_rows(lengths, seed, special_share)
  result = apply(objective, rows, seed)
  for row in range(len(lengths)):
    inputs, targets = listed(result.inputs, row), listed(result.targets, row)
    if isinstance(objective, UL2):
      mode, inputs = inputs[0], inputs[1:]
      assert mode in SENTINELS[-3:]
      if mode == SENTINELS[-1]:  # S: the text split in two
        assert inputs + targets == listed(rows, row)
        continue
    spans, span = {}, None
    for token in targets:
      if token in SENTINELS:
        assert token not in spans
        span = spans[token] = []
      else:
        span.append(token)
    rebuilt = [t for token in inputs for t in (spans[token] if token in SENTINELS else [token])]
    assert rebuilt == listed(rows, row)


@given(st.lists(st.integers(1, 90), min_size=1, max_size=6), st.integers(0, 2**31))
def test_permuted_lm_can_be_rebuilt_and_predicts_a_sixth(lengths, seed):
  rows = make_rows(lengths, seed)
  result = apply("permuted_lm", rows, seed)
  for row, length in enumerate(lengths):
    targets = listed(result.targets, row)
    hidden = dict(zip(targets[::2], targets[1::2], strict=True))
    assert len(hidden) == length // 6
    assert [hidden.get(token, token) for token in listed(result.inputs, row)] == listed(rows, row)


@settings(max_examples=30)
@given(st.sampled_from(sorted(CATALOGUE)), st.integers(0, 2**31))
def test_no_special_token_is_hidden_or_sampled(name, seed):
  objective = CATALOGUE[name]
  if getattr(objective, "variant", "") == "t5":
    return  # the original also hides special tokens
  rows = make_rows([80, 41], seed, special_share=0.1)
  result = apply(name, rows, seed)
  if isinstance(result, Masked):
    shown, predicted = result.inputs.tokens, result.weights
    assert not SPECIAL.reserved[result.targets[predicted]].any()
    drawn = shown[predicted & (shown != result.targets)]
    assert not SPECIAL.reserved[drawn[drawn != SPECIAL.mask]].any()
    return
  allowed = {1, SPECIAL.mask, *SENTINELS}
  for row in range(2):
    text, inputs, targets = (listed(r, row) for r in (rows, result.inputs, result.targets))
    everything = inputs + targets
    assert {t for t in everything if SPECIAL.reserved[t]} <= allowed
    if name not in ("prefix_lm", "ul2", "mass", "lm", "full_lm", "causal_lm"):
      assert inputs.count(1) == text.count(1)  # all are still shown
    if name == "mass":
      assert targets.count(1) == 0


@pytest.mark.parametrize("name", CATALOGUE)
def test_rows_of_very_few_tokens_are_accepted(name):
  for lengths in ([1], [1, 2, 3]):
    apply(name, make_rows(lengths))


def test_lengths_of_the_papers_rows_at_512_inputs():
  # T5_FACTS, section 2.
  published = {
    "prefix_lm": 512, "deshuffling": 512, "bert_style": 512, "mass_style": 512, "iid_replace_spans": 192,
    "iid_drop_tokens": 104, "iid_replace_spans_25_percent": 256, "iid_replace_spans_50_percent": 512, "lm": 512,
  }  # fmt: skip
  assert {name: CATALOGUE[name].lengths(512).targets for name in published} == published
  assert IidReplaceSpans(0.10, variant="t5").lengths(512).targets == 103
  # Quirk 5: this trims a third of the targets, so the paper variant has longer ones.
  tokens = make_rows([511] * 2000)
  for variant, share in (("t5", 1 / 3), ("paper", 0.0)):
    objective = IidReplaceSpans(0.10, variant=variant)
    cut = apply(objective, tokens).targets.lengths + 1 > objective.lengths(512).targets
    assert abs(cut.mean() - share) < 0.05


def test_fractions_of_noise_are_as_configured():
  rows = make_rows([511] * 400)
  for name, share in [
    ("iid_drop_tokens", 0.15), ("mass", 0.5), ("bart_token_deletion", 0.15), ("permuted_lm", 2 / 6),
  ]:  # fmt: skip
    result = apply(name, rows)
    lost = result.targets if name != "bart_token_deletion" else None
    found = lost.lengths.mean() / 511 if lost else 1 - result.inputs.lengths.mean() / 511
    assert abs(found - share) < 0.005, name
  for name in ("mass_style", "bart_token_masking"):
    assert abs((apply(name, rows).inputs.tokens == SPECIAL.mask).mean() - 0.15) < 0.003


def test_bert_style_hides_nine_of_ten_and_replaces_one():
  rows = make_rows([511] * 400)
  shown = apply("bert_style", rows).inputs.tokens
  masked, changed = shown == SPECIAL.mask, shown != rows.tokens
  assert abs(masked.mean() - 0.135) < 0.003 and abs((changed & ~masked).mean() - 0.015) < 0.002
  assert shown.max() < 1900  # never a sentinel ...
  assert apply(BertStyle(variant="t5", random_share=0.9), rows).inputs.tokens.max() > 1950  # ... but there (quirk 6)


def test_iid_noise_that_needs_too_many_sentinels_is_refused_or_gives_a_warning():
  for density in (0.25, 0.5):
    lengths = IidReplaceSpans(density).lengths(512)
    with pytest.raises(UserError, match="sentinels in some rows; the vocabulary has 100") as error:
      IidReplaceSpans(density).check(lengths, SPECIAL)
    assert "extra_ids" in str(error.value)
    with pytest.warns(UserWarning, match="continue down into word pieces"):
      IidReplaceSpans(density, variant="t5").check(lengths, SPECIAL)
  result = apply("iid_replace_spans_50_percent", make_rows([511] * 20))
  assert (
    result.inputs.tokens[result.inputs.tokens > 0].min() >= 5
  )  # quirk 4: below the 100 sentinels, as in the original
  assert (result.targets.tokens == 1999 - 110).any()


def test_targets_of_the_t5_variant_lag_by_one_sentinel_if_a_row_starts_with_noise():
  rows = make_rows([40] * 200)
  result = apply(IidReplaceSpans(variant="t5"), rows)
  starts_with_noise = result.inputs.tokens[:, 0] == 1999
  assert 10 < starts_with_noise.sum() < 60
  assert np.array_equal(result.targets.tokens[:, 0] == 1999, ~starts_with_noise)


def test_deshuffling_keeps_every_token():
  rows = make_rows([50, 20, 3])
  result = apply("deshuffling", rows)
  for row in range(3):
    assert sorted(listed(result.inputs, row)) == sorted(listed(rows, row))
    assert listed(result.targets, row) == listed(rows, row)


def test_prefix_lm_splits_uniformly():
  result = apply("prefix_lm", make_rows([5] * 40_000))
  counts = np.bincount(result.inputs.lengths, minlength=6)
  assert counts[0] == counts[5] == 0  # both sides have a token
  assert np.sum((counts[1:5] - 10_000) ** 2 / 10_000) < 16.3  # 3 degrees of freedom, p = 0.001


def test_ul2_uses_its_denoisers_at_their_rates():
  rows = make_rows([100] * 3000)
  modes = apply("ul2", rows).inputs.tokens[:, 0]
  counts = [int((modes == s).sum()) for s in SENTINELS[-3:]]
  for count, share in zip(counts, (1 / 5, 3 / 5, 1 / 5), strict=True):  # R, X, S of five denoisers
    assert abs(count / 3000 - share) < 0.03
  only = apply(UL2(denoisers=[("R", 3, 0.15, 1.0), ("S", None, None, 0.0)]), rows)
  assert set(only.inputs.tokens[:, 0].tolist()) == {SENTINELS[-3]}
  with pytest.raises(UserError, match="unknown UL2 mode: 'Q'"):
    UL2(denoisers=[("Q", 3, 0.15)])


def test_objectives_are_found_by_name_and_in_task_names():
  assert find_objective("ul2") is CATALOGUE["ul2"]
  with pytest.raises(UserError, match="unknown objective: 'span_coruption'") as error:
    find_objective("span_coruption")
  assert "nearest  span_corruption" in str(error.value)
  assert split_task_name("c4_span_corruption") == ("c4", "span_corruption")
  assert split_task_name("my_corpus_span_corruption_10") == ("my_corpus", "span_corruption_10")
  assert split_task_name("wiki_full_lm") == ("wiki", "full_lm")
  assert split_task_name("novels") == ("novels", None)


@dataclasses.dataclass(frozen=True)
class Copies(Objective):
  """A custom objective: targets are the inputs, changed by `change`."""

  change: str = ""
  name: ClassVar[str] = "copies"

  def lengths(self, inputs):
    return Lengths(raw=inputs - 1, inputs=inputs, targets=inputs // 2 if self.change == "short" else inputs)

  def __call__(self, rows, draws, special):
    if self.change == "raises":
      raise ValueError("boom")
    if self.change == "fewer rows":
      rows = Rows(rows.tokens[:1], rows.lengths[:1])
    if self.change == "fractions":
      rows = Rows(rows.tokens.astype(np.float32), rows.lengths)
    if self.change == "undrawn":
      rows = Rows(np.random.default_rng().permuted(rows.tokens, axis=1), rows.lengths)
    targets = Ragged(rows.tokens + (5000 if self.change == "ids" else 0), rows.lengths)
    return targets if self.change == "rows" else Pairs(Ragged(rows.tokens, rows.lengths), targets)


@pytest.mark.parametrize(
  "change, message",
  [
    ("short", "targets of the objective copies have 64 tokens, 32 by its method lengths"),
    ("ids", r"targets of the objective copies have ids from 5,\d+ to 6,\d+\n +expected +0 to 1,999"),
    ("rows", "copies returns Ragged\n +expected +Pairs"),
    ("fewer rows", "inputs of the objective copies are 1 rows of 2 texts"),
    ("fractions", "inputs of the objective copies are float32\n +expected +token ids"),
    ("undrawn", "something else for the same rows and draws\n +expected +random numbers from `draws` only"),
    ("raises", r"copies fails: ValueError: boom\n +file +.*test_catalogue.py:\d+"),
  ],
)
def test_custom_objectives_are_tried(change, message):
  with pytest.raises(UserError, match=message):
    check_output(Copies(change), Copies(change).lengths(64), SPECIAL)
  check_output(Copies(), Copies().lengths(64), SPECIAL)


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_catalogue_passes_the_check_of_custom_objectives(name):
  check_output(CATALOGUE[name], CATALOGUE[name].lengths(128), SPECIAL)
