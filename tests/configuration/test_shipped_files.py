"""Every gin file that ships is read, resolved and built, and has a header."""

import gin
import pytest

from t5like import configuration
from t5like.cli.gin_flags import register_configurables
from t5like.configuration.search_path import shipped_folder
from t5like.models.config import TransformerConfig
from t5like.objectives import CATALOGUE

FILES = sorted(str(p.relative_to(shipped_folder())) for p in shipped_folder().rglob("*.gin"))
# Files that others include: a family's base has no sizes, train.gin no task.
BASES = {f for f in FILES if f.split("/")[-1] == f"{f.split('/')[-2]}.gin"} | {
  "models/transformer.gin",
  "runs/train.gin",
}
# Files laid over a size file.
OVERLAYS = [f for f in FILES if "/architectures/" in f]
MODELS = [f for f in FILES if f.startswith("models/") and f not in BASES and f not in OVERLAYS]
OBJECTIVES = [f for f in FILES if f.startswith("objectives/")]
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
def test_every_architecture_builds_over_a_size(overlay):
  assert build("models/t5/base.gin", overlay, "objectives/span_corruption.gin", "runs/pretrain.gin").model.config


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_file_builds_an_objective(objective):
  name = objective.removeprefix("objectives/").removesuffix(".gin")
  assert build("models/t5/tiny.gin", objective, "runs/pretrain.gin").objective == CATALOGUE[name]


def test_every_objective_has_a_file():
  assert {f"objectives/{name}.gin" for name in CATALOGUE} == set(OBJECTIVES)


@pytest.mark.parametrize("run", RUNS)
def test_every_run_file_builds_a_run(run):
  whole = "include 'models/" in (shipped_folder() / run).read_text()
  if "finetune" in run:
    assert build(*([] if whole else ["models/t5/tiny.gin"]), run).objective is None
  else:
    assert build(*([] if whole else ["models/t5/tiny.gin", "objectives/span_corruption.gin"]), run).objective


@pytest.mark.parametrize("name", FILES)
def test_every_file_starts_with_a_header(name):
  lines = (shipped_folder() / name).read_text().splitlines()
  header = lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]
  assert len(header) >= 3
  assert any(word in "\n".join(header) for word in ("t5like ", "ncluded by"))
  assert any(word in "\n".join(header) for word in ("Required:", "Often changed:"))
