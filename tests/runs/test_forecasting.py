"""A plan from Python: the numbers of `t5like plan`, without its options. Of the numbers themselves: tests/planning."""

import json

import pytest

from t5like.errors import UserError
from t5like.experiments.reading import read_experiment
from t5like.runs.forecast.forecasting import PlanSettings, plan, search_plan
from t5like.runs.training import dry_run

FILES = ["models/t5_1_1/small.gin", "objectives/span_corruption.gin", "runs/pretrain.gin"]


@pytest.mark.slow
def test_it_is_what_the_command_prints(t5like):
  experiment = read_experiment(FILES, [("MODEL_DIR", "planned")])
  found = plan(experiment, "h100x8", PlanSettings(price=2.0))
  options = ["plan", *(f"--gin_file={file}" for file in FILES), "--topology=h100x8", "--price=2"]
  assert found.text() + "\n" == t5like(*options).stdout
  assert found.fits and found.as_dict() == json.loads(t5like(*options, "--json").stdout)
  (forecast,) = found.forecasts
  assert found.price.dollars == pytest.approx(2.0 * 8 * forecast.seconds / 3600)
  with pytest.raises(UserError, match="invalid pue"):
    PlanSettings(pue=0.5)


@pytest.mark.slow
def test_a_search_finds_the_fastest_of_each_batch_size():
  found = search_plan(read_experiment(FILES, [("MODEL_DIR", "planned")]), "h100", [16, 32])
  assert set(found.best) == {16, 32} and found.fastest in found.found
  assert found.text().splitlines()[-1].startswith(("fastest: ", "with the same batch: "))
  assert len(found.as_dict()["found"]) == len(found.found)


def test_frozen_parameters_save_products_as_the_run_card_says(run_children_here, tmp_path):
  given = dict(TASK="snli", INIT_FROM=None, MODEL_DIR=str(tmp_path / "run"), CACHE_DIR=str(tmp_path), TRAIN_STEPS=10)
  files = ["models/t5_1_1/small.gin", "runs/finetune.gin"]
  whole, part = (read_experiment([*files, *more], **given) for more in ([], ["trainable/frozen_below.gin"]))
  (everything,), (frozen,) = (plan(each, "h200").forecasts for each in (whole, part))
  assert frozen.flops < 0.7 * everything.flops and frozen.time.seconds < everything.time.seconds
  assert dry_run(part).card.facts["model_flops"] == pytest.approx(10 * frozen.flops, rel=1e-6)
