"""Layer-wise probes: heads on one layer or on a mix, the runs of a suite of layers, and its table."""

import dataclasses

import flax.linen as nn
import jax
import numpy as np
import pytest
from infer_models import folder_of

from t5like.ablations.suites.plan import Suite, find_suite, plan_suite
from t5like.ablations.suites.probes import learned_mixes, probe_table
from t5like.ablations.sweep.results import Cost, Result
from t5like.errors import UserError
from t5like.experiments.reading import register_configurables
from t5like.inference import load
from t5like.inference.converting import save_model_directory
from t5like.models import BERT, GPT, TransformerConfig
from t5like.models.heads import ClassificationHead, EmbeddingHead, Probe, TaggingHead

LABELS = ("yes", "no")
SIZES = dict(vocab_size=13, embed_dim=6, num_heads=2, head_dim=3, mlp_dim=5)
FILES = ["models/bert/tiny.gin", "finetune/bert.gin", "finetune/sentences/snli.gin", "finetune/suites/layers.gin"]


@pytest.fixture(scope="module")
def bert():
  return BERT(TransformerConfig(num_encoder_layers=2, positions="learned", max_positions=8, **SIZES))


def initialized(model: nn.Module) -> tuple[dict, dict]:
  batch = {"encoder_input_tokens": np.array([[3, 4, 5, 0], [6, 7, 0, 0]], np.int32)}
  shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), batch)["params"])
  rng = np.random.default_rng(0)
  return batch, jax.tree.map(lambda x: rng.normal(0.0, 0.5, x.shape).astype(x.dtype), shapes)


@pytest.mark.parametrize("layer", [0, 1, -1])
def test_a_probe_reads_the_states_of_its_layer(bert, layer):
  model = Probe(layer).attach(bert, ClassificationHead(LABELS))
  batch, params = initialized(model)
  logits = jax.jit(model.apply)({"params": params}, batch)["label_logits"]
  read = jax.jit(lambda p: bert.apply({"params": p}, batch, all_layers=True, method="hidden_states"))
  states = np.asarray(read(params["backbone"]))[layer]
  mean = np.stack([states[0, :3].mean(0), states[1, :2].mean(0)])
  assert set(params["head"]) == {"out"}  # a linear layer
  np.testing.assert_allclose(logits, mean @ params["head"]["out"]["kernel"] + params["head"]["out"]["bias"], atol=1e-5)


def test_a_probe_of_the_mix_and_of_tags(bert):
  mix = Probe().attach(bert, ClassificationHead(LABELS, pooling="pooler", hidden="tanh"))
  assert mix.layer is None and mix.head.mix_layers and (mix.head.pooling, mix.head.hidden) == ("mean", None)
  tags = Probe(2, pooling="cls").attach(GPT(TransformerConfig(num_decoder_layers=2, **SIZES)), TaggingHead(LABELS))
  assert tags.layer == 2 and tags.head.dropout_rate == 0.0 and not tags.head.mix_layers


def test_invalid_probes_are_rejected(bert):
  with pytest.raises(UserError, match=r"invalid Probe.layer: 'last'"):
    Probe("last")
  with pytest.raises(UserError, match="invalid layer of a head: 3"):
    Probe(3).attach(bert, ClassificationHead(LABELS))
  with pytest.raises(UserError, match="an EmbeddingHead|a EmbeddingHead"):
    Probe(1).attach(bert, EmbeddingHead())
  with pytest.raises(UserError, match="no mix of layers"):
    Probe().attach(bert, ClassificationHead(LABELS)).clone(layer=1).check()


def suite(tmp_path, *more: tuple[str, str]):
  register_configurables()
  given = [("INIT_FROM", "None"), ("MODEL_DIR", str(tmp_path / "probes")), ("NUM_ENCODER_LAYERS", "3"), *more]
  return find_suite(FILES, given)


def test_a_suite_probes_every_layer_and_the_mix(tmp_path):
  runs = plan_suite(suite(tmp_path, ("SEEDS", "2")))
  layers = ["0", "1", "2", "3", "mix"]
  assert [(run.recipe, run.seed) for run in runs] == [(f"probe/{layer}", seed) for seed in (0, 1) for layer in layers]
  for run, layer in zip(runs, layers * 2, strict=True):
    overrides = dict(run.jobs[0].overrides)
    assert overrides["PROBE_LAYER"] == layer and overrides["suite.layers"] == "[]" and "SEEDS" not in overrides
    assert run.jobs[0].files == FILES and run.jobs[0].evaluated == ("snli_classification",)
  some = plan_suite(suite(tmp_path, ("PROBE_LAYERS", "[2, 'mix']")))
  assert [run.recipe for run in some] == ["probe/2", "probe/mix"]


@pytest.mark.parametrize(
  "more, message",
  [
    (("PROBE_LAYERS", "[1, 1]"), "invalid PROBE_LAYERS"),
    (("PROBE_LAYERS", "last"), "invalid PROBE_LAYERS"),
    (("suite.recipes", "['finetune/glue/rte.gin']"), "either recipes or layers"),
  ],
)
def test_invalid_suites_are_rejected(tmp_path, more, message):
  with pytest.raises(UserError, match=message):
    suite(tmp_path, more)


def result(layer, seed: int, accuracy: float) -> Result:
  cost = dict.fromkeys(("pretraining", "finetuning", "total"), Cost("", 1, 0.0, 0.0, 0))
  tasks = {"snli_classification": {"accuracy": accuracy, "best_step": 4}}
  last = {"snli_classification": {"accuracy": accuracy - 1.0}}
  return Result(f"probe/{layer}", seed, "suite", {}, tasks, [], None, cost, "", "", "", [], last=last)


def test_the_table_by_hand():
  results = [result(0, 0, 40.0), result(0, 1, 44.0), result(1, 0, 60.0), result("mix", 0, 61.0), result("mix", 1, 63.0)]
  lines = probe_table(results, [np.array([0.2, 0.8]), np.array([0.3, 0.7])]).splitlines()
  assert lines[0] == "snli_classification"
  rows = [line.split() for line in lines[2:5]]
  assert rows[0] == "0, embeddings 42.00 ± 2.83 41.00 ± 2.83 2 0.250 accuracy".split()
  assert rows[1] == "1 60.00 59.00 1 0.750 accuracy".split()
  assert rows[2] == "mix 62.00 ± 1.41 61.00 ± 1.41 2 accuracy".split()
  assert probe_table([], []) == ""


def test_the_weights_of_a_mix_are_read_from_its_run(tmp_path, use_devices):
  with use_devices(1):
    base = load(folder_of("bert", tmp_path / "bert", eos=2, cls=1, sep=2, mask=3))
    module = Probe().attach(base.module, ClassificationHead(LABELS))
    _, params = initialized(module)
    params["head"]["mix"]["weights"] = np.log(np.array([0.5, 0.2, 0.3], np.float32))
    target = tmp_path / "runs" / "probe.mix-seed0"
    target.mkdir(parents=True)
    save_model_directory(target, module, params, base.vocabulary, base.vocabulary_name, base.folder)
    (mix,) = learned_mixes(tmp_path, [result(1, 0, 50.0), result("mix", 0, 50.0)])
    one = Probe(1).attach(base.module, ClassificationHead(LABELS))
    other = tmp_path / "one"
    other.mkdir()
    save_model_directory(other, one, initialized(one)[1], base.vocabulary, base.vocabulary_name, base.folder)
    assert load(other).module.layer == 1  # in config.gin
  np.testing.assert_allclose(mix, [0.5, 0.2, 0.3], atol=1e-6)


def test_suites_without_layers_are_as_before():
  assert dataclasses.asdict(Suite(["a.gin"])) == {"recipes": ["a.gin"], "seeds": 3, "layers": ()}
