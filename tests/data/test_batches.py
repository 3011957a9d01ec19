"""A batch is a pure function of (seed, step), for any objective, packing, mixture and phases."""

import warnings

import numpy as np
import pytest

from t5like import data
from t5like.data.mixing import mixture_rows
from t5like.data.rows import shuffled
from t5like.errors import UserError
from t5like.objectives import CATALOGUE, Lengths, SpecialTokens
from t5like.objectives.span_corruption import SpanCorruption

SPECIAL = SpecialTokens(
  vocab_size=1100, pad=0, eos=1, sentinels=tuple(range(1099, 999, -1)), mask=999, cls=998, sep=997,
  sentence_ends=(5, 6), word_starts=np.arange(1100) % 2 == 0,
)  # fmt: skip
LENGTHS = Lengths(0, 16, 8)


def numbers(texts, threads=1):
  return [[int(n) for n in text.split()] for text in texts]


def make_cache(folder, rows, features):
  data.write_cache(
    folder, rows, features, numbers, {"name": "n", "size": 1100, "fingerprint": "f"},
    {"task": "t", "split": "s", "source_files": []}, {"postprocessor": None, "metrics": []},
  )  # fmt: skip
  return data.open_cache(folder, rebuild_command="")


def document(rng, length):
  return " ".join(map(str, np.where(rng.random(length) < 0.1, 5, rng.integers(10, 900, length))))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  rng = np.random.default_rng(0)
  documents = [{"targets": document(rng, n)} for n in rng.integers(3, 300, 60)]
  return make_cache(tmp_path_factory.mktemp("c") / "corpus", documents, ["targets"])


@pytest.fixture(scope="module")
def labeled(tmp_path_factory):
  rng = np.random.default_rng(1)
  rows = [{"inputs": f"{10 + i} " + "3 " * rng.integers(0, 12), "targets": f"{10 + i}"} for i in range(50)]
  return make_cache(tmp_path_factory.mktemp("c") / "labeled", rows, ["inputs", "targets"])


def corpus_rows(cache, name="span_corruption", seed=0):
  objective = CATALOGUE[name]
  layout = (
    "encoder" if objective.makes == "masked" else "encoder_decoder" if objective.lengths(64).inputs else "decoder"
  )
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    return data.CorpusRows(cache, objective, objective.lengths(64), SPECIAL, seed, layout)


def batches(source, batch_size=8, share=None):
  return data.Batches([data.PhaseRows(source, batch_size)], share or data.HostShare())


def same(a, b):
  return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)


def sources(corpus, labeled):
  packed = data.ExampleRows(labeled, LENGTHS, SPECIAL, 0, pack=True)
  unpacked = data.ExampleRows(labeled, LENGTHS, SPECIAL, 7, pack=True)
  return {
    **{name: corpus_rows(corpus, name) for name in CATALOGUE},
    "labeled": data.ExampleRows(labeled, LENGTHS, SPECIAL, 0),
    "packed": packed,
    "mixture": data.MixtureRows([packed, unpacked], [3, 1]),
  }


@pytest.mark.parametrize("name", [*CATALOGUE, "labeled", "packed", "mixture"])
def test_several_hosts_together_read_the_batch_of_a_single_host(corpus, labeled, name):
  source = sources(corpus, labeled)[name]
  for step in (0, 7, 10_000):
    expected = batches(source)[step]
    for hosts in (2, 4):
      parts = [batches(source, share=data.HostShare((h,), hosts))[step] for h in range(hosts)]
      assert same({k: np.concatenate([p[k] for p in parts]) for k in expected}, expected)
  assert same(batches(sources(corpus, labeled)[name])[10_000], batches(source)[10_000])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("threads", "processes"), [(0, 0), (1, 0), (4, 0), (1, 2)])
def test_prefetching_does_not_change_batches(corpus, threads, processes):
  source = batches(corpus_rows(corpus))
  ahead = list(data.read_ahead(source, 5, 12, threads, processes))
  assert len(ahead) == 7
  assert all(same(batch, source[step]) for step, batch in enumerate(ahead, 5))


@pytest.mark.parametrize("name", ["span_corruption", "prefix_lm", "bert_mlm_nsp", "albert", "roberta", "causal_lm"])
def test_seeds_and_epochs_differ(corpus, name):
  source = corpus_rows(corpus, name)
  count = source.rows_per_epoch
  first = source.rows(np.arange(count))
  assert not same(first, corpus_rows(corpus, name, seed=1).rows(np.arange(count)))
  assert not same(first, source.rows(np.arange(count, 2 * count)))


def rows_in_order(corpus, name, seed, epoch):
  source = corpus_rows(corpus, name, seed)
  numbers = np.arange(source.rows_per_epoch) + epoch * source.rows_per_epoch
  by_row = np.argsort(shuffled(numbers, len(numbers), seed)[1])
  return {feature: x[by_row] for feature, x in source.rows(numbers).items()}


@pytest.mark.parametrize("name", ["span_corruption", "roberta"])
@pytest.mark.parametrize("seed, epoch", [(0, 1), (1, 0)])
def test_a_row_is_corrupted_differently_by_every_epoch_and_seed(corpus, name, seed, epoch):
  hidden = [rows_in_order(corpus, name, *order)["encoder_input_tokens"] for order in ((0, 0), (seed, epoch))]
  assert np.mean(np.any(hidden[0] != hidden[1], axis=1)) > 0.9
  text = [row[(row > 9) & (row < 900)] for row in np.stack(hidden, axis=1)]  # of the same row, without what is hidden
  assert np.mean([len(np.unique(tokens)) < 0.85 * len(tokens) for tokens in text]) > 0.9


@pytest.mark.parametrize("seed, epoch", [(0, 1), (1, 0)])
def test_a_row_gets_another_document_in_every_epoch_and_seed(corpus, seed, epoch):
  pairs = [rows_in_order(corpus, "bert_mlm_nsp", *order) for order in ((0, 0), (seed, epoch))]
  random = np.flatnonzero((pairs[0]["labels"] == 1) & (pairs[1]["labels"] == 1))
  begins = [pair["encoder_token_types"].argmax(axis=1)[random] for pair in pairs]
  first = [pair["encoder_target_tokens"][random, begin] for pair, begin in zip(pairs, begins, strict=True)]
  assert len(random) > 20 and np.mean(first[0] == first[1]) < 0.2


@pytest.mark.parametrize("name", ["lm", "full_lm", "causal_lm", "prefix_lm", "roberta"])
def test_an_epoch_of_a_corpus_contains_every_token_once(corpus, name):
  source = corpus_rows(corpus, name)
  batch = source.rows(np.arange(source.rows_per_epoch) + 3 * source.rows_per_epoch)
  tokens = corpus.stream(0, corpus.tokens)
  if name == "prefix_lm":
    found = np.concatenate([batch["encoder_input_tokens"].ravel(), batch["decoder_target_tokens"].ravel()])
    expected = tokens
  elif name == "roberta":
    found = batch["encoder_target_tokens"].ravel()
    found = found[(found != SPECIAL.cls) & (found != SPECIAL.sep)]
    expected = tokens
  else:
    found = batch["decoder_target_tokens"].ravel()
    if name == "causal_lm":  # the first token of a row is given
      found = np.concatenate([found, batch["decoder_input_tokens"][:, 0]])
    # Rows are full: a shorter rest at the end of the corpus is dropped.
    used = source.rows_per_epoch * source.lengths.raw
    separators = corpus.examples if name != "lm" else 0
    assert corpus.tokens + separators - used < source.lengths.raw
    text = found[found > 1]
    expected = tokens[: len(text)]
    if separators:
      assert (found == 1).sum() == used - len(text)
    found = text
  found = found[found > 1]
  np.testing.assert_array_equal(np.sort(found), np.sort(expected))


def test_separators_are_at_the_ends_of_documents(corpus):
  rows = corpus_rows(corpus, "full_lm").plan.read(np.arange(corpus_rows(corpus, "full_lm").rows_per_epoch))
  stream = rows.tokens.ravel()
  documents = [corpus.example(i)["targets"].tolist() for i in range(corpus.examples)]
  expected = [token for document in documents for token in [*document, SPECIAL.eos]]
  assert stream.tolist() == expected[: len(stream)]


def test_rows_are_within_a_document_and_others_are_from_another_one(corpus):
  source = corpus_rows(corpus, "bert_mlm_nsp")
  documents = [corpus.example(i)["targets"].tolist() for i in range(corpus.examples)]
  pieces = [d[i : i + 61] for d in documents for i in range(0, len(d), 61)]
  owner = [n for n, d in enumerate(documents) for _ in range(0, len(d), 61)]
  numbers = np.arange(source.rows_per_epoch)
  rows = source.plan.read(numbers)
  assert [rows.tokens[i, : rows.lengths[i]].tolist() for i in numbers] == pieces
  others = source.plan.sample_other_rows(
    numbers, np.random.default_rng(0).integers(0, 2**63, len(numbers)).astype(np.uint64)
  )
  assert all(owner[i] != owner[other] for i, other in enumerate(others))


def test_complete_sentences_fill_rows(corpus):
  source = corpus_rows(corpus, "roberta")
  rows = source.plan.read(np.arange(source.rows_per_epoch))
  ends = rows.tokens[np.arange(len(rows.tokens)), rows.lengths - 1]
  assert (rows.lengths <= 62).all() and np.isin(ends, [1, 5, 6]).mean() > 0.95  # or a sentence longer than a row
  assert rows.lengths.mean() > 45


def targets_of(batch):
  return batch["decoder_target_tokens"][batch["decoder_target_tokens"] >= 10].tolist()


@pytest.mark.parametrize("pack", [False, True])
def test_an_epoch_contains_every_example_once_and_complete(labeled, pack):
  source = data.ExampleRows(labeled, LENGTHS, SPECIAL, 3, pack=pack)
  for epoch in range(3):
    batch = source.rows(np.arange(source.rows_per_epoch) + epoch * source.rows_per_epoch)
    assert sorted(targets_of(batch)) == list(range(10, 60))
    assert sorted(batch["encoder_input_tokens"][batch["encoder_input_tokens"] >= 10].tolist()) == list(range(10, 60))
    assert (batch["encoder_input_tokens"] == SPECIAL.eos).sum() == 50
  run = batches(source, 20)
  seen = [t for step in range(5 * source.rows_per_epoch // 20 + 1) for t in targets_of(run[step])]
  assert len(set(seen[:50])) >= 45  # batches cross epoch boundaries


def test_packed_examples_share_a_row_with_different_ones_every_epoch(labeled):
  source = data.ExampleRows(labeled, LENGTHS, SPECIAL, 3, pack=True)

  def partners(epoch):
    batch = source.rows(np.arange(source.rows_per_epoch) + epoch * source.rows_per_epoch)
    return {tuple(row[row >= 10]) for row in batch["decoder_target_tokens"]}

  assert partners(0) != partners(1)
  assert source.rows_per_epoch < 40 and 0.5 < source.efficiency <= 1


def test_packed_inputs_and_targets_of_a_segment_belong_to_one_example(labeled):
  source = data.ExampleRows(labeled, LENGTHS, SPECIAL, 3, pack=True)
  batch = source.rows(np.arange(source.rows_per_epoch))
  for row in range(source.rows_per_epoch):
    inputs, targets = batch["encoder_input_tokens"][row], batch["decoder_target_tokens"][row]
    for segment in range(1, batch["encoder_segment_ids"][row].max() + 1):
      assert (
        inputs[batch["encoder_segment_ids"][row] == segment][0]
        == targets[batch["decoder_segment_ids"][row] == segment][0]
      )


def test_a_mixture_reads_each_source_at_its_rate_and_in_its_own_epochs(labeled):
  members = [data.ExampleRows(labeled, LENGTHS, SPECIAL, seed) for seed in range(2)]
  mixed = data.MixtureRows(members, [3, 1])
  batch = mixed.rows(np.arange(40))
  own = [source.rows(np.arange(n)) for source, n in zip(members, (30, 10), strict=True)]
  assert sorted(targets_of(batch)) == sorted(targets_of(own[0]) + targets_of(own[1]))


def test_packing_does_not_change_the_rates_of_examples(tmp_path):
  """As with seqio, which mixes examples before it packs them: short texts get fewer rows, not more examples."""
  texts = {"short": [{"inputs": "3", "targets": "9"}] * 40, "long": [{"inputs": "4 " * 15, "targets": "8"}] * 40}
  caches = [make_cache(tmp_path / name, rows, ["inputs", "targets"]) for name, rows in texts.items()]
  members = [data.ExampleRows(cache, LENGTHS, SPECIAL, 0, pack=True) for cache in caches]
  # Targets of 2 tokens in rows of 8, inputs of 16 tokens in rows of 16.
  assert [source.examples_per_row for source in members] == [4, 1]
  for rates in ([1, 1], [3, 1], [2, 5]):
    targets = data.MixtureRows(members, rates).rows(np.arange(4000))["decoder_target_tokens"]
    short, long = (targets == 9).sum(), (targets == 8).sum()
    assert abs(short / (short + long) - rates[0] / sum(rates)) < 0.005


def test_every_row_of_a_mixture_is_the_next_row_of_its_task(labeled):
  members = [data.ExampleRows(labeled, LENGTHS, SPECIAL, seed) for seed in range(2)]
  mixed, numbers = data.MixtureRows(members, [2, 1]), np.arange(60, 90)
  batch = mixed.rows(numbers)
  task, own = mixture_rows(numbers, [2, 1])
  for row in range(30):
    alone = members[task[row]].rows(own[row : row + 1])
    assert all(np.array_equal(batch[name][row], alone[name][0]) for name in batch)
  assert mixed.rows_per_epoch == 100


def test_a_host_reads_the_rows_of_its_parts():
  assert data.HostShare((1, 3), 4).rows(12).tolist() == [3, 4, 5, 9, 10, 11]
  assert data.HostShare().rows(3).tolist() == [0, 1, 2]


def test_efficiency_is_the_fraction_of_inputs_that_is_not_padding(tmp_path):
  # With end-of-sequence, inputs have 3, 16 (trimmed) and 5 tokens: one per row of 16, or the short ones packed.
  rows = [{"inputs": "3 " * n, "targets": "9"} for n in (2, 30, 4)]
  cache = make_cache(tmp_path / "three", rows, ["inputs", "targets"])
  assert data.ExampleRows(cache, LENGTHS, SPECIAL, 0).efficiency == 24 / 48
  packed = data.ExampleRows(cache, LENGTHS, SPECIAL, 0, pack=True)
  assert packed.rows_per_epoch == 2 and packed.efficiency == 24 / 32
  cache = make_cache(tmp_path / "alone", [{"targets": "9 " * n} for n in (2, 30, 4)], ["targets"])
  alone = data.ExampleRows(cache, LENGTHS, SPECIAL, 0)
  shares = [min(n + 1, LENGTHS.targets) / LENGTHS.targets for n in (2, 30, 4)]
  assert alone.efficiency == pytest.approx(sum(shares) / 3)


def test_phases_change_lengths_and_batch_size_at_their_steps(corpus):
  short, long = (data.CorpusRows(corpus, SpanCorruption(), SpanCorruption().lengths(n), SPECIAL, 0) for n in (32, 64))
  run = data.Batches([data.PhaseRows(short, 4, 10), data.PhaseRows(short, 8, 5), data.PhaseRows(long, 8)])
  assert [run[step]["encoder_input_tokens"].shape for step in (0, 9, 10, 14, 15, 99)] == [
    (4, 32), (4, 32), (8, 32), (8, 32), (8, 64), (8, 64),
  ]  # fmt: skip
  # A larger batch continues where the smaller one stopped; a different length starts its own rows.
  assert same(run[10], short.rows(np.arange(40, 48))) and same(run[15], long.rows(np.arange(8)))


def test_phases_that_share_a_source_continue_where_the_one_before_stopped(corpus):
  source = data.CorpusRows(corpus, CATALOGUE["causal_lm"], CATALOGUE["causal_lm"].lengths(16), SPECIAL, 0, "decoder")
  batches = data.Batches([data.PhaseRows(source, 2, 3), data.PhaseRows(source, 5, 2), data.PhaseRows(source, 8)])
  assert [batches.phase(step)[1] for step in range(7)] == [0, 2, 4, 6, 11, 16, 24]


def test_corpus_rows_are_full(corpus):
  batch = corpus_rows(corpus).rows(np.arange(8))
  assert batch["encoder_input_tokens"].shape == (8, 64) and batch["decoder_target_tokens"].shape == (8, 15)
  assert np.all(batch["encoder_input_tokens"] > 0) and np.all(batch["decoder_loss_weights"] == 1)


def test_a_corpus_shorter_than_a_row_is_refused(tmp_path):
  short = make_cache(tmp_path / "short", [{"targets": "2 3 4"}], ["targets"])
  with pytest.raises(UserError, match=r"shorter than one row: 3 tokens \(expected at least"):
    corpus_rows(short)
  raw = CATALOGUE["span_corruption"].lengths(64).raw
  one_row = make_cache(tmp_path / "one", [{"targets": "2 " * raw}], ["targets"])
  assert corpus_rows(one_row).rows_per_epoch == 1
