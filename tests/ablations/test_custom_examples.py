"""Examples of objectives from a user's module, in the report of a sweep."""

import sys

import pytest
from report_sweeps import synthetic_result, write_sweep

from t5like.ablations.report.examples import TEXT
from t5like.ablations.sweep.collect import custom_example
from t5like.ablations.sweep.plan import plan_sweep
from t5like.ablations.sweep.results import write_result
from t5like.ablations.sweep.settings import SweepSettings
from t5like.objectives import CATALOGUE
from t5like.objectives.span_corruption import SpanCorruption

MODULE = """
from t5like.objectives import register_objective
from t5like.objectives.span_corruption import SpanCorruption

register_objective("half_corruption", SpanCorruption(noise_density=0.5))
"""
BROKEN = """
import gin

@gin.configurable
class Broken(SpanCorruption):
  name = "broken"

  def __call__(self, rows, draws, special):
    raise KeyError("no such key")
"""
BY_TASK = "import own_objectives\ninclude 'ablations/pretrain.gin'\nTASK = 'novels_half_corruption'\n"
BY_NAME = (
  "import own_objectives\ninclude 'ablations/pretrain.gin'\ninclude 'objectives/span_corruption.gin'\n"
  "NOISE_DENSITY = 0.5\n"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
  (tmp_path / "own_objectives.py").write_text(MODULE)
  (tmp_path / "by_task.gin").write_text(BY_TASK)
  (tmp_path / "by_name.gin").write_text(BY_NAME)
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  yield tmp_path
  sys.modules.pop("own_objectives", None)
  CATALOGUE.pop("half_corruption", None)


def test_a_sweep_that_cannot_train_is_refused_before_it_starts(folder, t5like):
  """A custom recipe whose objective raises, and a corpus to fine-tune on."""
  own = "import own_objectives\ninclude 'ablations/pretrain.gin'\ntrain.objective = @Broken()\n"
  (folder / "broken.gin").write_text(own)
  (folder / "own_objectives.py").write_text(MODULE + BROKEN)
  sweep = ["ablate", "--scale=smoke", f"--sweep_dir={folder}/sweep"]
  refused = t5like(*sweep, "--recipe=broken.gin", "--tasks=snli", status=2)
  assert "the objective broken fails: KeyError: 'no such key'" in refused.stderr and "token cache" not in refused.stdout
  refused = t5like(*sweep, "--table=4", "--tasks=novels", status=2)
  assert "cannot fine-tune on 'novels': it is a corpus" in refused.stderr and not (folder / "sweep/runs").exists()


@pytest.mark.parametrize("recipe", ["by_task", "by_name"])
def test_the_example_shows_the_objective_that_a_recipe_trains_with(folder, recipe):
  custom = {f"own/{recipe}": str(folder / f"{recipe}.gin")}
  (run,) = plan_sweep(folder / "sweep", SweepSettings([], [], "smoke", 1, ["snli"], [], custom)).runs({})
  found = custom_example(run.jobs[0])
  assert found["objective"] == "half_corruption"
  hidden = len(found["targets"].split()) - len([word for word in found["targets"].split() if word.startswith("<")])
  assert hidden == pytest.approx(0.5 * len(TEXT.split()), abs=1)


def test_examples_of_older_results_need_the_modules_on_the_command_line(folder, t5like):
  """Their runs recorded no example, and a report does not run code that only the sweep names."""
  write_sweep(folder, tables=(6,), seeds=1)
  write_result(folder, synthetic_result("own/half_corruption", 0))
  command = ["ablate", "--report", f"--sweep_dir={folder}", f"--output={folder / 'report'}"]
  t5like(*command)
  assert "| half_corruption |" not in (folder / "report/report.md").read_text()
  t5like(*command, "--task_modules=own_objectives")
  assert "| half_corruption |" in (folder / "report/report.md").read_text()
  assert CATALOGUE["half_corruption"] == SpanCorruption(noise_density=0.5)
