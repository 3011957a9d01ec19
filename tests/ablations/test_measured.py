"""What we measured and show: the file in the package, the table in the README and the scale agree."""

import re
from pathlib import Path

import pytest

from t5like import configuration
from t5like.ablations.report.comparison import compare
from t5like.ablations.report.data import read_export
from t5like.ablations.report.text import readme_table
from t5like.ablations.tables import RECIPES, TABLES
from t5like.cli.main import main
from t5like.experiments.reading import register_configurables

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text()


@pytest.fixture(scope="module")
def measured():
  return read_export("mini")


def test_every_row_of_the_five_tables_was_run_with_two_seeds(measured):
  tables = [2, 4, 5, 6, 7]
  assert [table.number for table in measured.tables] == tables and not measured.failures
  runs = {(result.recipe, result.seed) for result in measured.results}
  assert runs == {(recipe, seed) for number in tables for recipe in TABLES[number].recipes for seed in (0, 1)}


def test_the_readme_shows_it(measured):
  comparison = compare(measured)
  assert readme_table(comparison) in README
  section = " ".join(README.split("## The paper's tables at mini scale")[1].split("\n## ")[0].split())
  spreads = {group: f"{spread.deviation:.2f}" for group, spread in comparison.spreads.items()}
  assert f"(GLUE {spreads['glue']}, SQuAD {spreads['squad']}, over all rows)" in section
  squad, glue = (comparison.correlations[group] for group in ("squad", "glue"))
  assert f"(Spearman {squad.spearman:+.2f}, p = {squad.spearman_p:.3f})" in section
  assert f"({glue.spearman:+.2f}, p = {glue.spearman_p:.2f})" in section


def test_the_scale_is_still_what_it_was(measured):
  """Other steps or sizes would need other results."""
  register_configurables()
  for result in measured.results:
    configuration.load(
      [RECIPES[result.recipe].gin_file, "ablations/scales/mini.gin"],
      [("MODEL_DIR", "unused"), *map(tuple, measured.sweep["gin"])],
    )
    scale, experiment = configuration.build("scale"), configuration.build("train")
    assert result.curve[-1][0] == scale.pretrain_steps
    assert {metrics["best_step"] % scale.finetune_eval_period for metrics in result.tasks.values()} == {0}
    assert max(metrics["best_step"] for metrics in result.tasks.values()) <= scale.finetune_steps
    lengths = experiment.objective.lengths(experiment.lengths["inputs"])
    tokens = scale.pretrain_batch_size * (lengths.inputs + lengths.targets) * scale.pretrain_steps
    assert result.cost["pretraining"].tokens == tokens


def test_it_names_no_machine(measured):
  text = (REPOSITORY / "t5like/ablations/measured/mini.json").read_text()
  assert not re.search(r'"[^"]*(/home|/root|/tmp|/work)', text)
  assert len(text) < 100_000


def test_its_report_is_a_command(tmp_path, capsys):
  assert main(["ablate", "--report", "--from=mini", f"--output={tmp_path}"]) == 0
  assert "42 finished runs of 21 recipes" in capsys.readouterr().out
  assert (tmp_path / "report.html").is_file()
  assert main(["ablate", "--report", "--from=maxi", f"--output={tmp_path}"]) == 2
  assert "mini" in capsys.readouterr().err
