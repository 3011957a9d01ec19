"""Neither packing nor padding changes a model's outputs for an example."""

import numpy as np
import pytest

CLOSE = dict(rtol=0, atol=1e-5)


def packed(rows: list[np.ndarray], length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Packs `rows` into one: tokens, segment ids, positions, each [1, length]."""
  pad = [0] * (length - sum(map(len, rows)))
  segments = np.concatenate([np.full(len(r), i + 1) for i, r in enumerate(rows)] + [pad])
  positions = np.concatenate([np.arange(len(r)) for r in rows] + [pad])
  joined = np.concatenate([*rows, pad])
  return tuple(np.asarray(x, np.int32)[None] for x in (joined, segments, positions))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("positions", ["relative_bias", "learned", "sinusoidal", "rotary"])
def test_t5_packed_equals_unpacked(t5, tokens, positions):
  built = t5(positions=positions, max_positions=24)
  inputs, targets = tokens(2, 6), tokens(2, 5)
  encoder, decoder = packed(list(inputs), 14), packed(list(targets), 12)
  together = built({
    "encoder_input_tokens": encoder[0], "encoder_segment_ids": encoder[1], "encoder_positions": encoder[2],
    "decoder_input_tokens": decoder[0], "decoder_segment_ids": decoder[1], "decoder_positions": decoder[2],
  })["logits"][0]  # fmt: skip
  alone = built({"encoder_input_tokens": inputs, "decoder_input_tokens": targets})["logits"]
  np.testing.assert_allclose(together[:10].reshape(2, 5, -1), alone, **CLOSE)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", ["gpt", "t5_lm"])
def test_decoder_packed_equals_unpacked(request, family, tokens):
  built = request.getfixturevalue(family)()
  rows = tokens(2, 7)
  joined, segments, positions = packed(list(rows), 18)
  batch = {"decoder_input_tokens": joined, "decoder_segment_ids": segments, "decoder_positions": positions}
  together = built(batch)["logits"][0]
  alone = built({"decoder_input_tokens": rows})["logits"]
  np.testing.assert_allclose(together[:14].reshape(2, 7, -1), alone, **CLOSE)


def test_prefix_lm_packed_equals_unpacked(t5_lm, tokens):
  built = t5_lm(prefix_lm=True)
  rows, prefix = tokens(2, 7), np.array([[1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0]], np.int32)
  joined, segments, positions = packed(list(rows), 18)
  together = built({
    "decoder_input_tokens": joined, "decoder_segment_ids": segments, "decoder_positions": positions,
    "decoder_causal_attention": np.pad(prefix.reshape(1, 14), ((0, 0), (0, 4))),
  })["logits"][0]  # fmt: skip
  alone = built({"decoder_input_tokens": rows, "decoder_causal_attention": prefix})["logits"]
  np.testing.assert_allclose(together[:14].reshape(2, 7, -1), alone, **CLOSE)


def test_bert_packed_equals_unpacked(bert, tokens):
  built = bert()
  rows, types = tokens(2, 7), np.array([[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1]], np.int32)
  joined, segments, positions = packed(list(rows), 18)
  batch = {"encoder_input_tokens": joined, "encoder_segment_ids": segments, "encoder_positions": positions}
  together = built(batch | {"encoder_token_types": np.pad(types.reshape(1, 14), ((0, 0), (0, 4)))})["logits"][0]
  alone = built({"encoder_input_tokens": rows, "encoder_token_types": types})["logits"]
  np.testing.assert_allclose(together[:14].reshape(2, 7, -1), alone, **CLOSE)


def test_padding_does_not_change_other_positions(t5, gpt, bert, tokens):
  def pad(x, length):
    return np.pad(x, ((0, 0), (0, length - x.shape[1])))

  inputs, targets = tokens(2, 6), tokens(2, 5)
  for built, encoder, decoder in ((t5(), True, True), (gpt(), False, True), (bert(), True, False)):
    names = ["encoder_input_tokens"] * encoder + ["decoder_input_tokens"] * decoder
    short = {name: inputs if name.startswith("encoder") else targets for name in names}
    padded = {name: pad(x, 11) for name, x in short.items()}
    length = 5 if decoder else 6
    np.testing.assert_allclose(built(padded)["logits"][:, :length], built(short)["logits"], **CLOSE)


def test_the_ids_of_padding_do_not_matter(t5, tokens):
  """Segment ids determine padding, whatever the tokens."""
  built = t5()
  batch = {"encoder_input_tokens": tokens(1, 8), "decoder_input_tokens": tokens(1, 4)}
  segments = {"encoder_segment_ids": np.array([[1] * 5 + [0] * 3], np.int32)}
  other = batch | {
    "encoder_input_tokens": np.where(segments["encoder_segment_ids"] > 0, batch["encoder_input_tokens"], 9)
  }
  np.testing.assert_array_equal(built(batch | segments)["logits"], built(other | segments)["logits"])
