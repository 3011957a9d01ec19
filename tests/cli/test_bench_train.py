"""bench train on this machine: figures that fit together, for every family."""

import json

import numpy as np
import pytest

from t5like import planning
from t5like.cli.bench_train import make_batch
from t5like.models import GPT, TransformerConfig

SMALL = [
  "--gin.EMBED_DIM=16", "--gin.MLP_DIM=32", "--gin.NUM_HEADS=2", "--gin.HEAD_DIM=8", "--gin.VOCAB_SIZE=64",
  "--batch_size=8", "--inputs=16", "--steps=3", "--dtype=float32", "--json",
]  # fmt: skip


def test_figures_fit_together(t5like):
  layers = ["--gin.NUM_ENCODER_LAYERS=1", "--gin.NUM_DECODER_LAYERS=1"]
  result = json.loads(t5like("bench", "train", "--model=t5/tiny", *SMALL, *layers, "--targets=8", "--packed").stdout)
  config = TransformerConfig(
    vocab_size=64, embed_dim=16, mlp_dim=32, num_heads=2, head_dim=8, num_encoder_layers=1, num_decoder_layers=1
  )
  seconds, flops = result["step_seconds"], planning.train_step_flops(config, 8, 16, 8)
  assert result["tokens_per_second"] == pytest.approx(8 * (16 + 8) / seconds)
  assert result["model_flops_per_second"] == pytest.approx(flops / seconds)
  assert result["share_of_ceiling"] == pytest.approx(flops / seconds / result["ceiling_flops_per_second"])
  assert result["losses"][-1] < result["losses"][0] and result["memory_bytes"] > 0
  assert "cpu has no fused attention" in result["attention"]


def test_packed_rows_hold_four_examples():
  config = TransformerConfig(vocab_size=64, embed_dim=16, mlp_dim=32, num_heads=2, num_decoder_layers=1)
  batch = make_batch(GPT(config), 2, {"inputs": 12}, packed=True)
  np.testing.assert_array_equal(batch["decoder_segment_ids"][1], [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4])
  np.testing.assert_array_equal(batch["decoder_positions"][0], [0, 1, 2] * 4)


@pytest.mark.parametrize(
  "options, answer",
  [([], "which model?"), (["--model=t5/tiny", "--steps=1"], "too few"), (["--model=t5/tinyy"], "tiny")],
)
def test_mistakes_are_answered(t5like, options, answer):
  assert answer in t5like("bench", "train", *options, status=2).stderr
