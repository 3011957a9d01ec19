"""Planned memory against XLA's analysis for an H100, for 16 x (512, 114) tokens of a T5 1.1.

Temporary bytes of the train step from jax 0.11.2 with its CUDA plug-in (Adafactor, plain attention), which can compile
for an H100 without one.
"""

import dataclasses

import jax
import numpy as np
import pytest

from t5like.models import T5, TransformerConfig
from t5like.planning import StateBytes, estimate_memory

SIZE = dict(
  vocab_size=32128, embed_dim=768, mlp_dim=2048, num_heads=12, head_dim=64, activation="gelu", gated_mlp=True,
  tie_embeddings=False, scale_logits=False, compute_dtype="bfloat16", attention_backend="xla", scan_layers=True,
)  # fmt: skip
CASES = {
  "plain": (6, {}, 4.420, 5.568),
  "rematerialized": (4, dict(remat="full", dropout_rate=0.1), 1.084, 1.189),
}


@pytest.mark.parametrize("case", ["plain", pytest.param("rematerialized", marks=pytest.mark.slow)])  # seconds to trace
def test_stacked_layers_match_the_memory_of_the_compiled_program(case):
  layers, fields, unrolled, loop = CASES[case]
  config = TransformerConfig(**SIZE | fields | dict(num_encoder_layers=layers, num_decoder_layers=layers))
  lengths = {"encoder_input_tokens": 512, "decoder_input_tokens": 114}
  batch = {name: jax.ShapeDtypeStruct((16, length), np.int32) for name, length in lengths.items()}
  table, encoder, decoder = 32128 * 768, 4 * 768**2 + 3 * 768 * 2048, 8 * 768**2 + 3 * 768 * 2048
  weights = 2 * table + layers * (encoder + decoder)
  state = StateBytes(parameters=4 * weights, optimizer=0, weights=2 * weights, layer_weights=2 * table, variables=30)

  def peak(layer_loop):
    model = T5(dataclasses.replace(config, layer_loop=layer_loop))
    return estimate_memory(model, batch, state, dict(data=1, fsdp=1, tensor=1), platform="gpu").peak / 2**30

  assert peak("auto") == pytest.approx(unrolled, rel=0.05)
  assert peak("loop") == pytest.approx(loop, rel=0.15)
