"""`t5like bench train`: consistent results, scaling, packing and kernels."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from t5like import planning
from t5like.bench import kernels as bench_kernels
from t5like.bench.peer import peer_fields
from t5like.bench.scaling import points
from t5like.bench.train import TrainBench, make_batch, read_workload, stack_lengths
from t5like.errors import UserError
from t5like.models import GPT, T5, TransformerConfig
from t5like.planning.flops import step_flops_by_part

SMALL = [
  "--gin.EMBED_DIM=16", "--gin.MLP_DIM=32", "--gin.NUM_HEADS=2", "--gin.HEAD_DIM=8", "--gin.VOCAB_SIZE=64",
  "--gin.NUM_ENCODER_LAYERS=1", "--gin.NUM_DECODER_LAYERS=1", "--steps=3", "--json",
]  # fmt: skip
# The configuration of these options.
CONFIG = TransformerConfig(
  vocab_size=64, embed_dim=16, mlp_dim=32, num_heads=2, head_dim=8, num_encoder_layers=1, num_decoder_layers=1
)
LEARNED = dataclasses.replace(CONFIG, num_encoder_layers=0, positions="learned", max_positions=512)


def test_results_are_consistent_even_if_a_peer_fails(t5like):
  """Progress goes to stderr; lengths are the model file's, rows are limited on a CPU."""
  done = t5like("bench", "train", "--model=t5/tiny", *SMALL, "--packed", f"--peer_python={shutil.which('false')}")
  eager, compiled, result = map(json.loads, done.stdout.splitlines())
  assert eager == {"name": "Hugging Face, eager", "error": "exited without an error message"}
  assert compiled["name"] == "Hugging Face, torch.compile" and "error" in compiled
  assert "Hugging Face, eager: exited without an error message" in done.stderr and done.stderr.count("ms per step") == 3
  # Span corruption of 128 inputs has 30 targets.
  seconds, flops = result["step_seconds"], planning.train_step_flops(T5(CONFIG), 8, 128, 30)
  assert result["tokens_per_second"] == pytest.approx(8 * (128 + 30) / seconds)
  assert result["model_flops_per_second"] == pytest.approx(flops / seconds)
  assert result["share_of_ceiling"] == pytest.approx(flops / seconds / result["ceiling_flops_per_second"])
  assert result["losses"][-1] < result["losses"][0] and result["memory_bytes"] > 0
  assert "no fused attention for cpu" in result["attention"]


def test_scaling_varies_one_dimension_at_a_time():
  table = list(points(T5(CONFIG), {"inputs": 512, "targets": 114}, 16))
  assert [(p.series, p.rows, *p.lengths.values(), p.layers) for p in table if p.series != "length"] == [
    ("batch", 2, 512, 114, "1+1"), ("batch", 4, 512, 114, "1+1"), ("batch", 8, 512, 114, "1+1"),
    ("batch", 16, 512, 114, "1+1"), ("layers", 2, 512, 114, "6+6"), ("layers", 2, 512, 114, "12+12"),
    ("layers", 2, 512, 114, "24+24"), ("layers", 2, 512, 114, "48+48"),
  ]  # fmt: skip
  # The tokens per step are constant; learned positions grow with the length.
  longer = [p for p in points(GPT(LEARNED), {"inputs": 512}, 16) if p.series == "length"]
  assert [(p.rows, p.lengths["inputs"]) for p in longer] == [(64, 128), (32, 256), (16, 512), (8, 1024), (4, 2048)]
  assert [p.model.config.max_positions for p in longer] == [512, 512, 512, 1024, 2048]


def test_packed_rows_contain_four_examples():
  config = TransformerConfig(vocab_size=64, embed_dim=16, mlp_dim=32, num_heads=2, num_decoder_layers=1)
  batch = make_batch(GPT(config), 2, {"inputs": 12}, packed=True)
  np.testing.assert_array_equal(batch["decoder_segment_ids"][1], [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4])
  np.testing.assert_array_equal(batch["decoder_positions"][0], [0, 1, 2] * 4)


@pytest.mark.parametrize(
  "options, message",
  [([], "--model is required"), (["--model=t5/tiny", "--steps=1"], "at least 3"), (["--model=t5/tinyy"], "tiny")],
)
def test_invalid_options_are_rejected(t5like, options, message):
  assert message in t5like("bench", "train", *options, status=2).stderr


def test_kernels_are_summed_by_name_over_steps():
  """Two steps: numeric suffixes are dropped, time between kernels is idle."""
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


def test_a_peer_is_the_models_own_class():
  """With the fields of its config.json: Llama's grouped heads, BART's positions and dropout."""
  llama = TransformerConfig(
    vocab_size=32, embed_dim=8, mlp_dim=12, num_heads=4, num_kv_heads=2, num_decoder_layers=2, positions="rotary",
    gated_mlp=True, activation="silu", scale_attention=True, scale_logits=False, prefix_lm=True,
  )  # fmt: skip
  fields = peer_fields(GPT(llama, "llama"))
  assert fields["model_type"] == "llama" and fields["num_key_value_heads"] == 2
  settings = TrainBench(["models/bart/base.gin"], [], dropout=0.25)
  fields = peer_fields(read_workload(settings).model)
  assert (fields["model_type"], fields["dropout"]) == ("bart", 0.25)
  with pytest.raises(UserError, match="T5"):
    peer_fields(T5(llama))


def test_microbatches_take_less_memory_and_lora_fewer_flops(t5like):
  """Without dropout, LoRA's step has no products for the gradients of frozen kernels."""
  sizes = ["--batch_size=4", "--inputs=256", "--targets=64"]

  def measured(*options):
    return json.loads(t5like("bench", "train", "--model=t5/tiny", *SMALL, *sizes, *options).stdout.splitlines()[-1])

  plain, parts, lora = measured(), measured("--gin.MICROBATCHES=2"), measured("--gin_file=finetune/methods/lora.gin")
  assert parts["memory_bytes"] < 0.8 * plain["memory_bytes"]
  flops = [result["model_flops_per_second"] * result["step_seconds"] for result in (plain, lora)]
  assert flops[1] == pytest.approx(flops[0] * lora["flops_share"]) and 0.5 < lora["flops_share"] < 1


@pytest.mark.parametrize("name", ["awd_lstm/tiny", "electra/small"])
def test_all_parts_of_other_models_are_counted(t5like, name):
  """A recurrent model has no attention; ELECTRA's generator counts."""
  options = ["--gin.VOCAB_SIZE=64", "--gin.EMBED_DIM=16", "--gin.NUM_LAYERS=1"]
  if name == "electra/small":
    options = ["--gin_file=objectives/electra.gin", *SMALL[:-3]]
  done = t5like("bench", "train", f"--model={name}", *options, "--steps=3", "--json", "--batch_size=2", "--inputs=16")
  (result,) = map(json.loads, done.stdout.splitlines())
  files = [f"models/{name}.gin", *(option[11:] for option in options if option.startswith("--gin_file="))]
  given = [tuple(option[6:].split("=")) for option in options if option.startswith("--gin.")]
  model = read_workload(TrainBench(files, given, inputs=16)).model
  flops = step_flops_by_part(model, 2, **stack_lengths(model.batch_layout, {"inputs": 16}))
  assert ("generator" in flops) == (name == "electra/small")
  assert result["model_flops_per_second"] * result["step_seconds"] == pytest.approx(sum(flops.values()))
  assert ("attention" in result) == (name == "electra/small") and result["dropout"] == 0.1


def test_a_model_without_output_layer_is_refused(t5like):
  """ELECTRA's discriminator: in training, too."""
  error = t5like("bench", "train", "--model=electra/small", status=2).stderr
  assert "this BERT has no output layer to train" in error and "objectives/electra.gin, after" in error
