"""Which variables train, and at which rate, in both layouts of the layers."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from t5like.errors import UserError
from t5like.finetuning import (
  DiscriminativeRates,
  Everything,
  Frozen,
  FrozenBelow,
  GradualUnfreezing,
  HeadOnly,
  LayerwiseDecay,
  Matching,
  UnfreezeOnPlateau,
  plan_training,
  read_variables,
)
from t5like.finetuning.plateaus import PlateauCounter
from t5like.models import BERT, T5, TransformerConfig
from t5like.models.heads import ClassificationHead, attach_head
from t5like.training import optimizers

SIZES = dict(vocab_size=32, embed_dim=8, mlp_dim=16, num_heads=2, head_dim=4, dropout_rate=0.0)
TOKENS = np.ones((1, 4), np.int32)
BATCH = {"encoder_input_tokens": TOKENS, "decoder_input_tokens": TOKENS, "encoder_segment_ids": TOKENS}


def shapes_of(model):
  return nn.meta.unbox(jax.eval_shape(model.init, jax.random.key(0), BATCH)["params"])


def t5(scan=False, encoder=3, decoder=3, **settings):
  sizes = dict(num_encoder_layers=encoder, num_decoder_layers=decoder, scan_layers=scan)
  return shapes_of(T5(TransformerConfig(**SIZES | sizes | settings)))


def bert(scan=False, layers=4):
  config = TransformerConfig(
    **SIZES,
    num_encoder_layers=layers,
    positions="learned",
    max_positions=8,
    pooler=True,
    scan_layers=scan,
    norm_position="post",
  )
  return shapes_of(attach_head(BERT(config), ClassificationHead(labels=("no", "yes"))))


def modules(shapes, trainable, episode=0, steps=100):
  """Returns the modules that train."""
  variables = read_variables(shapes)
  return {v.module for v in variables.trained(trainable.episodes(variables, steps)[episode].selection)}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scan", [False, True])
def test_layers_are_addressed_by_number_in_both_layouts(scan):
  shapes = t5(scan)
  top = {"decoder/final_norm", "encoder/final_norm", "decoder/layers_2", "encoder/layers_2"}
  assert modules(shapes, FrozenBelow(2)) == top
  assert modules(shapes, FrozenBelow(-1)) == top
  shallow = modules(t5(scan, decoder=2), FrozenBelow(-1))
  assert shallow == {"decoder/final_norm", "encoder/final_norm", "decoder/layers_1", "encoder/layers_2"}
  assert modules(shapes, FrozenBelow(3)) == {"decoder/final_norm", "encoder/final_norm"}
  assert modules(shapes, FrozenBelow(2, embeddings=True)) == top | {"token_embedder"}
  # T5's position biases, which all layers share, belong to the first.
  assert "encoder/relpos_bias" in modules(shapes, FrozenBelow(0)) - modules(shapes, FrozenBelow(1))
  assert modules(shapes, FrozenBelow(0)) == modules(shapes, FrozenBelow(-3)) == modules(shapes, Everything())
  assert modules(shapes, Matching([".*/layers_1/mlp/.*"])) == {"encoder/layers_1", "decoder/layers_1"}
  rest = modules(shapes, Frozen(["token_embedder/.*", "encoder/.*"]))
  assert rest == {"decoder/final_norm", "decoder/relpos_bias", *(f"decoder/layers_{i}" for i in range(3))}


@pytest.mark.parametrize("scan", [False, True])
def test_the_head_only(scan):
  assert modules(bert(scan), HeadOnly()) == {"head"}
  size = sum(v.size for v in read_variables(bert(scan)).all if v.place == "head")
  assert size == 8 * 2 + 2  # a kernel and a bias: the pooler belongs to the backbone


def test_layers_unfreeze_from_the_top():
  shapes, ulmfit = bert(), GradualUnfreezing(embeddings_throughout=False, head_first=True, period=10)
  each = [modules(shapes, ulmfit, n) for n in range(6)]
  assert each[0] == {"head"} and each[1] - each[0] == {"backbone/encoder/layers_3", "backbone/pooler"}
  assert each[4] - each[3] == {"backbone/encoder/layers_0"} and each[5] - each[4] == {"backbone/token_embedder"}


@pytest.mark.slow
def test_gradual_unfreezing_is_that_of_t5_or_of_ulmfit():
  """T5: 2^18 steps in 12 episodes, encoder and decoder in parallel, embeddings throughout."""
  shapes = t5(encoder=12, decoder=12)
  episodes = GradualUnfreezing().episodes(read_variables(shapes), 2**18)
  assert [episode.first_step for episode in episodes] == [n * 2**18 // 12 for n in range(12)]
  found = modules(shapes, GradualUnfreezing(), 2, 2**18)
  assert {name for name in found if "layers_" in name} == {
    f"{stack}/layers_{i}" for stack in ("encoder", "decoder") for i in (9, 10, 11)
  }
  assert "token_embedder" in found and "encoder/relpos_bias" not in found
  ulmfit = GradualUnfreezing(embeddings_throughout=False, head_first=True, period=10)
  plan = plan_training(ulmfit, None, optimizers.adamw(1e-3), bert(), 35)
  assert [episode.first_step for episode in plan.episodes] == [0, 10, 20, 30, 40, 50]
  assert plan.steps_by_episode() == [10, 10, 10, 5, 0, 0] and plan.largest is plan.episodes[3]
  assert [plan.at(step) for step in (0, 9, 10, 39, 99)] == [0, 0, 1, 3, 5] and "beyond the last step" in plan.describe()
  uneven = t5(encoder=4, decoder=2)
  assert {m for m in modules(uneven, GradualUnfreezing(layers=2)) if "layers" in m} == {
    "encoder/layers_2", "encoder/layers_3", "decoder/layers_0", "decoder/layers_1"
  }  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  ("trainable", "message"),
  [
    (HeadOnly(), "needs a model with a head"),
    (FrozenBelow(4), "invalid FrozenBelow.layer: 4"),
    (FrozenBelow(-4), "invalid FrozenBelow.layer: -4"),
    (Matching(["encoder/layers_7/.*"]), "'encoder/layers_7/.*' of Matching matches no variable"),
    (Frozen(["encoder/.*", "token_embeder/embedding"]), "'token_embeder/embedding' of Frozen matches no"),
    (Frozen([".*"]), "leaves nothing to train"),
    (GradualUnfreezing(), "too few for the 3 episodes"),
    (GradualUnfreezing(head_first=True), "needs a model with a head"),
  ],
)
@pytest.mark.parametrize("scan", [False, True])
def test_what_does_not_fit_the_model_is_an_error(trainable, message, scan):
  with pytest.raises(UserError, match=message) as error:
    trainable.episodes(read_variables(t5(scan)), 2)
  if "no variable" in message or "embeder" in message:
    assert "layers" in error.value.lines["nearest"] or "token_embedder/embedding" in error.value.lines["nearest"]


@pytest.mark.parametrize(
  "build",
  [
    lambda: Matching([]), lambda: Matching("head/.*"), lambda: Matching(["("]), lambda: FrozenBelow(1.5),
    lambda: GradualUnfreezing(period=0), lambda: GradualUnfreezing(layers=0), lambda: UnfreezeOnPlateau(),
    lambda: UnfreezeOnPlateau(metric="x", patience=0), lambda: LayerwiseDecay(0.0), lambda: DiscriminativeRates(0.5),
  ],
)  # fmt: skip
def test_invalid_settings(build):
  with pytest.raises(UserError):
    build()


@pytest.mark.parametrize("scan", [False, True])
def test_layer_rates_are_those_of_the_papers(scan):
  shapes = bert(scan)
  electra = rates(shapes, LayerwiseDecay(0.8))
  # ELECTRA: base * decay^(L + 2 - depth); head L + 2, layers 1 to L, embeddings 0.
  assert {rate for path, rate in electra.items() if path.startswith("head/")} == {1.0}
  for layer in range(4):
    assert electra[f"backbone/encoder/layers_{layer}/mlp/wi/kernel"] == pytest.approx(0.8 ** (4 + 2 - (layer + 1)))
  assert electra["backbone/token_embedder/embedding"] == pytest.approx(0.8**6)
  assert electra["backbone/pooler/kernel"] == pytest.approx(0.8)
  ulmfit = rates(shapes, DiscriminativeRates())
  assert ulmfit["backbone/encoder/layers_3/mlp/wi/kernel"] == pytest.approx(1 / 2.6)
  assert ulmfit["backbone/encoder/layers_2/mlp/wi/kernel"] == pytest.approx(1 / 2.6**2)
  assert ulmfit["backbone/token_embedder/embedding"] == pytest.approx(1 / 2.6**5)
  assert ulmfit["backbone/pooler/kernel"] == pytest.approx(1 / 2.6)
  assert {rate for path, rate in ulmfit.items() if path.startswith("head/")} == {1.0}


def rates(shapes, given):
  return {path: value for path, (_, value) in given.rules(read_variables(shapes)).choose(shapes).items()}


def test_the_run_card_lists_what_trains():
  shapes = bert(scan=True)
  optimizer = optimizers.adamw(1e-3, weight_decay=[(".*(bias|scale)", 0.0), (".*", 0.01)])
  plan = plan_training(FrozenBelow(2), LayerwiseDecay(0.5), optimizer, shapes, 10)
  text, facts = plan.describe(), plan.facts()
  trained = facts["episodes"][0]["trained_parameters"]
  assert f"{trained:,} of {plan.variables.size:,} parameters" in text
  assert "stops at layer 2 of backbone/encoder" in text and "from layer 0 up: 0.0312 0.0625 0.125 0.25" in text
  assert facts["episodes"][0]["frozen_parameters"] == plan.variables.size - trained
  assert set(facts["episodes"][0]["trained_variables"]) == {
    "head", "backbone/pooler", "backbone/encoder/layers_2", "backbone/encoder/layers_3"
  }  # fmt: skip
  assert facts["layer_rates"]["backbone/encoder/layers_3"] == 0.25
  table = plan.episodes[0].optimizer.variable_table(shapes).splitlines()
  (line,) = (row for row in table if row.startswith("backbone/encoder/layers_3/mlp/wi/kernel"))
  assert "0.25 by" in line and "yes by TRAINABLE" in line
  assert any("layers_0/mlp/wi/kernel" in row and "frozen" in row for row in table)


def test_rules_of_the_optimizer_may_match_only_frozen_variables_but_not_nothing():
  shapes = bert()
  rules = [("backbone/.*", 0.1), (".*", 0.0)]
  plan_training(HeadOnly(), None, optimizers.adamw(1e-3, weight_decay=rules), shapes, 10)
  with pytest.raises(UserError, match="applies to no variable"):
    plan_training(HeadOnly(), None, optimizers.adamw(1e-3, weight_decay=[("bakbone/.*", 0.1), *rules]), shapes, 10)


def test_plateaus_are_counted_once_and_follow_from_the_recorded_scores():
  counter = PlateauCounter(UnfreezeOnPlateau(metric="eval/t/accuracy", patience=2))
  scores = [50.0, 60.0, 60.0, 59.0, 58.0, 57.0, 57.0]  # plateaus after the 4th, and (from 58 on) after the 7th
  counts = []
  for step, value in enumerate(scores):
    counter.update(step, {"eval/t/accuracy": value})
    counter.update(step, {"eval/t/accuracy": value})  # a restart may evaluate a step again
    counts.append(counter.count)
  assert counts == [0, 0, 0, 1, 1, 1, 2]
  rows = [{"step": step, "kind": "eval/t", "accuracy": value} for step, value in enumerate(scores)]
  again = PlateauCounter(UnfreezeOnPlateau(metric="eval/t/accuracy", patience=2))
  for step, count in enumerate(counts):
    again.restore(rows, step)
    assert again.count == count


def test_an_improvement_below_min_delta_is_a_plateau_and_the_last_episode_has_no_successor():
  unfreezing = UnfreezeOnPlateau(metric="eval/t/accuracy", min_delta=2.0)
  counter = PlateauCounter(unfreezing)
  for step, (value, count) in enumerate([(50.0, 0), (51.0, 1), (60.0, 1)]):
    counter.update(step, {"eval/t/accuracy": value})
    assert counter.count == count
  plan = plan_training(unfreezing, None, optimizers.adamw(1e-3), bert(), 35)
  last = len(plan.episodes) - 1
  assert [plan.at(0, plateaus) for plateaus in (0, 1, last, last + 3)] == [0, 1, last, last]


def test_the_last_episode_unfreezes_the_layers_that_are_left():
  found = GradualUnfreezing(layers=3).episodes(read_variables(bert()), 10)
  titles = ["the top 3 of 4 layers and the embeddings", "everything"]
  assert [(episode.first_step, episode.title) for episode in found] == [(0, titles[0]), (5, titles[1])]
