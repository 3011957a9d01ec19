"""Batches equal seqio's, packed and not."""

import functools

import numpy as np
import pytest

from t5like.data.layouts import (
  LAYOUTS,
  Examples,
  blank,
  causal,
  decoder,
  decoder_loss_on_inputs,
  enclosed,
  encoder,
  encoder_decoder,
  prefix_lm,
  zero_loss_on_filler_rows,
)
from t5like.objectives import Lengths, Masked, Ragged


def ragged(*rows):
  return Ragged.of(np.concatenate([np.asarray(r, np.int32) for r in rows]), np.array([len(r) for r in rows]))


def test_long_texts_are_trimmed_and_all_end_with_end_of_sequence():
  rows = enclosed(ragged([5, 6], [7, 8, 9, 10, 11], []), 4, (), (1,))
  assert rows.tokens.tolist() == [[5, 6, 1, 0], [7, 8, 9, 1], [1, 0, 0, 0]] and rows.lengths.tolist() == [3, 4, 1]


def test_tokens_around_a_text_are_kept_where_it_does_not_fit():
  rows = enclosed(ragged([5, 6, 7], [8]), 4, (2,), (1, 3))
  assert rows.tokens.tolist() == [[2, 5, 1, 3], [2, 8, 1, 3]] and rows.lengths.tolist() == [4, 4]
  rows = enclosed(ragged([5, 6, 7], [8]), 2, (2,), (1, 3))
  assert rows.tokens.tolist() == [[2, 1, 3], [2, 1, 3]] and rows.lengths.tolist() == [3, 3]


def test_packing_on_the_published_example():
  # T5_FACTS, section 5.
  examples = Examples(ragged([7, 8, 5, 1], [8, 4, 9, 3, 1]), ragged([3, 8, 1], [9, 1]), 1, np.array([0, 0]))
  batch = encoder_decoder(examples, Lengths(0, 10, 10))
  assert batch["encoder_segment_ids"].tolist() == [[1, 1, 1, 1, 2, 2, 2, 2, 2, 0]]
  assert batch["encoder_positions"].tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 4, 0]]
  three = Examples(ragged([2], [2], [2]), ragged([3, 8, 1], [9, 1], [5, 4, 1]), 1, np.array([0, 0, 0]))
  batch = encoder_decoder(three, Lengths(0, 10, 10))
  assert batch["decoder_target_tokens"].tolist() == [[3, 8, 1, 9, 1, 5, 4, 1, 0, 0]]
  assert batch["decoder_input_tokens"].tolist() == [[0, 3, 8, 0, 9, 0, 5, 4, 0, 0]]


def test_the_decoder_input_is_the_shifted_targets():
  batch = encoder_decoder(Examples(ragged([4, 1]), ragged([3, 8, 1]), 1), Lengths(0, 2, 4))
  assert batch["decoder_input_tokens"].tolist() == [[0, 3, 8, 1]]
  assert batch["decoder_loss_weights"].tolist() == [[1, 1, 1, 0]]
  assert {k: v.dtype for k, v in batch.items()} == {
    "encoder_input_tokens": np.int32, "decoder_input_tokens": np.int32,
    "decoder_target_tokens": np.int32, "decoder_loss_weights": np.float32,
  }  # fmt: skip


def seqio_batches(converter, examples, lengths):
  import tensorflow as tf

  dataset = tf.data.Dataset.from_generator(
    lambda: ({"inputs": i, "targets": t} for i, t in examples),
    output_signature={k: tf.TensorSpec([None], tf.int32) for k in ("inputs", "targets")},
  )
  rows = list(converter(dataset, lengths).as_numpy_iterator())
  return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("layout", ["encoder_decoder", "prefix_lm", "decoder_loss_on_inputs"])
def test_batches_equal_those_of_seqios_converters(layout, pack):
  seqio = pytest.importorskip("seqio")
  rng = np.random.default_rng(0)
  pairs = [
    ([*rng.integers(2, 99, rng.integers(1, 7)), 1], [*rng.integers(2, 99, rng.integers(0, 4)), 1]) for _ in range(12)
  ]
  converters = {
    "encoder_decoder": seqio.EncDecFeatureConverter,
    "prefix_lm": seqio.PrefixLMFeatureConverter,
    "decoder_loss_on_inputs": functools.partial(seqio.PrefixLMFeatureConverter, loss_on_targets_only=False),
  }
  expected = seqio_batches(converters[layout](pack=pack), pairs, {"inputs": 16, "targets": 12})
  if layout == "decoder_loss_on_inputs":
    del expected["decoder_causal_attention"]
  inputs, targets = (ragged(*(pair[side] for pair in pairs)) for side in (0, 1))
  if pack:
    # seqio packs rows in its own order: find the row of each example by its tokens.
    side = "encoder" if layout == "encoder_decoder" else "decoder"
    tokens, segments = (
      expected[f"{side}_{'input' if side == 'encoder' else 'target'}_tokens"],
      expected[f"{side}_segment_ids"],
    )
    order = []
    for row in range(len(tokens)):
      for segment in range(1, segments[row].max() + 1):
        here = tokens[row][segments[row] == segment].tolist()
        order.append(
          (row, next(i for i, p in enumerate(pairs) if here == list(p[0]) + (list(p[1]) if side == "decoder" else [])))
        )
    numbers = [i for _, i in order]
    assert sorted(numbers) == list(range(12))
    examples = Examples(
      ragged(*(pairs[i][0] for i in numbers)), ragged(*(pairs[i][1] for i in numbers)), len(tokens),
      np.array([row for row, _ in order]),
    )  # fmt: skip
  else:
    examples = Examples(inputs, targets, 12)
  batch = LAYOUTS[layout](examples, Lengths(0, 16, 12))
  assert set(batch) == set(expected)
  for name in batch:
    np.testing.assert_array_equal(batch[name], expected[name], err_msg=name)


def test_prefix_lm_rows_by_hand():
  batch = prefix_lm(Examples(ragged([9, 4, 1]), ragged([3, 1]), 1), Lengths(0, 4, 4))
  # Loss on the targets only; bidirectional attention on the inputs and one more position.
  assert batch["decoder_target_tokens"][0].tolist() == [9, 4, 1, 3, 1, 0, 0, 0]
  assert batch["decoder_input_tokens"][0].tolist() == [0, 9, 4, 1, 3, 1, 0, 0]
  assert batch["decoder_loss_weights"][0].tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
  assert batch["decoder_causal_attention"][0].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]


def test_the_loss_on_inputs_changes_nothing_but_the_weights():
  padded, packed = (
    Examples(ragged([9, 4], [8], [6]), ragged([3, 1], [5, 1], [1]), 2 if row is not None else 3, row)
    for row in (None, np.array([0, 0, 1]))
  )
  for examples, weights in (
    (padded, [[1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0]]),
    (packed, [[1, 1, 1, 1, 1, 1, 1, 0], [1, 1, 0, 0, 0, 0, 0, 0]]),
  ):
    batch, on_targets = (of(examples, Lengths(0, 4, 4)) for of in (decoder_loss_on_inputs, decoder))
    assert batch["decoder_loss_weights"].tolist() == weights and batch["decoder_loss_weights"].dtype == np.float32
    assert batch.keys() == on_targets.keys()
    for name in batch.keys() - {"decoder_loss_weights"}:
      np.testing.assert_array_equal(batch[name], on_targets[name])


def test_token_0_has_a_loss_weight_if_the_vocabulary_has_no_padding():
  batch = causal(ragged([0, 7, 0, 9], [5, 0]), Lengths(4, 0, 3))
  assert batch["decoder_input_tokens"].tolist() == [[0, 7, 0], [5, 0, 0]]
  assert batch["decoder_target_tokens"].tolist() == [[7, 0, 9], [0, 0, 0]]
  assert batch["decoder_loss_weights"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_an_encoder_gets_segments_positions_and_labels():
  masked = Masked(
    ragged([2, 3, 9], [2, 8]), np.array([[2, 7, 9], [2, 8, 0]]), np.array([[0, 1, 0], [0, 1, 0]], bool),
    np.array([[0, 0, 1], [0, 0, 0]]), np.array([1, 0]),
  )  # fmt: skip
  batch = encoder(masked, 4)
  assert batch["encoder_input_tokens"].tolist() == [[2, 3, 9, 0], [2, 8, 0, 0]]
  assert batch["encoder_segment_ids"].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]
  assert batch["encoder_positions"].tolist() == [[0, 1, 2, 0], [0, 1, 0, 0]]
  assert batch["encoder_token_types"].tolist() == [[0, 0, 1, 0], [0, 0, 0, 0]]
  assert batch["encoder_loss_weights"].tolist() == [[0, 1, 0, 0], [0, 1, 0, 0]]
  assert batch["labels"].tolist() == [1, 0]


@pytest.mark.parametrize("layout", ["encoder_decoder", "decoder", "prefix_lm", "encoder"])
@pytest.mark.parametrize("packed", [False, True])
def test_blank_batches_have_the_right_number_of_rows(layout, packed):
  batch = blank(layout, Lengths(0, 6, 4), 3, packed, shifted=False)
  assert all(
    array.shape[0] == 3 and not array.any() for name, array in batch.items() if name != "decoder_causal_attention"
  )


def test_every_layout_starts_texts_with_the_start_token():
  examples = Examples(ragged([9, 4], [8]), ragged([3, 1], [5, 6, 1]), 2)
  packed = Examples(ragged([9, 4], [8]), ragged([3, 1], [5, 6, 1]), 1, np.array([0, 0]))
  lengths = Lengths(0, 3, 5)
  fed = lambda layout, given: layout(given, lengths, 7)["decoder_input_tokens"].tolist()  # noqa: E731
  assert fed(encoder_decoder, examples) == [[7, 3, 1, 0, 0], [7, 5, 6, 1, 0]]
  assert fed(encoder_decoder, packed) == [[7, 3, 7, 5, 6]]
  # There is no start token on padding.
  assert encoder_decoder(packed, Lengths(0, 3, 7), 7)["decoder_input_tokens"].tolist() == [[7, 3, 7, 5, 6, 0, 0]]
  for layout in (decoder, prefix_lm):
    assert fed(layout, examples) == [[7, 9, 4, 3, 1, 0, 0, 0], [7, 8, 5, 6, 1, 0, 0, 0]]
    assert fed(layout, packed) == [[7, 9, 4, 3, 7, 8, 5, 6]]


def test_packed_prefix_lm_rows_by_hand():
  """Two examples are in the first row, one in the second."""
  examples = Examples(ragged([9, 4], [8], [6]), ragged([3, 1], [5, 1], [1]), 2, np.array([0, 0, 1]))
  batch = prefix_lm(examples, Lengths(0, 4, 4))
  assert batch["decoder_target_tokens"].tolist() == [[9, 4, 3, 1, 8, 5, 1, 0], [6, 1, 0, 0, 0, 0, 0, 0]]
  assert batch["decoder_input_tokens"].tolist() == [[0, 9, 4, 3, 0, 8, 5, 0], [0, 6, 0, 0, 0, 0, 0, 0]]
  assert batch["decoder_loss_weights"].tolist() == [[0, 0, 1, 1, 0, 1, 1, 0], [0, 1, 0, 0, 0, 0, 0, 0]]
  assert batch["decoder_segment_ids"].tolist() == [[1, 1, 1, 1, 2, 2, 2, 0], [1, 1, 0, 0, 0, 0, 0, 0]]
  assert batch["decoder_positions"].tolist() == [[0, 1, 2, 3, 0, 1, 2, 0], [0, 1, 0, 0, 0, 0, 0, 0]]
  assert batch["decoder_causal_attention"].tolist() == [[1, 1, 1, 0, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0]]
  assert batch["decoder_causal_attention"].dtype == np.int32
  assert decoder(examples, Lengths(0, 4, 4)).keys() == batch.keys() - {"decoder_causal_attention"}


def test_long_inputs_and_targets_are_trimmed_separately():
  examples = Examples(ragged([2, 3, 4, 5]), ragged([6, 7, 8]), 1)
  batch = encoder_decoder(examples, Lengths(0, 3, 2))
  assert batch["encoder_input_tokens"].tolist() == [[2, 3, 4]] and batch["decoder_target_tokens"].tolist() == [[6, 7]]
  batch = decoder(examples, Lengths(0, 3, 2))
  assert batch["decoder_target_tokens"].tolist() == [[2, 3, 4, 6, 7]]
  assert batch["decoder_loss_weights"].tolist() == [[0, 0, 0, 1, 1]]
  assert causal(ragged([2, 3, 4, 5]), Lengths(0, 0, 2))["decoder_target_tokens"].tolist() == [[3, 4]]
  masked = Masked(ragged([2, 3, 9]), np.array([[2, 7, 9]]), np.ones((1, 3), bool), np.array([[0, 1, 1]]), None)
  batch = encoder(masked, 2)
  assert batch["encoder_input_tokens"].tolist() == [[2, 3]] and batch["encoder_target_tokens"].tolist() == [[2, 7]]
  assert batch["encoder_token_types"].tolist() == [[0, 1]] and "labels" not in batch
  with pytest.raises(ValueError, match="longer than their row"):
    encoder_decoder(Examples(ragged([2, 3], [4, 5]), ragged([1], [1]), 1, np.array([0, 0])), Lengths(0, 3, 2))


def test_filler_rows_have_no_loss_weight():
  given = {"decoder_loss_weights": np.ones((3, 2), np.float32), "decoder_target_tokens": np.ones((3, 2), np.int32)}
  batch = zero_loss_on_filler_rows(given, np.array([True, False, True]))
  assert batch["decoder_loss_weights"].tolist() == [[1, 1], [0, 0], [1, 1]]
  assert batch["decoder_loss_weights"].dtype == np.float32 and batch["decoder_target_tokens"].all()


def test_blank_batches_have_the_names_and_sizes_of_real_ones():
  texts, lengths = ragged([4, 1], [5, 1]), Lengths(0, 6, 4)
  shapes = lambda batch: {name: (array.shape, array.dtype) for name, array in batch.items()}  # noqa: E731
  for packed in (False, True):
    examples = Examples(texts, texts, 2, np.arange(2) if packed else None)
    for name, layout in LAYOUTS.items():
      assert shapes(blank(name, lengths, 2, packed, shifted=False)) == shapes(layout(examples, lengths, 0))
  assert shapes(blank("decoder", lengths, 2, False, shifted=True)) == shapes(causal(texts, lengths))
  empty = np.zeros((2, 0), np.int32)
  masked = Masked(texts, empty, empty, empty, np.zeros(2, np.int32))
  assert shapes(blank("encoder", lengths, 2, False, shifted=False)) == shapes(encoder(masked, 6))
