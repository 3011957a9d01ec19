"""The measured results in the package agree with the tables in the READMEs and with the scale."""

import functools
import itertools
import re
import statistics
from pathlib import Path

import pytest

from t5like import configuration
from t5like.ablations.report.comparison import compare
from t5like.ablations.report.conclusions import check_conclusions
from t5like.ablations.report.data import read_export
from t5like.ablations.report.measures import ALL
from t5like.ablations.report.text import readme_table, score
from t5like.ablations.tables import RECIPES, TABLES
from t5like.cli.main import main
from t5like.experiments.reading import register_configurables

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text()
ABLATIONS_README = (REPOSITORY / "gin/ablations/README.md").read_text()


@pytest.fixture(scope="module")
def measured():
  return read_export("mini")


def test_tables_9_to_11_are_complete_and_the_readme_has_their_rows():
  measured = read_export("midi_tables_9_to_11")
  runs = {(result.recipe, result.seed) for result in measured.results}
  recipes = {recipe for number in (9, 10, 11) for recipe in TABLES[number].recipes}
  assert runs == {(recipe, seed) for recipe in recipes for seed in range(3)} and not measured.failures
  assert readme_table(compare(measured)) in ABLATIONS_README


def test_berts_table_5_is_complete_and_the_readme_has_its_rows():
  measured = read_export("midi_bert5")
  runs = {(result.recipe, result.seed) for result in measured.results}
  assert runs == {(recipe, seed) for recipe in TABLES["bert5"].recipes for seed in range(3)} and not measured.failures
  assert readme_table(compare(measured)) in ABLATIONS_README
  section = ABLATIONS_README.split("## BERT's Table 5 at midi scale")[1].split("\n## ")[0]
  losses = {recipe: [r.curve[-1][1] for r in measured.results if r.recipe == recipe] for recipe, _ in runs}
  assert {f"{x:.1f}" for x in losses["bert/bert_mlm_nsp"]} == {"5.6"} and "still 5.6" in section
  assert {f"{x:.2f}" for x in losses["bert/bert_mlm"]} <= {"2.84", "2.85", "2.86"} and "reach 2.85" in section


def test_berts_table_5_with_256_rows_is_reported_as_it_came_out():
  measured = read_export("midi_bert5_256")
  assert {(r.recipe, r.seed) for r in measured.results} == {(recipe, 0) for recipe in TABLES["bert5"].recipes}
  compared = compare(measured)
  assert readme_table(compared) in ABLATIONS_README
  assert {conclusion.verdict for conclusion in check_conclusions(compared)} == {"undecided"}
  section = ABLATIONS_README.split("### With 256 rows per batch")[1].split("\n## ")[0]
  base, masked, left_to_right = (
    next(r for r in measured.results if r.recipe == recipe) for recipe in TABLES["bert5"].recipes
  )
  for run, heldout in ((base, None), (masked, 2.95), (left_to_right, 6.13)):
    assert f"{run.curve[-1][1]:.2f}" in section
    assert heldout is None or (round(run.validation_loss, 2) == heldout and f"{heldout}" in section)
  rte, sst2 = "glue_rte_classification", "glue_sst2_classification"
  assert round(base.tasks[rte]["accuracy"] - masked.tasks[rte]["accuracy"], 1) == 6.9 and "by 6.9 points" in section
  assert round(masked.tasks[sst2]["accuracy"] - base.tasks[sst2]["accuracy"], 1) == 2.1 and "SST-2 by 2.1" in section


def test_barts_table_1_is_complete_and_the_readme_has_its_rows():
  measured = read_export("midi_bart1")
  runs = {(result.recipe, result.seed) for result in measured.results}
  assert runs == {(recipe, seed) for recipe in TABLES["bart1"].recipes for seed in range(3)} and not measured.failures
  compared = compare(measured)
  assert readme_table(compared) in ABLATIONS_README
  by_squad = {measure.name: measure.agreements["bart1"] for measure in compared.measures}
  found = [by_squad[f"SQuAD {score}"] for score in ("exact match", "F1")]
  assert {(each.clear, each.same, f"{each.correlation.spearman:+.2f}") for each in found} == {(19, 19, "+0.98")}
  section = ABLATIONS_README.split("## BART's Table 1 at midi scale")[1].split("\n## ")[0]
  assert "Spearman is +0.98" in section and "19 of the paper's 19" in section
  alone, left_to_right = check_conclusions(compared)
  assert (alone.verdict, left_to_right.verdict) == ("reproduced", "reproduced")
  assert (left_to_right.ours.holds_clearly, {pair.group for pair in left_to_right.evidence}) == (3, {"squad"})


def test_longer_fine_tuning_is_reported_as_it_came_out():
  measured = read_export("midi_squad_3500")
  assert len(measured.results) == 21 and not measured.failures
  section = " ".join(ABLATIONS_README.split("## Longer fine-tuning at midi scale")[1].split("\n## ")[0].split())
  rows = {row.recipe: row.paper["squad"] for number in (5, 4, 2) for row in TABLES[number].rows}
  for recipe, of in itertools.groupby(measured.results, key=lambda result: result.recipe):
    scores = [result.scores["squad"] for result in of]
    assert f"{statistics.mean(scores):.2f} ± {statistics.stdev(scores):.2f} | {rows[recipe]:.2f} |" in section
  measures = {measure.name: measure.agreements[ALL] for measure in compare(measured).measures}
  found = measures["SQuAD exact match"]
  assert f"Of the {found.clear} clear differences between these rows, {found.same} have the paper's" in section
  assert found.reversed_clearly == 1 and "One is clearly reversed" in section


def test_longer_pre_training_is_reported_as_it_came_out():
  longer, midi = read_export("midi_24000"), read_export("midi")
  assert len(longer.results) == 12 and not longer.failures
  section = ABLATIONS_README.split("## Longer pre-training at midi scale")[1].split("\n## ")[0]
  rows = {row.recipe: row for number in (5, 2) for row in TABLES[number].rows}
  for recipe in {result.recipe for result in longer.results}:
    scores = [[r.scores["squad"] for r in runs.results if r.recipe == recipe] for runs in (midi, longer)]
    cells = [f"{statistics.mean(of):.2f} ± {statistics.stdev(of):.2f}" for of in scores]
    assert f"| {rows[recipe].name} | {cells[0]} | {cells[1]} | {rows[recipe].paper['squad']:.2f} |" in section
  found = {measure.name: measure.agreements[2] for measure in compare(longer).measures}["SQuAD exact match"]
  assert found.clear == 3 and {r.curve[-1][0] for r in longer.results} == {24000}


def test_five_tables_at_midi_scale_are_complete_and_the_readme_has_their_rows():
  measured = read_export("midi")
  runs = {(result.recipe, result.seed) for result in measured.results}
  assert runs == {
    (recipe, seed) for number in (2, 4, 5, 6, 7) for recipe in TABLES[number].recipes for seed in range(3)
  }
  assert [table.number for table in measured.tables] == [2, 4, 5, 6, 7] and not measured.failures
  comparison = compare(measured)
  assert readme_table(comparison) in ABLATIONS_README
  section = " ".join(ABLATIONS_README.split("## Results at midi scale")[1].split("\n## ")[0].split())
  found = next(measure for measure in comparison.measures if measure.name == "SQuAD exact match").agreements[ALL]
  low, high = found.interval
  text = f"Spearman is {found.correlation.spearman:+.2f} by exact match (95% interval {low:+.2f} to {high:+.2f})"
  assert text in section
  assert f"{found.clear} clear differences between two rows, ours have the same direction in {found.same}." in section


def test_every_row_of_the_five_tables_was_run_with_two_seeds(measured):
  tables = [2, 4, 5, 6, 7]
  assert [table.number for table in measured.tables] == tables and not measured.failures
  runs = {(result.recipe, result.seed) for result in measured.results}
  assert runs == {(recipe, seed) for number in tables for recipe in TABLES[number].recipes for seed in (0, 1)}


@pytest.mark.slow
def test_the_readme_of_the_ablations_has_all_rows(measured):
  comparison = compare(measured)
  assert readme_table(comparison) in ABLATIONS_README
  section = " ".join(ABLATIONS_README.split("## Results at mini scale")[1].split("\n## ")[0].split())
  spreads = {group: f"{spread.deviation:.2f}" for group, spread in comparison.spreads.items()}
  assert f"(GLUE {spreads['glue']}, SQuAD {spreads['squad']}, over all rows)" in section
  squad, glue = (comparison.correlations[group] for group in ("squad", "glue"))
  assert f"(Spearman {squad.spearman:+.2f}, p = {squad.spearman_p:.3f})" in section
  assert f"({glue.spearman:+.2f}, p = {glue.spearman_p:.2f})" in section


def test_the_readme_has_an_excerpt():
  comparison = compare(read_export("midi"))
  section = README.split("## Ablations\n")[1].split("\n## ")[0]
  header, _, *rows, last = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
  assert header[0].startswith("SQuAD") and rows
  cells = {row.name: row.cells["squad"] for table in comparison.tables for row in table.own_rows}
  for name, ours, paper in rows:
    assert (ours, paper) == (score(cells[name]), f"{cells[name].paper:.2f}")
  squad = comparison.correlations["squad"]
  assert (
    f"all {squad.n} recipes" in last[0]
    and last[1] == f"*{squad.spearman:+.2f}, p < 0.001*"
    and squad.spearman_p < 0.001
  )


@pytest.mark.parametrize("name", ["mini", "midi", "midi_tables_9_to_11"])
def test_the_scale_has_not_changed(name):
  """Other steps or sizes would need new results."""
  measured = read_export(name)
  register_configurables()

  @functools.cache  # for all seeds
  def configured(recipe):
    configuration.load(
      [RECIPES[recipe].gin_file, f"ablations/scales/{measured.sweep['scale']}.gin"],
      [("MODEL_DIR", "unused"), *map(tuple, measured.sweep["gin"])],
    )
    return configuration.build("scale"), configuration.build("train")

  for result in measured.results:
    scale, experiment = configured(result.recipe)
    mixed = RECIPES[result.recipe].mixing is not None
    steps = scale.pretrain_steps + mixed * scale.finetune_steps
    assert result.curve[-1][0] == steps
    evaluated = [metrics["best_step"] for metrics in result.tasks.values()]
    period, last = (scale.mixed_eval_period, steps) if mixed else (scale.finetune_eval_period, scale.finetune_steps)
    assert {step % period for step in evaluated} == {0} and max(evaluated) <= last
    lengths = experiment.objective.lengths(experiment.lengths["inputs"])
    tokens = (
      (scale.mixed_batch_size if mixed else scale.pretrain_batch_size) * (lengths.inputs + lengths.targets) * steps
    )
    assert result.cost["pretraining"].tokens == (0 if RECIPES[result.recipe].finetuning else tokens)


MEASURED = sorted((REPOSITORY / "t5like/ablations/measured").glob("*.json"))


@pytest.mark.parametrize("file", MEASURED, ids=lambda file: file.stem)
def test_a_file_is_small_contains_no_paths_and_is_offered(file, capsys):
  text = file.read_text()
  assert not re.search(r'"[^"]*(/home|/root|/tmp|/work)', text)
  assert len(text) < 200_000
  with pytest.raises(SystemExit):
    main(["ablate", "--help"])
  assert file.stem in re.split(r"[\s,:]+", capsys.readouterr().out)


@pytest.mark.slow
def test_the_report_can_be_written_from_the_file(tmp_path, capsys):
  assert main(["ablate", "--report", "--from=mini", f"--output={tmp_path}"]) == 0
  assert "42 finished runs of 21 recipes" in capsys.readouterr().out
  assert (tmp_path / "report.html").is_file()
  assert main(["ablate", "--report", "--from=maxi", f"--output={tmp_path}"]) == 2
  assert "mini" in capsys.readouterr().err
