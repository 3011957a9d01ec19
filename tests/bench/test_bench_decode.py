"""The bytes that a decoding step must read, for `t5like bench decode`."""

import json

import flax.linen as nn
import jax
import numpy as np
import pytest

from t5like.bench.decode import bytes_per_step
from t5like.models import GPT, T5, TransformerConfig

SIZE = dict(
  vocab_size=100, embed_dim=16, mlp_dim=32, num_heads=2, head_dim=8, num_decoder_layers=3, compute_dtype="bfloat16"
)


def step_bytes(model, name: str, beams: int = 1) -> float:
  """Returns the bytes per step for 4 prompts of 10 tokens and 5 generated tokens."""
  token = np.ones((1, 2), np.int32)
  batch = {"encoder_input_tokens": token, "decoder_input_tokens": token}
  params = nn.meta.unbox(jax.eval_shape(lambda: model.init(jax.random.key(0), batch)["params"]))
  return bytes_per_step(model, params, {name: np.ones((4, 10), np.int32)}, 5, beams)


def test_a_decoder_reads_its_weights_its_prompts_and_half_of_its_outputs():
  layer = 2 * (4 * 16 * 16 + 2 * 16 * 32) + 4 * 2 * 16  # kernels in bfloat16, two norms in float32
  weights = 3 * layer + 4 * 16 + 2 * 100 * 16 + 4 * 2 * 32  # and the final norm, tied embedding, relative positions
  token = 3 * 2 * 2 * 16  # key and value of one position in all layers
  assert step_bytes(GPT(TransformerConfig(**SIZE)), "decoder_input_tokens") == weights + 4 * (9 + 3) * token


def test_an_encoder_decoder_reads_its_inputs_once_for_all_beams():
  model = T5(TransformerConfig(**SIZE, num_encoder_layers=1))
  one, three = (step_bytes(model, "encoder_input_tokens", beams) for beams in (1, 3))
  assert three - one == 4 * 2 * 3 * (3 * 2 * 2 * 16)  # rows, further beams, tokens on average, bytes


COMMAND = ["bench", "decode", "--batch_size=8", "--inputs=4", "--no_peer"]


@pytest.mark.slow  # compiles the decoding loop of a model
def test_bench_decode(t5like):
  out = t5like(*COMMAND, "--model=t5/tiny", "--outputs=20", "--json", "--kernels=3").stdout
  result = json.loads(out.splitlines()[-1])
  assert result["tokens_per_second"] > 0 and result["limit_tokens_per_second"] > 0 and result["step_bytes"] > 0
  assert result["kernels"]["kernels"] == []  # none on a CPU


@pytest.mark.parametrize(("model", "kind"), [("bert/tiny", "an encoder"), ("awd_lstm/tiny", "recurrent")])
def test_models_that_are_not_measured_are_named(t5like, model, kind):
  assert f"{model} is {kind}: " in t5like(*COMMAND, f"--model={model}", status=2).stderr
