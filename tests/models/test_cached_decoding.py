"""A cached decoding step has the logits of a full forward pass at that position."""

import jax
import numpy as np
import pytest

from t5like.errors import UserError
from t5like.models.cache import select_hypotheses
from t5like.models.stepping import prepare

CLOSE = dict(rtol=0, atol=1e-5)


def decode(built, batch, fed: np.ndarray, steps: int):
  """Returns logits [rows, steps, vocab] of feeding `fed` token by token, inside one compiled loop."""

  def run(params, batch, fed):
    variables = {"params": params}
    cache = built.model.apply(variables, batch, steps, method="start_decoding")

    def step(cache, tokens):
      return built.model.apply(variables, tokens, cache, method="decode_step")[::-1]

    _, logits = jax.lax.scan(step, cache, fed.T)
    return logits

  return np.asarray(built.jit(run)(built.params, batch, fed)).transpose(1, 0, 2)


T5_VARIANTS = {
  "relative bias": {},
  "scanned": dict(scan_layers=True),
  "stacked, unrolled": dict(scan_layers=True, layer_loop="unrolled", remat="full"),
  "remat": dict(scan_layers=True, remat="full"),
  "shared": dict(share_encoder_decoder=True),
  "shared, scanned": dict(share_encoder_decoder=True, scan_layers=True),
  "learned": dict(positions="learned", max_positions=9, scale_attention=True),
  "sinusoidal": dict(positions="sinusoidal"),
  "rotary": dict(positions="rotary", scan_layers=True),
  "a bias for each layer": dict(share_relative_bias=False, scan_layers=True),
  "untied, gated": dict(tie_embeddings=False, gated_mlp=True, activation="gelu", scale_logits=False),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("variant", T5_VARIANTS)
def test_t5_steps_equal_teacher_forcing(t5, tokens, variant):
  built = t5(**T5_VARIANTS[variant])
  inputs, fed = tokens(3, 9), tokens(3, 7)
  inputs[1, 4:] = 0
  fed[:, 0] = 0
  batch = {"encoder_input_tokens": inputs}
  np.testing.assert_array_equal(built.model.first_tokens(batch), [0, 0, 0])
  expected = built(batch | {"decoder_input_tokens": fed})["logits"]
  np.testing.assert_allclose(decode(built, batch, fed, 7), expected, **CLOSE)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  "family, fields",
  [
    ("gpt", {}),
    ("gpt", dict(scan_layers=True)),
    ("t5_lm", {}),
    ("t5_lm", dict(scan_layers=True)),
    ("t5_lm", dict(positions="rotary", rotary_base=20.0)),
  ],
)
def test_prompts_of_different_lengths(request, family, fields, tokens):
  built = request.getfixturevalue(family)(**fields)
  full = tokens(3, 12)
  lengths = np.array([5, 1, 3])
  real = np.arange(5)[None] < lengths[:, None]
  batch = {"decoder_input_tokens": np.where(real, full[:, :5], 0), "decoder_segment_ids": real.astype(np.int32)}
  np.testing.assert_array_equal(built.model.first_tokens(batch), full[np.arange(3), lengths - 1])
  # Row r continues from the last token of its prompt.
  fed = np.stack([row[n - 1 : n + 5] for row, n in zip(full, lengths, strict=True)])
  expected = np.asarray(built({"decoder_input_tokens": full})["logits"])
  expected = np.stack([row[n - 1 : n + 5] for row, n in zip(expected, lengths, strict=True)])
  np.testing.assert_allclose(decode(built, batch, fed, 6), expected, **CLOSE)


def test_prefix_lm_attends_to_its_prompt_in_both_directions(t5_lm, tokens):
  built = t5_lm(prefix_lm=True)
  full = tokens(2, 9)
  lengths = np.array([4, 2])
  prefix = (np.arange(9)[None] < lengths[:, None]).astype(np.int32)
  batch = {"decoder_input_tokens": full[:, :4] * prefix[:, :4], "decoder_causal_attention": prefix[:, :4]}
  fed = np.stack([row[n - 1 : n + 4] for row, n in zip(full, lengths, strict=True)])
  expected = np.asarray(built({"decoder_input_tokens": full, "decoder_causal_attention": prefix})["logits"])
  causal = np.asarray(built({"decoder_input_tokens": full})["logits"])
  assert np.abs(causal - expected).max() > 0.01, "the prefix must matter, or this test proves nothing"
  expected = np.stack([row[n - 1 : n + 4] for row, n in zip(expected, lengths, strict=True)])
  np.testing.assert_allclose(decode(built, batch, fed, 5), expected, **CLOSE)


@pytest.mark.parametrize("scan_layers", [False, True])
def test_hypotheses_of_a_row_share_its_encoder_outputs_and_can_be_reordered(t5, tokens, scan_layers):
  """As in beam search: three hypotheses per row, replaced by 2, 0, 0 and 1, 1, 2."""
  built = t5(scan_layers=scan_layers)
  batch = {"encoder_input_tokens": tokens(2, 6)}
  fed = tokens(6, 4)
  order = np.array([[2, 0, 0], [1, 1, 2]])
  start = built.jit(lambda p, b: built.model.apply({"params": p}, b, 4, 3, method="start_decoding"))
  step = built.jit(lambda p, t, c: built.model.apply({"params": p}, t, c, method="decode_step"))
  _, cache = step(built.params, fed[:, 0], start(built.params, batch))
  layer = cache["layers"] if scan_layers else cache["layers"][0]
  assert layer["cross"].shape[-5] == 2 and layer["generated"].shape[-5] == 6
  original, _ = step(built.params, fed[:, 1], cache)
  flat = (order + 3 * np.arange(2)[:, None]).reshape(-1)
  swapped, _ = step(built.params, fed[flat, 1], select_hypotheses(cache, order))
  np.testing.assert_allclose(swapped, np.asarray(original)[flat], **CLOSE)


PREPARED = {
  "t5, scanned": ("t5", dict(scan_layers=True, remat="full", gated_mlp=True)),
  "t5, shared": ("t5", dict(share_encoder_decoder=True, scan_layers=True)),
  "gpt": ("gpt", {}),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", PREPARED)
def test_prepared_weights_give_the_same_logits(request, case, tokens):
  """Unrolled, with fused products for query, key and value."""
  family, fields = PREPARED[case]
  built = request.getfixturevalue(family)(**fields)
  name = "encoder_input_tokens" if family == "t5" else "decoder_input_tokens"
  batch, fed = {name: tokens(2, 5)}, tokens(2, 3)

  def run(params, prepared):
    model, variables = prepare(built.model, params) if prepared else (built.model, {"params": params})
    cache = model.apply(variables, batch, 3, method="start_decoding")
    step = lambda cache, tokens: model.apply(variables, tokens, cache, method="decode_step")[::-1]  # noqa: E731
    return jax.lax.scan(step, cache, fed.T)[1]

  plain, prepared = built.jit(lambda p: (run(p, False), run(p, True)))(built.params)
  np.testing.assert_allclose(prepared, plain, **CLOSE)


def test_prepared_weights_are_in_the_compute_dtype_except_norms_and_relative_biases(t5):
  built = t5(compute_dtype="bfloat16", positions="relative_bias")
  _, variables = prepare(built.model, built.params)
  dtypes = {jax.tree_util.keystr(path): x.dtype for path, x in jax.tree.leaves_with_path(variables)}
  float32 = {path for path, dtype in dtypes.items() if dtype == np.float32}
  assert float32 == {path for path in dtypes if "norm" in path or "rel_embedding" in path}


def test_a_decoder_prompt_is_read_before_the_first_step(t5, tokens):
  """Rows of different lengths; steps after the prompt are the same as if it had been fed token by token."""
  built = t5()
  inputs, full = tokens(2, 6), tokens(2, 7)
  lengths = np.array([3, 1])
  prompt = full[:, :3] * (np.arange(3)[None] < lengths[:, None])
  batch = {"encoder_input_tokens": inputs, "decoder_prompt_tokens": prompt}
  np.testing.assert_array_equal(built.model.first_tokens(batch), full[[0, 1], lengths - 1])
  fed = np.stack([row[n - 1 : n + 3] for row, n in zip(full, lengths, strict=True)])
  shifted = np.concatenate([np.zeros((2, 1), np.int32), full], axis=1)
  expected = np.asarray(built({"encoder_input_tokens": inputs, "decoder_input_tokens": shifted})["logits"])
  expected = np.stack([row[n : n + 4] for row, n in zip(expected, lengths, strict=True)])
  np.testing.assert_allclose(decode(built, batch, fed, 4), expected, **CLOSE)


def test_prompts_are_checked_against_learned_positions(gpt, tokens):
  built = gpt()  # 24 positions
  with pytest.raises(UserError, match="25 tokens are too long for a model with 24 learned positions"):
    built.model.apply({"params": built.params}, {"decoder_input_tokens": tokens(1, 25)}, 2, method="start_decoding")
