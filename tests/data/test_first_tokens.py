"""A corpus truncated to its first tokens, and a corpus in one batch with labeled examples."""

import numpy as np
import pytest

from t5like import data
from t5like.errors import UserError
from t5like.objectives import CATALOGUE, Lengths, SpecialTokens

SPECIAL = SpecialTokens(vocab_size=2000, pad=0, eos=1, sentinels=tuple(range(1999, 1899, -1)))
# Token i of the corpus is 10 + i: documents of 7, 30, 5, 60 and 98 tokens.
SIZES = (7, 30, 5, 60, 98)


def make_cache(folder, examples, features):
  data.write_cache(
    folder,
    examples,
    features,
    lambda texts, threads=1: [[int(word) for word in text.split()] for text in texts],
    {"name": "numbers", "size": 2000, "fingerprint": "0" * 16},
    {"task": "numbers", "split": "train", "source_files": []},
    {"postprocessor": None, "metrics": []},
  )
  return data.open_cache(folder, rebuild_command="")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  ends = np.cumsum(SIZES)
  texts = [" ".join(map(str, range(10 + end - size, 10 + end))) for end, size in zip(ends, SIZES, strict=True)]
  return make_cache(tmp_path_factory.mktemp("c") / "corpus", [{"targets": text} for text in texts], ["targets"])


@pytest.fixture(scope="module")
def labeled(tmp_path_factory):
  rows = [{"inputs": f"{1000 + i} 1500 1501", "targets": f"{1000 + i}"} for i in range(40)]
  return make_cache(tmp_path_factory.mktemp("c") / "labeled", rows, ["inputs", "targets"])


@pytest.mark.parametrize("name", ["iid_replace_spans", "prefix_lm", "full_lm"])
@pytest.mark.parametrize("limit", [36, 37, 100])
def test_exactly_the_first_tokens_are_read(corpus, name, limit):
  """For rows of the stream, of a document, and with separators."""
  objective = CATALOGUE[name]
  lengths = objective.lengths(8)
  layout = "encoder_decoder" if lengths.inputs else "decoder"
  source = data.CorpusRows(data.FirstTokens(corpus, limit), objective, lengths, SPECIAL, 3, layout)
  read = source.plan.read(np.arange(source.rows_per_epoch))
  tokens = read.tokens[read.valid]
  text = tokens[tokens > 1]
  assert text.max() <= 10 + limit - 1
  left = lengths.raw if objective.unit == "stream" else 0  # a shorter rest at the end of a stream is dropped
  assert sorted(text)[: limit - left] == list(range(10, 10 + limit - left))
  shown = np.concatenate([a.ravel() for a in source.rows(np.arange(5 * source.rows_per_epoch)).values()])
  assert shown[shown < 1900].max() <= 10 + limit - 1


def test_a_limit_of_all_tokens_changes_nothing(corpus):
  objective = CATALOGUE["prefix_lm"]
  full, limited = (
    data.CorpusRows(cache, objective, objective.lengths(8), SPECIAL, 3)
    for cache in (corpus, data.FirstTokens(corpus, corpus.tokens))
  )
  numbers = np.arange(60)
  for name, array in full.rows(numbers).items():
    np.testing.assert_array_equal(array, limited.rows(numbers)[name])


def test_rows_end_at_the_limit(corpus):
  limited = data.FirstTokens(corpus, 20)
  assert limited.stream_rows([14], 6).tolist() == [list(range(24, 30))]
  with pytest.raises(IndexError, match="rows of 6 tokens from 15 of 20"):
    limited.stream_rows([3, 15], 6)


def test_more_tokens_than_the_corpus_has_and_labeled_examples_are_refused(corpus, labeled):
  with pytest.raises(UserError, match="the corpus has 200 tokens"):
    data.FirstTokens(corpus, 201)
  with pytest.raises(UserError, match="not labeled examples"):
    data.FirstTokens(labeled, 10)


def test_a_corpus_can_be_in_one_batch_with_packed_examples(corpus, labeled):
  """A quarter of the rows is text, one segment each; the others contain several examples."""
  objective = CATALOGUE["iid_replace_spans"]
  lengths = Lengths(raw=15, inputs=16, targets=16)
  text = data.CorpusRows(corpus, objective, lengths, SPECIAL, 0, as_packed=True)
  examples = data.ExampleRows(labeled, lengths, SPECIAL, 0, pack=True)
  batch = data.MixtureRows([text, examples], [1.0, 3.0 * examples.examples_per_row]).rows(np.arange(64))
  tokens = batch["encoder_input_tokens"]
  is_text = ((tokens >= 10) & (tokens < 1000)).any(1)  # tokens of examples start at 1000
  assert is_text.sum() == 16
  assert batch["encoder_segment_ids"][is_text].max() == 1 and batch["encoder_segment_ids"][~is_text].max() == 4
  # Apart from segment ids and positions, it is the batch of the corpus alone.
  plain = data.CorpusRows(corpus, objective, lengths, SPECIAL, 0).rows(np.arange(16))
  for name in ("encoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights"):
    np.testing.assert_array_equal(batch[name][is_text], plain[name])
  real = batch["encoder_input_tokens"] > 0
  np.testing.assert_array_equal(real, batch["encoder_segment_ids"] > 0)
