"""Every shipped gin file can be loaded and built, and has a header."""

import functools

import flax.linen as nn
import gin
import jax
import numpy as np
import pytest

from t5like import configuration
from t5like.configuration.search_path import shipped_folder
from t5like.experiments.reading import register_configurables
from t5like.models.config import TransformerConfig
from t5like.objectives import CATALOGUE

FILES = sorted(str(p.relative_to(shipped_folder())) for p in shipped_folder().rglob("*.gin"))
# Files that are only included: a family's base has no sizes, train.gin no task.
BASES = {f for f in FILES if f.split("/")[-1] == f"{f.split('/')[-2]}.gin"} | {
  "models/transformer.gin",
  "runs/train.gin",
}
# Files to be added after a size file.
OVERLAYS = [f for f in FILES if "/architectures/" in f]
MODELS = [f for f in FILES if f.startswith("models/") and f not in BASES and f not in OVERLAYS]
OBJECTIVES = [f for f in FILES if f.startswith("objectives/")]
OPTIMIZERS = [f for f in FILES if f.startswith("optimizers/")]
RUNS = [f for f in FILES if f.startswith("runs/") and f not in BASES]


@pytest.fixture(autouse=True)
def clean():
  register_configurables()
  yield
  gin.clear_config()


def build(*files):
  values = {"MODEL_DIR": "/tmp/x", "TASK": "snli", "INIT_FROM": "None"}
  configuration.load(files, list(values.items()))
  return configuration.build("train")


@pytest.mark.parametrize("model", MODELS)
def test_every_model_file_builds_a_model(model):
  assert isinstance(build(model, "objectives/span_corruption.gin", "runs/pretrain.gin").model.config, TransformerConfig)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_architecture_builds_on_top_of_a_size(overlay):
  assert build("models/t5/base.gin", overlay, "objectives/span_corruption.gin", "runs/pretrain.gin").model.config


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_file_builds_an_objective(objective):
  name = objective.removeprefix("objectives/").removesuffix(".gin")
  assert build("models/t5/tiny.gin", objective, "runs/pretrain.gin").objective == CATALOGUE[name]


def test_every_objective_has_a_file():
  assert {f"objectives/{name}.gin" for name in CATALOGUE} == set(OBJECTIVES)


@pytest.mark.parametrize("run", RUNS)
def test_every_run_file_builds_a_run(run):
  complete = "include 'models/" in (shipped_folder() / run).read_text()
  if "finetune" in run:
    assert build(*([] if complete else ["models/t5/tiny.gin"]), run).objective is None
  else:
    assert build(*([] if complete else ["models/t5/tiny.gin", "objectives/span_corruption.gin"]), run).objective


@pytest.mark.parametrize("file", [f for f in FILES if f.startswith("trainable/")])
def test_every_file_of_what_trains_follows_a_run_file(file):
  plain, built = (
    build("models/t5/tiny.gin", "runs/finetune.gin"),
    build("models/t5/tiny.gin", "runs/finetune.gin", file),
  )
  assert (plain.trainable, plain.layer_rates) != (built.trainable, built.layer_rates)


@pytest.mark.parametrize("model", ["models/t5_1_1/base.gin", "models/mt5/small.gin", "models/byt5/small.gin"])
def test_models_pretrained_without_dropout_are_finetuned_with_it(model):
  pretrained = build(model, "objectives/span_corruption.gin", "runs/pretrain.gin").model.config
  gin.clear_config()
  assert (pretrained.dropout_rate, build(model, "runs/finetune.gin").model.config.dropout_rate) == (0.0, 0.1)


@functools.cache
def parameter_shapes(model):
  """Returns the parameter shapes of a model file, without allocating arrays."""
  features = ("input_tokens", "target_tokens", "segment_ids", "positions", "token_types")
  batch = {f"{side}_{f}": np.zeros((1, 8), np.int32) for side in ("encoder", "decoder") for f in features}
  built = build(model, "objectives/causal_lm.gin", "runs/pretrain.gin").model
  return jax.eval_shape(built.init, jax.random.key(0), batch)["params"]


@pytest.mark.parametrize("model", ["models/t5/tiny.gin", "models/bert/tiny.gin", "models/gpt2/small.gin"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_file_works_with_every_kind_of_model(optimizer, model):
  name = optimizer.removeprefix("optimizers/").removesuffix(".gin")
  for run in ("runs/pretrain.gin", "runs/finetune.gin"):
    objective = ["objectives/span_corruption.gin"] if "pretrain" in run else []
    gin.clear_config()
    built = build(model, *objective, run, optimizer).optimizer
    assert built.description.startswith(f"{name}(")
    assert jax.eval_shape(built.transformation.init, nn.meta.unbox(parameter_shapes(model)))
    assert 0 < float(built.learning_rate(jax.numpy.int32(1000))) < 1


def test_every_optimizer_has_a_file():
  assert {f.removeprefix("optimizers/") for f in OPTIMIZERS} == {
    "adafactor.gin", "adamw.gin", "adamw_scaled.gin", "lion.gin", "muon.gin"
  }  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_every_file_starts_with_a_header(name):
  lines = (shipped_folder() / name).read_text().splitlines()
  header = lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]
  assert len(header) >= 3
  assert any(word in "\n".join(header) for word in ("t5like ", "ncluded by"))
  assert any(word in "\n".join(header) for word in ("Required:", "Often changed:"))
