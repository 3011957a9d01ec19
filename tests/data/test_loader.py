"""A batch is a pure function of (seed, step)."""

import numpy as np
import pytest

from t5like import data
from t5like.data.layouts import decoder_prompts, encoder_decoder, prefix_lm, ragged, with_eos
from t5like.errors import UserError
from t5like.objectives import Lengths, SpecialTokens
from t5like.objectives.span_corruption import SpanCorruption

SPECIAL = SpecialTokens(vocab_size=1100, pad=0, eos=1, sentinels=tuple(range(1099, 999, -1)))


def numbers(texts):
  return [[int(n) for n in text.split()] for text in texts]


def make_cache(folder, rows, features):
  data.write_cache(
    folder, rows, features, numbers, {"name": "n", "size": 1100, "fingerprint": "f"},
    {"task": "t", "split": "s", "source_files": []}, {"postprocessor": None, "metrics": []},
  )  # fmt: skip
  return data.open_cache(folder, mend="")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  rng = np.random.default_rng(0)
  documents = [{"targets": " ".join(map(str, rng.integers(2, 900, 150)))} for _ in range(40)]
  return make_cache(tmp_path_factory.mktemp("c") / "corpus", documents, ["targets"])


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
  rows = [{"inputs": f"{10 + i} {10 + i} 3", "targets": str(10 + i)} for i in range(50)]
  return make_cache(tmp_path_factory.mktemp("c") / "labelled", rows, ["inputs", "targets"])


def corpus_batches(cache, seed=0, share=None, batch_size=8):
  objective = SpanCorruption()
  return data.CorpusBatches(
    cache, objective, objective.lengths(64), SPECIAL, batch_size, seed, share or data.HostShare()
  )


def same(a, b):
  return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("hosts", [2, 4])
def test_hosts_together_see_the_batch_of_one_host(corpus, hosts):
  whole = corpus_batches(corpus)
  parts = [corpus_batches(corpus, share=data.HostShare(h, hosts)) for h in range(hosts)]
  for step in (0, 7, 10_000):
    together = {k: np.concatenate([p[step][k] for p in parts]) for k in whole[step]}
    assert same(together, whole[step])


def test_any_step_can_be_asked_first_and_again(corpus):
  source = corpus_batches(corpus)
  late = source[123_456]
  source[0]
  assert same(late, source[123_456]) and same(late, corpus_batches(corpus)[123_456])


@pytest.mark.parametrize("threads", [1, 4])
def test_reading_ahead_changes_nothing(corpus, threads):
  source = corpus_batches(corpus)
  batches = list(data.read_ahead(source, 5, 12, threads))
  assert len(batches) == 7
  assert all(same(batch, source[step]) for step, batch in enumerate(batches, 5))


def test_seeds_and_epochs_differ(corpus):
  source = corpus_batches(corpus, batch_size=1)
  rows = source.rows_per_epoch
  assert not same(source[0], corpus_batches(corpus, seed=1, batch_size=1)[0])
  assert not same(source[0], source[rows])


def test_an_epoch_visits_every_row_once(labelled):
  source = data.ExampleBatches(labelled, Lengths(0, 8, 4), SPECIAL, batch_size=10, seed=3)
  for epoch in range(2):
    seen = np.concatenate([source[step]["decoder_target_tokens"][:, 0] for step in range(5 * epoch, 5 * epoch + 5)])
    assert sorted(seen) == list(range(10, 60))


def test_a_batch_that_spans_two_epochs_is_whole(labelled):
  source = data.ExampleBatches(labelled, Lengths(0, 8, 4), SPECIAL, batch_size=20, seed=3)
  seen = np.concatenate([source[step]["decoder_target_tokens"][:, 0] for step in range(5)])
  assert sorted(seen) == sorted([*range(10, 60)] * 2)


def test_corpus_rows_are_full(corpus):
  batch = corpus_batches(corpus)[0]
  assert batch["encoder_input_tokens"].shape == (8, 64) and batch["decoder_target_tokens"].shape == (8, 15)
  assert np.all(batch["encoder_input_tokens"] > 0) and np.all(batch["decoder_loss_weights"] == 1)


def test_inputs_and_targets_end_with_end_of_sequence_and_long_ones_are_cut():
  rows = with_eos(ragged([np.array([5, 6]), np.array([7, 8, 9, 10, 11]), np.array([], np.int32)]), 4, eos=1)
  assert rows.tolist() == [[5, 6, 1, 0], [7, 8, 9, 1], [1, 0, 0, 0]]


def test_the_decoder_is_fed_the_shifted_targets():
  batch = encoder_decoder(np.array([[4, 1]], np.int32), np.array([[3, 8, 1, 0]], np.int32))
  assert batch["decoder_input_tokens"].tolist() == [[0, 3, 8, 1]]
  assert batch["decoder_loss_weights"].tolist() == [[1, 1, 1, 0]]
  assert {k: v.dtype for k, v in batch.items()} == {
    "encoder_input_tokens": np.int32, "decoder_input_tokens": np.int32,
    "decoder_target_tokens": np.int32, "decoder_loss_weights": np.float32,
  }  # fmt: skip


def test_decoder_rows_equal_seqios_prefix_lm_converter():
  seqio = pytest.importorskip("seqio")
  import tensorflow as tf

  examples = [([9, 4, 1], [3, 1]), ([8, 1], [7, 6, 5, 1])]
  dataset = tf.data.Dataset.from_generator(
    lambda: ({"inputs": i, "targets": t} for i, t in examples),
    output_signature={k: tf.TensorSpec([None], tf.int32) for k in ("inputs", "targets")},
  )
  converter = seqio.PrefixLMFeatureConverter(pack=False)
  expected = list(converter(dataset, {"inputs": 4, "targets": 4}).as_numpy_iterator())
  batch = prefix_lm(np.array([[9, 4, 1, 0], [8, 1, 0, 0]], np.int32), np.array([[3, 1, 0, 0], [7, 6, 5, 1]], np.int32))
  for row, theirs in enumerate(expected):
    for name, values in batch.items():
      np.testing.assert_array_equal(values[row], theirs[name], err_msg=name)
  # By hand, the first row: loss on the targets alone, both directions over the inputs and one position more.
  assert batch["decoder_target_tokens"][0].tolist() == [9, 4, 1, 3, 1, 0, 0, 0]
  assert batch["decoder_input_tokens"][0].tolist() == [0, 9, 4, 1, 3, 1, 0, 0]
  assert batch["decoder_loss_weights"][0].tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
  assert batch["decoder_causal_attention"][0].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]


def test_prompts_end_where_the_answer_begins():
  prompts = decoder_prompts(np.array([[9, 4, 1, 0], [8, 1, 0, 0]], np.int32))
  assert prompts["decoder_input_tokens"].tolist() == [[0, 9, 4, 1, 0], [0, 8, 1, 0, 0]]
  assert prompts["decoder_causal_attention"].tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]]


@pytest.mark.parametrize("batch_size", [7, 50, 64])
def test_evaluation_sees_every_example_once(labelled, batch_size):
  seen, weight = [], 0.0
  for rows, inputs, targets in data.evaluation_batches(labelled, Lengths(0, 8, 4), SPECIAL, batch_size):
    assert len(rows) == batch_size == len(inputs) == len(targets)
    seen += [(n, t) for n, t in zip(rows, targets[:, 0], strict=True) if n >= 0]
    weight += encoder_decoder(inputs, targets)["decoder_loss_weights"].sum()
  assert seen == [(i, 10 + i) for i in range(50)]
  assert weight == 100  # one token and end-of-sequence for each example, none for filling rows


def test_a_corpus_shorter_than_a_row_is_refused(tmp_path):
  short = make_cache(tmp_path / "short", [{"targets": "2 3 4"}], ["targets"])
  with pytest.raises(UserError, match="fewer than one row"):
    corpus_batches(short)
