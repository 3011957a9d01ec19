"""Outputs do not depend on the batch, its padding, the mesh or the compiled shapes."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from t5like import parallel
from t5like.decoding import DecodeSettings
from t5like.errors import UserError
from t5like.inference.generation import Generator
from t5like.models import GPT, T5, TransformerConfig

SIZE = dict(vocab_size=40, embed_dim=16, mlp_dim=32, num_heads=2, num_decoder_layers=1, tie_embeddings=False)
T5_MODEL = T5(TransformerConfig(**SIZE, num_encoder_layers=1, scan_layers=True))
GPT_MODEL = GPT(TransformerConfig(**SIZE, positions="learned", max_positions=30, norm="layer", use_bias=True))
EOS = 1
BEAM = DecodeSettings(method="beam", beams=3, n_best=2, max_length=6)


def random_params(model):
  """Initializes with numpy: compiling an initializer takes longer than the test."""
  token = np.ones((1, 2), np.int32)
  batch = {"encoder_input_tokens": token, "decoder_input_tokens": token}
  boxed = jax.eval_shape(lambda: model.init(jax.random.key(0), batch)["params"])
  rng = np.random.default_rng(0)
  made = jax.tree.map(lambda x: rng.normal(0.0, 0.4, x.shape).astype(x.dtype), nn.meta.unbox(boxed))
  return boxed, made


def generator(model, count: int = 1, **axes) -> Generator:
  return Generator(model, parallel.make_mesh(parallel.MeshAxes(**axes), jax.devices()[:count]), EOS)


def gpt_prompts(*rows: list[int]) -> dict[str, np.ndarray]:
  width = max(map(len, rows))
  tokens = np.array([row + [0] * (width - len(row)) for row in rows], np.int32)
  return {"decoder_input_tokens": tokens, "decoder_segment_ids": (tokens > 0).astype(np.int32)}


ROWS = [[5, 9, 7, 8], [6], [9, 9, 4, 6, 12, 11, 3], [30, 2]]


def test_a_batch_of_prompts_of_different_lengths_equals_one_by_one_with_one_compilation():
  _, params = random_params(GPT_MODEL)
  generate = generator(GPT_MODEL)
  settings = DecodeSettings(max_length=9)
  together = generate(params, gpt_prompts(*ROWS), settings)
  assert len({tuple(row) for row in together.tokens[:, 0].tolist()}) == len(ROWS)  # prompts matter
  assert generate.compilations() == 1
  for i, row in enumerate(ROWS):
    # Other lengths, limits and seeds fall into the same bucket: the compiled function for 4 rows is reused.
    four = generate(params, gpt_prompts(row, *ROWS[:3]), DecodeSettings(max_length=9 - i % 2, seed=i))
    np.testing.assert_array_equal(four.tokens[0, 0], together.tokens[i, 0, : 9 - i % 2])
  assert generate.compilations() == 1
  alone = generate(params, {"decoder_input_tokens": np.array([ROWS[2]], np.int32)}, settings)  # full rows
  np.testing.assert_array_equal(alone.tokens[0], together.tokens[2])
  np.testing.assert_allclose(alone.scores[0], together.scores[2], rtol=1e-4)
  assert generate.compilations() == 2  # for one row


def test_samples_depend_on_row_ids_only():
  _, params = random_params(GPT_MODEL)
  generate = generator(GPT_MODEL)
  settings = DecodeSettings(method="sample", max_length=8, temperature=1.5, top_p=0.95, seed=7)
  together = generate(params, gpt_prompts(*ROWS), settings, row_ids=np.array([10, 11, 12, 13]))
  turned = generate(params, gpt_prompts(*ROWS[::-1]), settings, row_ids=np.array([13, 12, 11, 10]))
  np.testing.assert_array_equal(turned.tokens[::-1], together.tokens)
  other = generate(params, gpt_prompts(*ROWS), settings, row_ids=np.array([20, 21, 22, 23]))
  assert (other.tokens != together.tokens).any()


@pytest.mark.slow
@pytest.mark.parametrize("axes", [dict(data=2, fsdp=2, tensor=2), dict(data=1, fsdp=4, tensor=2)])
def test_sharded_beam_search_equals_that_of_one_device(axes):
  """Six rows over four shards: the filler rows do not show."""
  boxed, params = random_params(T5_MODEL)
  inputs = np.random.default_rng(1).integers(2, 40, (6, 5)).astype(np.int32)
  inputs[1, 2:] = 0
  expected = generator(T5_MODEL)(params, {"encoder_input_tokens": inputs}, BEAM)
  assert expected.tokens.shape == (6, 2, 6)
  mesh = parallel.make_mesh(parallel.MeshAxes(**axes))
  placed = jax.tree.map(jax.device_put, params, nn.meta.unbox(parallel.parameter_shardings(boxed, mesh)))
  decoded = Generator(T5_MODEL, mesh, EOS)(placed, {"encoder_input_tokens": inputs}, BEAM)
  np.testing.assert_array_equal(decoded.tokens, expected.tokens)
  np.testing.assert_allclose(decoded.ranking, expected.ranking, rtol=1e-4)


def test_prompts_that_exceed_the_positions_are_reported():
  _, params = random_params(GPT_MODEL)
  with pytest.raises(UserError) as error:
    generator(GPT_MODEL)(params, gpt_prompts([3] * 3, [4] * 20), DecodeSettings(max_length=12))
  assert (
    "a prompt of 20 tokens plus 12 generated ones" in error.value.render() and "max_length=11" in error.value.render()
  )
  assert "row" in error.value.render() and "1 of 2" in error.value.render()
  with pytest.raises(UserError, match="stop sequence"):
    generator(GPT_MODEL)(params, gpt_prompts([3]), DecodeSettings(max_length=2, stop_sequences=[(40,)]))
