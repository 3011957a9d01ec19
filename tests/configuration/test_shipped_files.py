"""Every shipped gin file can be loaded and built, and has a header."""

import functools

import flax.linen as nn
import gin
import jax
import numpy as np
import pytest

from t5like import configuration
from t5like.ablations.suites.plan import find_suite
from t5like.configuration.search_path import shipped_folder
from t5like.models.config import TransformerConfig
from t5like.models.heads import EmbeddingHead
from t5like.models.recurrent import RecurrentConfig
from t5like.objectives import CATALOGUE

pytestmark = pytest.mark.usefixtures("clean_gin")
FILES = sorted(str(p.relative_to(shipped_folder())) for p in shipped_folder().rglob("*.gin"))
# Files that are only included: a family's base has no sizes, train.gin no task.
BASES = {f for f in FILES if f.split("/")[-1] == f"{f.split('/')[-2]}.gin"} | {
  "models/transformer.gin",
  "models/recurrent.gin",
  "runs/train.gin",
}
# Files to be added after a size file.
OVERLAYS = [f for f in FILES if "/architectures/" in f or "/modifications/" in f]
MODELS = [f for f in FILES if f.startswith("models/") and f not in BASES and f not in OVERLAYS]
OBJECTIVES = [f for f in FILES if f.startswith("objectives/")]
OPTIMIZERS = [f for f in FILES if f.startswith("optimizers/")]
RUNS = [f for f in FILES if f.startswith("runs/") and f not in BASES]
SUITES = [f for f in FILES if f.startswith("finetune/suites/")]
EMBEDDINGS = [f for f in FILES if f.startswith("finetune/embeddings/")]
METHODS = [f for f in FILES if f.startswith("finetune/methods/")]  # see tests/finetuning/test_method_gin.py
OTHERS = SUITES + EMBEDDINGS + METHODS
RECIPES = [f for f in FILES if f.startswith("finetune/") and f.count("/") == 2 and f not in OTHERS]


def build(*files):
  values = {"MODEL_DIR": "/tmp/x", "TASK": "snli", "INIT_FROM": "None"}
  configuration.load(files, list(values.items()))
  return configuration.build("train")


@pytest.mark.parametrize("model", MODELS)
def test_every_model_file_builds_a_model(model):
  built = build(model, "objectives/span_corruption.gin", "runs/pretrain.gin").model.config
  assert isinstance(built, TransformerConfig | RecurrentConfig)


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


def test_published_pretraining():
  """Steps, rows, phases and learning rates of the papers."""
  bert, gpt1, gpt2, t5, t5_1_1 = (build_run(f"runs/{n}.gin") for n in ("bert", "gpt1", "gpt2", "t5_paper", "t5_1_1"))
  assert [(e.steps, e.batch_size, e.lengths["inputs"]) for e in (bert, gpt1, gpt2, t5, t5_1_1)] == [
    (1_000_000, 256, 512), (3_000_000, 64, 512), (600_000, 512, 1024), (2**19, 128, 512), (1_000_000, 2048, 512)
  ]  # fmt: skip
  assert bert.phases == [{"steps": 900_000, "lengths": {"inputs": 128}}] and bert.objective.next_sentence
  assert [rates(e, 0, 1999, 9999, 20_000) for e in (bert, gpt1, t5)] == [
    pytest.approx([1e-8, 2e-5, 1e-4, 1e-4 * 98 / 99], rel=1e-3),
    pytest.approx([0.0, 2.5e-4, 2.5e-4, 2.5e-4], abs=2e-6),
    pytest.approx([0.01, 0.01, 0.01, 20_000**-0.5], rel=1e-3),
  ]
  assert [e.z_loss for e in (bert, gpt1, gpt2, t5)] == [0, 0, 0, 1e-4]
  assert (t5.model.config.dropout_rate, t5_1_1.model.config.dropout_rate) == (0.1, 0.0)


def build_run(file):
  gin.clear_config()
  configuration.load([file], [("MODEL_DIR", "/tmp/x")])
  return configuration.build("train")


def rates(experiment, *steps):
  return [float(experiment.optimizer.learning_rate(jax.numpy.int32(step))) for step in steps]


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_builds_a_text_to_text_run(recipe):
  built = build_recipe("models/t5/tiny.gin", "finetune/t5.gin", recipe)
  assert (built.steps, built.batch_size, built.objective) == (2**18, 128, None)
  evaluated = built.eval_tasks[0] if built.eval_tasks else built.task
  assert built.keep.metric == built.early_stopping.metric and built.keep.metric.startswith(f"eval/{evaluated}/")
  assert rates(built, 0, 100_000) == pytest.approx([1e-3, 1e-3])


def test_epochs_become_steps():
  """MRPC: 3 epochs of 3,668 pairs in rows of 32 are 344 steps, of which 34 warm up; 115 are an epoch."""
  files = ("models/bert/tiny.gin", "finetune/bert.gin", "finetune/glue/mrpc.gin")
  built = build_recipe(*files)
  assert (built.steps, built.eval_period, built.lengths) == (344, 115, {"inputs": 128})
  assert rates(built, 16, 33, 343) == pytest.approx([1e-5, 2e-5, 2e-5 / 310], rel=1e-3)
  gin.clear_config()
  assert (built := build_recipe(*files, BATCH_SIZE="16", EPOCHS="1")).steps == built.eval_period == 229


HEADS = [f for f in RECIPES if "HEAD_TASK" in (shipped_folder() / f).read_text()]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("recipe", HEADS)
def test_recipes_of_heads(recipe):
  """BERT: 10% warm-up to a learning rate of 1e-5 to 5e-5; GPT-1: 0.2% to 6.25e-5, and half of the language model."""
  bert = build_recipe("models/bert/tiny.gin", "finetune/bert.gin", recipe)
  assert bert.has_head and bert.keep.best == 1 and bert.steps >= bert.eval_period >= 1
  peak, last = rates(bert, max(round(bert.steps / 10), 1) - 1, bert.steps - 1)
  assert 1e-5 <= round(peak, 8) <= 5e-5 and last < peak / 5
  gin.clear_config()
  gpt = build_recipe("models/gpt2/small.gin", "finetune/gpt.gin", recipe)
  assert gpt.has_head and gpt.steps == bert.steps
  assert rates(gpt, max(round(gpt.steps / 500), 1)) == pytest.approx([6.25e-5], rel=0.05)
  assert gpt.head == "task" or gpt.head.lm_loss_weight == 0.5


@pytest.mark.parametrize(
  ("model", "file", "task"),
  [
    ("models/bert/tiny.gin", "finetune/bert.gin", {"HEAD_TASK": "'a_classification'", "EXAMPLES": "6400"}),
    ("models/t5_1_1/small.gin", "finetune/t5.gin", {"TEXT_TASK": "'a_text_to_text'"}),
  ],
)
def test_recipes_without_a_validation_split(model, file, task):
  """EVAL_SPLIT = '' is enough: no score chooses checkpoints or stops the run."""
  built = build_recipe(model, file, **task, METRIC="'accuracy'", EVAL_SPLIT="''")
  assert built.keep.best == 0 and built.early_stopping.metric == ""
  gin.clear_config()
  scored = build_recipe(model, file, **task, METRIC="'accuracy'")
  assert scored.keep.best == 1 and scored.keep.metric == scored.early_stopping.metric == f"eval/{scored.task}/accuracy"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("recipe", EMBEDDINGS)
def test_recipes_of_embeddings(recipe):
  """A model file and a recipe are complete, but for the size of one's own files; the loss is known or the task's."""
  sizes = {"EXAMPLES": "6400"} if "EXAMPLES = %gin.REQUIRED" in (shipped_folder() / recipe).read_text() else {}
  built = build_recipe("models/bert/tiny.gin", recipe, **sizes)
  assert isinstance(built.head, EmbeddingHead) and built.has_head and built.keep.best == 1
  assert built.task.endswith(("_embedding", "_classification")) and built.steps >= 1
  scored = (built.eval_tasks or [built.task])[0]
  assert built.keep.metric.startswith(f"eval/{scored}/")
  assert rates(built, max(round(built.steps / 10), 1)) == pytest.approx([2e-5], rel=0.05) or "simcse" in recipe


def build_recipe(*files, **overrides):
  configuration.load(files, [("MODEL_DIR", "/tmp/x"), ("INIT_FROM", "None"), *overrides.items()])
  return configuration.build("train")


@pytest.mark.parametrize("suite", SUITES)
def test_every_recipe_of_a_suite_exists(suite):
  found = find_suite(["models/t5/tiny.gin", "finetune/t5.gin", suite], [("MODEL_DIR", "/tmp/x")])
  assert set(found.suite.recipes) <= set(RECIPES) and bool(found.suite.recipes) != bool(found.suite.layers)
  assert found.suite.seeds == (1 if found.suite.layers else 3)


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


@pytest.mark.sampled(1)
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
    "adafactor.gin", "adamw.gin", "adamw_scaled.gin", "lamb.gin", "lion.gin", "muon.gin"
  }  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_every_file_starts_with_a_header(name):
  lines = (shipped_folder() / name).read_text().splitlines()
  header = lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]
  assert len(header) >= 3
  assert any(word in "\n".join(header) for word in ("t5like ", "ncluded by"))
  assert any(word in "\n".join(header) for word in ("Required:", "Often changed:"))


@pytest.mark.parametrize(
  ("model", "recipe", "rows"),
  [("models/bert/tiny.gin", "finetune/bert.gin", 32), ("models/awd_lstm/tiny.gin", "finetune/ulmfit.gin", 64)],
)
def test_the_batch_size_of_a_head_is_one_setting(model, recipe, rows):
  task = {"HEAD_TASK": "'a_classification'", "EXAMPLES": "6400", "METRIC": "'accuracy'"}
  assert build_recipe(model, recipe, **task).batch_size == rows
  gin.clear_config()
  assert build_recipe(model, recipe, **task, HEAD_BATCH_SIZE="8").batch_size == 8
