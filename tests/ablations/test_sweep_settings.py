"""Settings of a sweep, from the command line and sweep.json, and the devices that runs record."""

import json

import pytest

from t5like.ablations.sweep.collect import _devices
from t5like.ablations.sweep.plan import plan_sweep
from t5like.ablations.sweep.results import result_path
from t5like.ablations.sweep.settings import SweepSettings, complete_settings, read_settings, record_settings
from t5like.errors import UserError

SPANS, IID = "encoder_decoder/span_corruption", "encoder_decoder/iid_replace_spans"
EARLIER = {
  "tables": [7], "recipes": [SPANS, "own/mine"], "scale": "smoke", "seeds": 1, "tasks": ["snli"], "corpus": [],
  "own": {"own/mine": "/recipes/mine.gin"}, "task_modules": [], "gin": [["LAYERS", "1"]], "created": "2026-11-15",
}  # fmt: skip
NOTHING = SweepSettings([], [], "", 0, [], [])


def test_a_sweep_of_an_earlier_version_is_resumed(tmp_path):
  """Recipes and seeds are added; the file keeps its keys, and is not rewritten if nothing is new."""
  (tmp_path / "sweep.json").write_text(json.dumps(EARLIER))
  found = read_settings(tmp_path)
  assert found.custom_recipes == EARLIER["own"] and found.gin == [["LAYERS", "1"]]
  again = complete_settings(tmp_path, NOTHING)
  record_settings(tmp_path, again)
  assert json.loads((tmp_path / "sweep.json").read_text()) == EARLIER
  requested = complete_settings(tmp_path, SweepSettings([6], [], "", 2, [], []), [IID])
  assert (requested.tables, requested.recipes, requested.scale, requested.seeds) == ([6], [IID], "smoke", 2)
  record_settings(tmp_path, requested)
  assert json.loads((tmp_path / "sweep.json").read_text()) == EARLIER | {
    "tables": [6, 7], "recipes": [SPANS, "own/mine", IID], "seeds": 2,
  }  # fmt: skip


def test_a_plan_takes_defaults_from_the_scale(tmp_path):
  planner = plan_sweep(tmp_path, SweepSettings([7], [], "smoke", 0, [], []), ["3"])
  assert (planner.requested.recipes, planner.requested.seeds, planner.requested.tasks) == ([SPANS], 1, ["snli"])
  (run,) = planner.runs({})
  assert [job.name for job in run.jobs] == ["pretrain", "snli"]
  assert [job.steps for job in run.jobs] == [planner.scale.pretrain_steps, planner.scale.finetune_steps]
  assert planner.vocabulary == "tiny" and not list(tmp_path.iterdir())
  with pytest.raises(UserError, match="no table to reproduce"):
    plan_sweep(tmp_path, NOTHING)


def test_settings_of_multi_task_training_may_be_given_to_all_rows(tmp_path):
  given = SweepSettings([11], [], "smoke", 0, [], [], gin=[["MIXED_BATCH_SIZE", "4"], ["MIXED_EVAL_PERIOD", "3"]])
  planner = plan_sweep(tmp_path, given)
  assert planner.scale.mixed_batch_size == 4
  mixed, baseline = planner.experiment(f"{IID}/mixed_equal"), planner.experiment(IID)
  assert (mixed.batch_size, mixed.eval_period) == (4, 3) and mixed.lengths == baseline.lengths
  assert baseline.batch_size == planner.scale.pretrain_batch_size != 4


def test_an_invalid_recipe_can_be_added_to_a_sweep(tmp_path):
  """It fails as a run, not as the command: shared settings are read from the sweep's first recipe."""
  (tmp_path / "sweep.json").write_text(json.dumps(EARLIER | {"recipes": [SPANS], "own": {}}))
  broken = tmp_path / "broken.gin"
  broken.write_text(f"include 'ablations/recipes/{SPANS}.gin'\nTransformerConfig.positions = 'none of them'\n")
  given = SweepSettings([], [], "", 0, [], [], {"own/broken": str(broken)})
  planner = plan_sweep(tmp_path, given)
  assert planner.requested.recipes == ["own/broken"] and planner.settings.recipes == [SPANS, "own/broken"]
  assert {run.recipe for run in planner.runs({})} == {"own/broken"} and planner.vocabulary == "tiny"
  with pytest.raises(UserError, match="none of them"):
    planner.experiment("own/broken")


def test_a_recipe_that_has_results_may_not_change(tmp_path, monkeypatch):
  """Its seeds would be runs of two recipes; one that failed may be mended."""
  monkeypatch.syspath_prepend(tmp_path)
  (tmp_path / "objective_of_mine.py").write_text("SIZE = 1\n")
  recipe = tmp_path / "mine.gin"
  recipe.write_text(f"import objective_of_mine\ninclude 'ablations/recipes/{SPANS}.gin'\n")
  given = SweepSettings([], [], "smoke", 1, ["snli"], [], {"own/mine": str(recipe)})
  sweep = tmp_path / "sweep"
  sweep.mkdir()
  record_settings(sweep, complete_settings(sweep, given))
  (tmp_path / "objective_of_mine.py").write_text("SIZE = 2\n")
  record_settings(sweep, complete_settings(sweep, given))
  path = result_path(sweep, "own/mine", 0)
  path.parent.mkdir()
  path.write_text("{}")
  record_settings(sweep, complete_settings(sweep, NOTHING))
  for file in (tmp_path / "objective_of_mine.py", recipe):
    before = file.read_text()
    file.write_text(before + "# changed\n")
    with pytest.raises(UserError, match="the recipe own/mine has changed, and .* has results of it"):
      record_settings(sweep, complete_settings(sweep, given))
    file.write_text(before)
  record_settings(sweep, complete_settings(sweep, given))


def test_rows_may_be_custom_recipes(tmp_path):
  given = SweepSettings([7], [], "smoke", 1, ["snli"], [], {"own/a": "a.gin", "own/b": "b.gin"})
  assert complete_settings(tmp_path, given, ["own/b"]).recipes == ["own/b"]
  assert complete_settings(tmp_path, given, ["3", "own/b"]).recipes == [SPANS, "own/b"]
  assert complete_settings(tmp_path, given, ["3"]).recipes == [SPANS, "own/a", "own/b"]
  assert complete_settings(tmp_path, given).recipes[-2:] == ["own/a", "own/b"]
  with pytest.raises(UserError, match="no row 'own/c'"):
    complete_settings(tmp_path, given, ["own/c"])


def test_devices_are_read_from_the_run_card(tmp_path):
  (tmp_path / "run_card.txt").write_text("run\n  devices   8 x TPU v4 on 2 host(s), mesh data=8\n")
  assert _devices(tmp_path) == ("TPU v4", 8)  # of an earlier version
  (tmp_path / "run_card.json").write_text(json.dumps({"devices": {"kind": "cpu", "count": 4}, "model": "T5"}))
  assert _devices(tmp_path) == ("cpu", 4)
