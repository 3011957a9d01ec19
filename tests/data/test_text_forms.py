"""The tokens around texts in batches: BART's <s>, mBART's language codes, start and padding of other vocabularies."""

import dataclasses

import numpy as np
import pytest

from t5like import read_experiment
from t5like.data.layouts import enclosed
from t5like.data.rows import to_batch
from t5like.experiments.compatibility import row_lengths
from t5like.objectives import Lengths, Pairs, Ragged, SpecialTokens
from t5like.objectives.bart import Bart

PLAIN = SpecialTokens(vocab_size=40, pad=1, eos=2, mask=39, sentence_ends=(5,))
BART = dataclasses.replace(PLAIN, start_id=2, opening=0, padding=1)
MBART = dataclasses.replace(PLAIN, padding=1, codes=(30, 31), codes_by_task={"de": (32, 32), "ro": (30, 31)})
MBART_50 = dataclasses.replace(MBART, start_id=2)


def ragged(*rows: list[int]) -> Ragged:
  lengths = np.array([len(row) for row in rows])
  tokens = np.zeros((len(rows), lengths.max()), np.int32)
  for i, row in enumerate(rows):
    tokens[i, : len(row)] = row
  return Ragged(tokens, lengths)


@pytest.mark.parametrize(
  "special, inputs, decoder, targets",
  [
    # A vocabulary whose padding is not 0, for a model that does not know it: batches are padded with 0.
    (PLAIN, [7, 8, 2, 0, 0, 0], [2, 9, 2, 0, 0], [9, 2, 0, 0, 0]),
    (BART, [0, 7, 8, 2, 1, 1], [2, 0, 9, 2, 0], [0, 9, 2, 0, 0]),
    (MBART, [7, 8, 2, 30, 1, 1], [31, 9, 2, 0, 0], [9, 2, 0, 0, 0]),
    (MBART_50, [30, 7, 8, 2, 1, 1], [2, 31, 9, 2, 0], [31, 9, 2, 0, 0]),
    (MBART.of_task("mc4.de"), [7, 8, 2, 32, 1, 1], [32, 9, 2, 0, 0], [9, 2, 0, 0, 0]),
  ],
)
def test_tokens_around_inputs_and_targets(special, inputs, decoder, targets):
  batch = to_batch(Pairs(ragged([7, 8]), ragged([9])), Bart(), Lengths(5, 6, 5), special, "encoder_decoder")
  assert batch["encoder_input_tokens"].tolist() == [inputs]
  assert batch["decoder_input_tokens"].tolist() == [decoder]
  assert batch["decoder_target_tokens"].tolist() == [targets]
  assert batch["decoder_loss_weights"].sum() == targets.index(2) + 1


def test_long_texts_keep_the_tokens_around_them():
  text = ragged([11, 12, 13, 14, 15], [16])
  found = enclosed(text, 5, (0,), (2, 30))
  assert [row[:n].tolist() for row, n in zip(found.tokens, found.lengths, strict=True)] == [
    [0, 11, 12, 2, 30], [0, 16, 2, 30],
  ]  # fmt: skip
  assert enclosed(text, None, (0,), ()).lengths.tolist() == [6, 2]


@pytest.mark.parametrize("special, raw", [(PLAIN, 15), (BART, 14), (MBART, 14), (MBART_50, 14)])
def test_rows_of_text_fit_with_the_tokens_around_them(special, raw):
  """No token of the text is cut, and rows have the length that was requested."""
  experiment = read_experiment(["runs/bart.gin"], MODEL_DIR="unused", LENGTHS={"inputs": 16})
  lengths = row_lengths(experiment, experiment.lengths, special)
  assert (lengths.raw, lengths.inputs) == (raw, 16)
  rows = ragged(list(range(10, 10 + raw)))
  batch = to_batch(Pairs(rows, rows), Bart(), lengths, special, "encoder_decoder")
  assert batch["decoder_target_tokens"][0, len(special.before_targets) :][:raw].tolist() == rows.tokens[0].tolist()
