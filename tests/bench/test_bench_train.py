"""bench train on this machine: figures that fit together, for every family."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from t5like import planning
from t5like.bench import kernels as bench_kernels
from t5like.bench.scaling import points
from t5like.bench.train import make_batch
from t5like.models import GPT, T5, TransformerConfig

SMALL = [
  "--gin.EMBED_DIM=16", "--gin.MLP_DIM=32", "--gin.NUM_HEADS=2", "--gin.HEAD_DIM=8", "--gin.VOCAB_SIZE=64",
  "--gin.NUM_ENCODER_LAYERS=1", "--gin.NUM_DECODER_LAYERS=1", "--steps=3", "--json",
]  # fmt: skip
# As the options above have it.
CONFIG = TransformerConfig(
  vocab_size=64, embed_dim=16, mlp_dim=32, num_heads=2, head_dim=8, num_encoder_layers=1, num_decoder_layers=1
)
LEARNED = dataclasses.replace(CONFIG, num_encoder_layers=0, positions="learned", max_positions=512)


def test_figures_fit_together_and_a_peer_that_fails_leaves_them_alone(t5like):
  """Progress is on standard error; lengths are the model file's, rows no more than a CPU can do."""
  done = t5like("bench", "train", "--model=t5/tiny", *SMALL, "--packed", f"--peer_python={shutil.which('false')}")
  eager, compiled, result = map(json.loads, done.stdout.splitlines())
  assert eager == {"name": "Hugging Face, eager", "error": "ended without a word"}
  assert compiled["name"] == "Hugging Face, torch.compile" and "error" in compiled
  assert "Hugging Face, eager: ended without a word" in done.stderr and done.stderr.count("ms a step") == 3
  # 128 inputs are 30 targets of span corruption.
  seconds, flops = result["step_seconds"], planning.train_step_flops(CONFIG, 8, 128, 30)
  assert result["tokens_per_second"] == pytest.approx(8 * (128 + 30) / seconds)
  assert result["model_flops_per_second"] == pytest.approx(flops / seconds)
  assert result["share_of_ceiling"] == pytest.approx(flops / seconds / result["ceiling_flops_per_second"])
  assert result["losses"][-1] < result["losses"][0] and result["memory_bytes"] > 0
  assert "cpu has no fused attention" in result["attention"]


def test_scaling_changes_one_thing_at_a_time():
  table = list(points(T5(CONFIG), {"inputs": 512, "targets": 114}, 16))
  assert [(p.series, p.rows, *p.lengths.values(), p.layers) for p in table if p.series != "length"] == [
    ("batch", 2, 512, 114, "1+1"), ("batch", 4, 512, 114, "1+1"), ("batch", 8, 512, 114, "1+1"),
    ("batch", 16, 512, 114, "1+1"), ("layers", 2, 512, 114, "6+6"), ("layers", 2, 512, 114, "12+12"),
    ("layers", 2, 512, 114, "24+24"), ("layers", 2, 512, 114, "48+48"),
  ]  # fmt: skip
  # As many tokens a step, whatever the length; learned positions grow with it.
  longer = [p for p in points(GPT(LEARNED), {"inputs": 512}, 16) if p.series == "length"]
  assert [(p.rows, p.lengths["inputs"]) for p in longer] == [(64, 128), (32, 256), (16, 512), (8, 1024), (4, 2048)]
  assert [p.model.config.max_positions for p in longer] == [512, 512, 512, 1024, 2048]


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


def test_kernels_are_summed_by_name_over_steps():
  """Two steps: numbers behind names fall away, what is no kernel's counts as idle."""
  events = [
    ("loop_fusion_12", 0.0, 0.2), ("gemm", 0.3, 0.5), ("loop_fusion", 1.0, 0.4), ("gemm", 1.5, 0.4),
    ("loop_fusion_7.1", 1.9, 0.1),
  ]  # fmt: skip
  found = bench_kernels.summary(events, steps=2)
  assert [(k.name, k.calls) for k in found.kernels] == [("gemm", 1.0), ("loop_fusion", 1.5)]
  assert [k.seconds for k in found.kernels] == pytest.approx([0.45, 0.35])
  assert (found.busy, found.seconds) == pytest.approx((0.8, 1.0))
  text = bench_kernels.table(found, 1)
  assert "800.0 of 1000.0 ms" in text and "56.2%" in text and "1 others" in text
  assert "GPUs and TPUs only" in bench_kernels.table(bench_kernels.summary([], 2), 1)
