"""The rows of Narang et al.'s table: their parameters by hand, and equal FLOPs."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from t5like import configuration
from t5like.ablations import narang
from t5like.ablations.configurables import steps_at_equal_flops
from t5like.ablations.sweep.plan import plan_sweep
from t5like.ablations.sweep.settings import SweepSettings
from t5like.ablations.tables import RECIPES, TABLES
from t5like.experiments.compatibility import phase_flops
from t5like.experiments.reading import register_configurables
from t5like.models import TransformerConfig
from t5like.objectives import CATALOGUE
from t5like.planning.flops import forward_flops

VANILLA = "vanilla/span_corruption"
# T5 base has 222,903,552 parameters (the published count); layer norms add a bias to each of its 62 RMS norms.
COUNT = 222_903_552 + 62 * 768
D, F, TABLE, NARROW = 768, 3072, 32128 * 768, 32128 * 128
ENCODER_LAYER, DECODER_LAYER = 4 * D * D + 2 * D * F + 4 * D, 8 * D * D + 2 * D * F + 6 * D
# What a row adds, by hand.
ADDED = {
  "": 0,
  "units/geglu": 0,
  "residuals/rms_norm": -62 * D,
  "residuals/rezero": -62 * 2 * D + 60,
  "residuals/fixup": -62 * 2 * D + 2 * 60,
  "sharing/blocks": -11 * (ENCODER_LAYER + DECODER_LAYER),
  "sharing/encoder_blocks": -11 * ENCODER_LAYER,
  "sharing/decoder_blocks": -11 * DECODER_LAYER,
  "embeddings/factorized": NARROW + 128 * D,
  "embeddings/factorized_tied": -TABLE + NARROW + 2 * 128 * D,
  "embeddings/tied_inputs": TABLE,
  "embeddings/tied_decoder": TABLE,
  "embeddings/untied": 2 * TABLE,
  "outputs/adaptive_softmax": D * (2500 + 2) + 192 * (D + 6000) + 48 * (D + 23628),
  "outputs/mixture_of_softmaxes": 15 * D * D + 15 * D,
  "synthesizer/dense": 24 * (64 * 512 - D * D),
  "synthesizer/factorized": 24 * (2 * 12 * 512 * 16 - 2 * D * D),
  "synthesizer/random_plus_alpha": 24 * (12 * 512 * 512 + 1),
  "experts/switch": 24 * (7 * 2 * D * F + 8 * D),
}


def build(variation, *files, **macros):
  register_configurables()
  name = "/".join(filter(None, (VANILLA, variation)))
  configuration.load([RECIPES[name].gin_file, *files], [("MODEL_DIR", "unused"), *macros.items()])
  return configuration.build("train")


def parameters(model):
  token = np.ones((1, 2), np.int32)
  batch = {"encoder_input_tokens": token, "decoder_input_tokens": token}
  shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), batch))
  return sum(leaf.size for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize("variation", ADDED)
def test_parameters_by_hand(variation):
  assert parameters(build(variation, SCAN_LAYERS="True").model) - COUNT == ADDED[variation]


def test_every_row_differs_from_the_vanilla_model_and_takes_its_flops():
  scale = "ablations/scales/smoke.gin"
  vanilla = build("", scale, PRETRAIN_STEPS="1000")
  assert vanilla.steps == vanilla.eval_loss_period == 1000 and vanilla.model.config.norm == "layer"
  lengths = vanilla.objective.lengths(64)
  budget, seen = 1000 * phase_flops(vanilla.model, 8, lengths), [vanilla.model]
  for variation in narang.ROWS:
    built = build(variation, scale, PRETRAIN_STEPS="1000")
    assert built.model not in seen
    seen.append(built.model)
    each = phase_flops(built.model, 8, lengths)
    assert abs(built.steps * each - budget) <= each, variation
  assert [row.recipe for row in TABLES["narang"].rows] == [VANILLA, *(f"{VANILLA}/{v}" for v in narang.ROWS)]


def test_fine_tuning_takes_the_steps_of_the_scale():
  tuned = build(
    "experts/switch", "ablations/finetune.gin", "ablations/scales/smoke.gin", TASK="snli", INIT_FROM="somewhere"
  )
  assert tuned.steps == 8 and tuned.model.config.num_experts == 8


def test_steps_by_hand():
  sizes = dict(vocab_size=8, embed_dim=8, mlp_dim=16, num_heads=1, num_encoder_layers=1, num_decoder_layers=1)
  steps = lambda **fields: steps_at_equal_flops(  # noqa: E731
    10**6, TransformerConfig(**sizes | fields), 16, {"inputs": 64}, "span_corruption", 1
  )
  lengths = CATALOGUE["span_corruption"].lengths(64)
  encoder, decoder = lengths.inputs, lengths.targets
  plain = forward_flops(TransformerConfig(**sizes), 1, encoder, decoder)
  added = 2 * decoder * (8 * 2 + 8 * 16 + 8 * 8)  # priors, states of two softmaxes, the second output
  assert steps(softmax_mixtures=2) == round(10**6 * plain / (plain + added))
  assert steps() == steps(layer_groups=1) == 10**6
  assert steps(gated_mlp=True) < 10**6 < steps(gated_mlp=True, mlp_dim=10)  # 30 rather than 32 columns


def test_a_sweep_expects_the_steps_of_each_row(tmp_path):
  rows = [VANILLA, f"{VANILLA}/outputs/mixture_of_softmaxes"]
  given = SweepSettings(["narang"], [], "smoke", 1, ["snli"], [], gin=[["PRETRAIN_STEPS", "100"]])
  found = {run.recipe: run.jobs[0].steps for run in plan_sweep(tmp_path, given, rows).runs({})}
  own = build("outputs/mixture_of_softmaxes", "ablations/scales/smoke.gin", PRETRAIN_STEPS="100").steps
  assert found == {rows[0]: 100, rows[1]: own} and own < 100
