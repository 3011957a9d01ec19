"""Comparison with the paper: differences, ties, rankings and conclusions of small sweeps, computed by hand."""

import csv
import dataclasses
import io
import json
import math

import pytest
from report_sweeps import synthetic_result, write_sweep

from t5like.ablations.report.columns import column_score
from t5like.ablations.report.comparison import compare
from t5like.ablations.report.conclusions import (
  CONCLUSIONS,
  CheckedConclusion,
  Conclusion,
  Count,
  PairEvidence,
  check_conclusions,
)
from t5like.ablations.report.costs import EnergyAssumptions, assumptions_text, recipe_costs, total_cost
from t5like.ablations.report.data import ReportData, read_export, read_exports, read_sweep, write_export
from t5like.ablations.report.examples import TEXT, examples
from t5like.ablations.report.summary import summarize
from t5like.ablations.report.text import cost_line, csv_text, markdown, readme_table, to_decide_text
from t5like.ablations.sweep.results import Cost, write_result
from t5like.ablations.tables import BASELINE_RECIPE, GROUPS, STANDARD_DEVIATION, TABLES
from t5like.errors import UserError

ED = "encoder_decoder/"
# The scores of up to two seeds of the recipes in Table 7.
GLUE = {
  BASELINE_RECIPE: (50.0, 52.0),
  ED + "span_corruption_2": (56.0, 54.0),
  ED + "span_corruption": (52.0, 52.0),
  ED + "span_corruption_5": (53.0,),
  ED + "span_corruption_10": (46.0, 46.0),
}
SPREAD = math.sqrt((2 + 2 + 0 + 0) / 3)  # of the four recipes with two seeds, whose means are equal


def by_hand(scores=GLUE, tables=(7,), group="glue", **sweep) -> ReportData:
  results = [
    synthetic_result(recipe, seed, scores={group: score})
    for recipe, seeds in scores.items()
    for seed, score in enumerate(seeds)
  ]
  return ReportData({"tables": list(tables), "scale": "mini", "seeds": 2, **sweep}, results, [])


def test_differences_and_ties_of_a_table():
  comparison = compare(by_hand())
  [table] = comparison.tables
  cells = {row.name: row.cells["glue"] for row in table.rows}
  assert comparison.spreads["glue"].deviation == pytest.approx(SPREAD)
  assert comparison.spreads["glue"].degrees_of_freedom == 8 - 4 - 1
  assert {name: cell.mean for name, cell in cells.items()} == {"i.i.d.": 51, "2": 55, "3": 52, "5": 53, "10": 46}
  assert cells["2"].difference == 4 and cells["2"].in_spreads == pytest.approx(4 / SPREAD)
  assert cells["10"].paper_in_spreads == pytest.approx((82.85 - 83.28) / 0.235)
  assert {name for name, cell in cells.items() if cell.tie} == {"2", "5"}  # 55 less two spreads is 52.69
  assert {name for name, cell in cells.items() if cell.paper_tie} == {"i.i.d.", "2", "3", "5"}
  assert cells["2"].deviation == pytest.approx(math.sqrt(2)) and cells["5"].deviation is None
  assert table.groups == ["glue"] and table.not_run == ["cnndm", "squad", "superglue"]


def test_the_ranking_of_rows_against_the_papers():
  [table] = compare(by_hand()).tables
  found = table.correlations["glue"]  # only "3" and "5" are swapped
  assert (found.n, found.spearman, found.kendall) == (5, pytest.approx(0.9), pytest.approx(0.8))
  assert found.spearman_p == found.kendall_p == pytest.approx(5 / 120)


def test_the_overall_ranking_leaves_out_the_scores_of_other_papers():
  """SQuAD in BART's Table 1 is F1 of another model."""
  scores = {**GLUE, ED + "bart_token_masking": (40.0, 41.0), ED + "bart_token_deletion": (42.0, 44.0)}
  comparison = compare(by_hand(scores, tables=(7, "bart1"), group="squad"))
  assert [table.correlations["squad"] is not None for table in comparison.tables] == [True, False]  # two rows
  assert comparison.correlations["squad"] == comparison.tables[0].correlations["squad"]


def test_conclusions_are_counted():
  spans, ten, iid = check_conclusions(compare(by_hand()))
  # 55 - 52 is more than two spreads.
  assert (spans.ours.holds, spans.ours.of, spans.verdict) == (0, 1, "not reproduced")
  assert (ten.ours.holds, ten.ours.of, ten.ours.holds_clearly, ten.verdict) == (3, 3, 3, "reproduced")
  # Length 5 was run with one seed, 10 with two.
  assert ten.evidence[2].difference == 7 and ten.evidence[2].error == pytest.approx(SPREAD * math.sqrt(1 + 1 / 2))
  assert (iid.ours.holds, iid.ours.holds_clearly, iid.verdict) == (1, 0, "undecided")  # 52 - 51 may be chance
  # The paper's own: length 3 is no tie in CNN/DM; 10 is not below 3 in SQuAD (both 81.84) nor below 5 in CNN/DM.
  assert [(c.paper.holds, c.paper.of) for c in (spans, ten, iid)] == [(3, 4), (10, 12), (4, 4)]


def test_a_sweep_with_the_papers_scores_agrees_with_it():
  results = []
  tables = (5, 6, 7, 9, 11)
  papers = {row.recipe: row.paper for number in tables for row in TABLES[number].rows}
  assert len(papers) % 2 == 1
  for n, (recipe, paper) in enumerate(papers.items()):
    # Two seeds whose deviation is the paper's, in opposite directions: no seed is better. That of the first recipe is
    # 0, which is the degree of freedom that the effect of the seeds takes.
    for seed, sign in enumerate((-1, 1)):
      sign *= 0 if n == 0 else (-1) ** n
      scores = {group: paper[group] + sign * STANDARD_DEVIATION[group] / math.sqrt(2) for group in GROUPS}
      results.append(synthetic_result(recipe, seed, scores=scores))
  comparison = compare(ReportData({"tables": tables, "scale": "paper", "seeds": 2}, results, []))
  for table in comparison.tables:
    for row in table.rows:
      for cell in row.cells.values():
        assert cell.in_spreads == pytest.approx(cell.paper_in_spreads, abs=1e-6) and cell.tie == cell.paper_tie
    for found in table.correlations.values():
      assert found.spearman == found.kendall == pytest.approx(1)
  # Only the paper's own ranking of Table 11's seven rows agrees as well.
  assert comparison.tables[-1].correlations["glue"].spearman_p == pytest.approx(1 / math.factorial(7))
  assert all(checked.ours == checked.paper for checked in check_conclusions(comparison))
  summary = summarize(comparison)
  clear = sum(
    abs(cell.paper_in_spreads) > 2 + 1e-6
    for cells in {row.recipe: row.cells for table in comparison.tables for row in table.rows}.values()
    for cell in cells.values()
  )
  assert f"{clear} clear differences" in summary.findings[0]
  expected = f"same sign in {clear}, {clear} of them beyond our own band, and the opposite sign in 0"
  assert expected in summary.findings[0]
  assert not summary.missing and not summary.cautions


def test_every_conclusion_holds_in_most_of_the_papers_own_comparisons():
  data = ReportData({"tables": list(TABLES), "scale": "mini", "seeds": 2}, [synthetic_result(BASELINE_RECIPE, 0)], [])
  checked = check_conclusions(compare(data))
  assert len(checked) == len(CONCLUSIONS)
  assert all(claim.paper.holds >= 0.75 * claim.paper.of > 0 for claim in checked)


def test_a_table_without_the_baseline_is_still_compared_to_it():
  scores = {ED + "prefix_lm": (40.0, 42.0), ED + "deshuffling": (32.0, 30.0), BASELINE_RECIPE: (49.0, 51.0)}
  comparison = compare(by_hand(scores, tables=(4,)))
  [table] = comparison.tables
  *own, reference = table.rows
  assert reference.reference and reference.recipe == BASELINE_RECIPE and not reference.cells["glue"].tie
  assert own[0].cells["glue"].difference == -9 and own[0].cells["glue"].tie
  assert own[1].results == [] and own[1].cells["glue"].mean is None  # BERT-style was not run
  assert table.correlations["glue"] is None  # two rows are too few


def test_one_seed_has_no_spread_and_no_ties():
  scores = {recipe: seeds[:1] for recipe, seeds in GLUE.items()}
  comparison = compare(by_hand(scores))
  cells = [row.cells["glue"] for row in comparison.tables[0].rows]
  assert comparison.spreads["glue"] is None
  assert all(cell.in_spreads is None and not cell.tie and cell.difference is not None for cell in cells)
  assert any("standard deviation over seeds is unknown" in text for text in summarize(comparison).cautions)
  assert check_conclusions(comparison)[0].verdict == "not run"  # ties need a standard deviation


def test_missing_runs_are_reported(tmp_path):
  missing = [(ED + "mass_style", 0), (ED + "mass_style", 1), (ED + "iid_drop_tokens", 1)]
  folder = write_sweep(tmp_path, tables=(5,), without=missing, failed=[(ED + "bert_style", 1)])
  data = read_sweep(folder)
  text = "\n".join(summarize(compare(data)).missing)
  assert f"Not run: {ED}mass_style." in text and f"{ED}iid_drop_tokens (seed 1)" in text
  assert f"Failed: {ED}bert_style, seed 1: RESOURCE_EXHAUSTED: out of memory" in text and "second line" not in text
  assert "No run was scored on CNN/DM and SuperGLUE" in text
  rows = [line for line in markdown(compare(data), EnergyAssumptions()).splitlines() if line.startswith("| MASS-style")]
  assert rows == ["| MASS-style | – | 82.32 | – | −4.1 | – | 80.10 | – | −2.3 | not run |"]


def test_runs_at_another_scale_or_on_other_tasks_are_left_out(tmp_path):
  folder = write_sweep(tmp_path, tables=(7,))
  write_result(folder, synthetic_result(ED + "span_corruption_2", 0, scale="small"))
  other = synthetic_result(ED + "span_corruption_5", 1)
  write_result(
    folder, dataclasses.replace(other, tasks={"glue_rte": {"accuracy": 60.0}, "squad": other.tasks["squad"]})
  )
  write_result(folder, synthetic_result(ED + "span_corruption_10", 0, scores={"glue": float("nan"), "squad": 20.0}))
  data = read_sweep(folder)
  rows = {row.name: row.cells for row in compare(data).tables[0].rows}
  assert list(rows["2"]["glue"].seeds) == [1]
  assert list(rows["5"]["glue"].seeds) == [0] and list(rows["5"]["squad"].seeds) == [0, 1]
  assert list(rows["10"]["glue"].seeds) == [1] and list(rows["10"]["squad"].seeds) == [0, 1]
  assert len(data.left_out) == 3 and all(
    f"Left out: {text}." in summarize(compare(data)).missing for text in data.left_out
  )


def test_runs_are_in_the_order_of_the_tables_and_a_run_that_finished_has_not_failed(tmp_path):
  folder = write_sweep(tmp_path, tables=(7,), failed=[(ED + "span_corruption_2", 1)])
  result = synthetic_result(ED + "span_corruption_2", 1)
  write_result(folder, result)
  data = read_sweep(folder)
  assert [(r.recipe, r.seed) for r in data.results] == [(recipe, seed) for recipe in GLUE for seed in (0, 1)]
  assert data.failures == []


def test_tasks_of_superglue_are_not_those_of_glue_with_the_same_name():
  result = synthetic_result(BASELINE_RECIPE, 0)
  tasks = {"super_glue_rte": {"accuracy": 1.0}, "squad": {"em": 2.0, "f1": 3.0}}
  result = dataclasses.replace(result, tasks=tasks)
  assert column_score(result, "rte") is None and column_score(result, "squad_f1") == 3.0
  result = dataclasses.replace(result, tasks={**tasks, "glue_rte": {"accuracy": 4.0}}, validation_loss=2.0)
  assert column_score(result, "rte") == 4.0 and column_score(result, "perplexity") == math.exp(2.0)


def test_custom_recipes_and_tasks_are_shown():
  scores = {**GLUE, "own/emoji_noise": (58.0, 60.0), ED + "no_pretraining": (30.0, 31.0)}
  first, seventh, own = compare(by_hand(scores)).tables
  assert [row.name for row in first.rows] == ["Baseline", "No pre-training"] and seventh.number == 7
  assert [row.recipe for row in own.rows] == ["own/emoji_noise", BASELINE_RECIPE]
  assert own.rows[0].cells["glue"].difference == 8 and own.rows[0].cells["glue"].paper is None
  [table] = compare(by_hand(group="other")).tables
  assert table.groups == ["other"] and table.rows[1].cells["other"].difference == 4
  assert [checked.verdict for checked in check_conclusions(compare(by_hand(group="other")))] == ["not run"] * 3
  assert "| row | other tasks ours |" in markdown(compare(by_hand(group="other")), EnergyAssumptions())


def test_an_export_gives_the_same_report_and_contains_no_paths(tmp_path):
  data = read_sweep(write_sweep(tmp_path / "sweep", tables=(5, 7), failed=[(ED + "mass_style", 0)]))
  file = tmp_path / "measured" / "mini.json"
  write_export(file, data)
  text = file.read_text()
  assert "/somewhere" not in text and "texts.jsonl" in text and "t5like train" not in text and "one.py" not in text
  assert len(text) < 3000 * len(data.results)
  again = read_export(file)
  assert csv_text(compare(again)) == csv_text(compare(data))
  assert summarize(compare(again)).missing == summarize(compare(data)).missing
  write_export(tmp_path / "twice.json", again)
  assert (tmp_path / "twice.json").read_text() == text


@pytest.mark.parametrize(
  "text, message",
  [
    ("{", "cannot read"),
    ("[]", "expected a JSON object"),
    ('{"format": 9, "sweep": {}}', "not an exported sweep of format 1"),
    ('{"format": 1, "sweep": {"scale": "mini"}, "results": []}', "no 'tables' of the sweep"),
    (
      '{"format": 1, "sweep": {"scale": "mini", "tables": [7]}, "results": [{"recipe": "x"}]}',
      "not a result file of a sweep",
    ),
    (
      '{"format": 1, "sweep": {"scale": "mini", "tables": [7]}, "results": '
      '[{"recipe": "x", "cost": {}, "curve": [], "scores": {"glue": "high"}, "tasks": {}}]}',
      "not a result file of a sweep",
    ),
    ('{"format": 1, "sweep": {"scale": "mini", "tables": [7]}, "results": 7}', "invalid runs"),
    ('{"format": 1, "sweep": {"scale": "mini", "tables": 7}, "results": []}', "no 'tables' of the sweep"),
    ('{"format": 1, "sweep": {"scale": "mini", "tables": [7]}, "results": []}', "no finished runs at mini scale"),
  ],
)
def test_an_invalid_export_is_rejected(tmp_path, text, message):
  (tmp_path / "x.json").write_text(text)
  with pytest.raises(UserError, match=message):
    read_export(tmp_path / "x.json")


def test_parts_of_a_sweep_are_joined(tmp_path):
  """The first has the seeds 0 of all runs, the second has the others."""
  data = read_sweep(write_sweep(tmp_path / "sweep", tables=(5, 7)))
  files = [tmp_path / "a.json", tmp_path / "b.json"]
  for file, (tables, seeds) in zip(files, (([7], (0,)), ([7, 5], (1, 2))), strict=True):
    results = [result for result in data.results if result.seed in seeds]
    write_export(file, dataclasses.replace(data, sweep={**data.sweep, "tables": tables}, results=results))
  joined = read_exports(files)
  assert len(joined.results) == len(data.results) and joined.sweep["tables"] == [5, 7]
  assert csv_text(compare(joined)) == csv_text(compare(data))
  assert summarize(compare(joined)).missing == summarize(compare(data)).missing
  with pytest.raises(UserError, match="duplicate runs"):
    read_exports([files[0], files[0]])
  write_export(files[1], dataclasses.replace(data, sweep={**data.sweep, "gin": [["PRETRAIN_STEPS", "7"]]}))
  with pytest.raises(UserError, match="not parts of one sweep") as caught:
    read_exports(files)
  assert "PRETRAIN_STEPS" in str(caught.value)


def test_only_one_part_may_have_a_recipe_of_the_user(tmp_path):
  data = by_hand(own={}, recipe_digests={})
  mine = {"own": {"own/mine": "mine.gin"}, "recipe_digests": {"own/mine": "d1"}}
  parts = [
    data,
    dataclasses.replace(
      data, sweep={**data.sweep, **mine}, results=[synthetic_result("own/mine", 0, scores={"glue": 1.0})]
    ),
    dataclasses.replace(
      data,
      sweep={**data.sweep, **mine, "recipe_digests": {"own/mine": "d2"}},
      results=[synthetic_result("own/mine", 1, scores={"glue": 1.0})],
    ),
  ]
  files = [tmp_path / f"{name}.json" for name in "abc"]
  for file, part in zip(files, parts, strict=True):
    write_export(file, part)
  joined = read_exports(files[:2])
  assert joined.sweep["own"] == {"own/mine": "mine.gin"} and joined.sweep["recipe_digests"] == {"own/mine": "d1"}
  assert {r.recipe for r in joined.results} == {*GLUE, "own/mine"}
  with pytest.raises(UserError, match="not parts of one sweep") as caught:
    read_exports(files)
  assert "own/mine" in str(caught.value)


def test_seeds_that_cannot_decide_are_not_asked_for():
  """0.8 deviations are noise with two seeds; with forty they are not, but stay below two deviations of a run."""

  def to_decide(seeds):
    scores = {recipe: [9.0, 11.0] * (seeds // 2) for recipe in GLUE}
    scores[ED + "span_corruption"] = [9.8, 11.8] * (seeds // 2)
    scores[BASELINE_RECIPE] = [11.0, 9.0] * (seeds // 2)  # other seeds are good: not what all runs have in common
    checked = check_conclusions(compare(by_hand(scores)))
    return next(to_decide_text(c) for c in checked if c.conclusion.text == "Spans of length 3 beat i.i.d. corruption")

  assert "seeds tell the difference" in to_decide(2)
  assert "is not chance, but below 2 standard deviations of a run" in to_decide(40)


def test_a_metric_that_is_not_a_number_leaves_its_task_out(tmp_path):
  folder = write_sweep(tmp_path, tables=(7,))
  result = synthetic_result(ED + "span_corruption_2", 0)
  tasks = {**result.tasks, "glue_rte": {"accuracy": float("nan"), "best_step": 1}}
  write_result(folder, dataclasses.replace(result, tasks=tasks, losses={"squad": float("inf")}))
  data = read_sweep(folder)
  compare(data)
  name = "encoder_decoder.span_corruption_2-seed0"
  assert data.left_out[0] == f"{name}: a metric of glue_rte is not a number"
  assert data.left_out[1].startswith(f"{name}: its glue score is over glue_cola, glue_sst2, that of most runs over")
  kept = next(r for r in data.results if r.recipe == result.recipe and r.seed == 0)
  assert "glue_rte" not in kept.tasks and kept.losses == {} and "squad" in kept.tasks
  write_export(tmp_path / "x.json", data)
  assert csv_text(compare(read_export(tmp_path / "x.json"))) == csv_text(compare(data))


@pytest.mark.parametrize(
  "changes",
  [
    {"seed": "0"}, {"seed": True}, {"version": None}, {"recipe": None}, {"validation_loss": "a"}, {"commands": None},
    {"commands": [1]}, {"example": ["objective", "inputs", "targets"]}, {"example": dict.fromkeys(("objective",
    "inputs", "targets"), 1)}, {"cost": {"total": {"device": None, "devices": 1, "device_seconds": 1.0,
    "model_flops": 1.0, "tokens": 1}}}, {"scores": []},
  ],
)  # fmt: skip
def test_a_result_of_wrong_types_is_rejected(tmp_path, changes):
  folder = write_sweep(tmp_path, tables=(7,))
  file = next((folder / "results").glob("*.json"))
  file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
  with pytest.raises(UserError, match="not a result file of a sweep") as caught:
    read_sweep(folder)
  assert str(file) in str(caught.value)


@pytest.mark.parametrize("field, value", [("seeds", None), ("recipes", None), ("tables", [[1]]), ("tables", [None])])
def test_a_sweep_of_wrong_types_is_rejected(tmp_path, field, value):
  folder = write_sweep(tmp_path, tables=(7,))
  (folder / "sweep.json").write_text(json.dumps({**json.loads((folder / "sweep.json").read_text()), field: value}))
  with pytest.raises(UserError, match=f"invalid '{field}' of the sweep"):
    read_sweep(folder)


def test_a_folder_among_the_results_is_an_error(tmp_path):
  folder = write_sweep(tmp_path, tables=(7,))
  (folder / "results" / "x.json").mkdir()
  with pytest.raises(UserError, match="cannot read a file of the sweep"):
    read_sweep(folder)


def test_duplicate_runs_are_rejected(tmp_path):
  data = by_hand()
  write_export(tmp_path / "x.json", dataclasses.replace(data, results=[*data.results, data.results[0]]))
  with pytest.raises(UserError, match="duplicate runs"):
    read_export(tmp_path / "x.json")


def test_the_csv_has_every_row_and_group():
  lines = list(csv.DictReader(io.StringIO(csv_text(compare(by_hand())))))
  assert len(lines) == 5 * 4
  two = next(line for line in lines if line["row"] == "2" and line["group"] == "glue")
  assert (two["mean"], two["scores"], two["paper"], two["tie"]) == ("55", "0:56 1:54", "83.54", "1")
  assert float(two["difference_in_spreads"]) == pytest.approx(4 / SPREAD, rel=1e-5)
  absent = next(line for line in lines if line["row"] == "2" and line["group"] == "squad")
  assert (absent["mean"], absent["seeds"], absent["tie"], absent["paper"]) == ("", "0", "", "82.09")


def test_the_table_for_a_readme():
  assert readme_table(compare(by_hand())).splitlines() == [
    "|  | GLUE ours | GLUE paper |",
    "| :--- | ---: | ---: |",
    "| **Table 7: Lengths of corrupted spans** |  |  |",
    "| i.i.d. | 51.00 ± 1.41 | **83.28** |",
    "| 2 | **55.00 ± 1.41** | **83.54** |",
    "| 3 | 52.00 ± 0.00 | **83.49** |",
    "| 5 | **53.00** | **83.40** |",
    "| 10 | 46.00 ± 0.00 | 82.85 |",
    "| *rank correlation (Spearman, p)* | *+0.90, 0.042, n = 5* |  |",
  ]


def test_costs_are_summed_once_per_recipe():
  cost = {
    "pretraining": Cost("NVIDIA H200", 1, 3000.0, 4e15, 6000),
    "finetuning": Cost("NVIDIA H200", 1, 600.0, 1e15, 170),
    "total": Cost("NVIDIA H200", 1, 3600.0, 5e15, 6170),
  }
  results = [synthetic_result(BASELINE_RECIPE, seed, cost=cost) for seed in (0, 1)]
  assumptions = EnergyAssumptions(watts=500.0, pue=1.2, co2e=0.4)
  [one] = recipe_costs(results, assumptions)
  assert (one.runs, one.total.model_flops, one.total.tokens) == (2, 1e16, 12_340)
  assert cost_line(one)[1:4] == ["2", "10 P", "12,340"]  # formatted as in run cards
  assert one.hours("pretraining") == pytest.approx(6000 / 3600) and one.hours("total") == pytest.approx(2)
  assert one.kilowatt_hours == pytest.approx(2 * 0.5 * 1.2) and one.kilograms == pytest.approx(2 * 0.5 * 1.2 * 0.4)
  # 700 W of an H200 (data sheet), 85% of it drawn, 35% more for the host; PUE 1.1.
  [by_kind] = recipe_costs(results, EnergyAssumptions())
  assert by_kind.kilowatt_hours == pytest.approx(2 * 0.7 * 0.85 * 1.35 * 1.1)
  on_cpu = {part: dataclasses.replace(of_part, device="cpu") for part, of_part in cost.items()}
  results.append(synthetic_result(BASELINE_RECIPE, 2, cost=on_cpu))
  unknown = total_cost(results, EnergyAssumptions())
  assert unknown.runs == 3 and unknown.kilowatt_hours is None and unknown.kilograms is None
  text = assumptions_text(results, EnergyAssumptions())
  assert "803 W for NVIDIA H200" in text and "The power of cpu is unknown" in text


def test_examples_show_what_objectives_do():
  shown = {
    example.objective: example for example in examples(TABLES[2].recipes + TABLES[4].recipes + TABLES[7].recipes)
  }
  assert list(shown)[0] == "iid_replace_spans" and {"prefix_lm", "lm", "deshuffling", "span_corruption_10"} <= set(
    shown
  )
  assert shown["lm"].inputs == "" and shown["lm"].targets == TEXT
  prefix = shown["prefix_lm"]
  assert f"{prefix.inputs} {prefix.targets}" == TEXT and prefix.inputs
  assert sorted(shown["deshuffling"].inputs.split()) == sorted(TEXT.split()) and shown["deshuffling"].targets == TEXT
  for name, spans in (
    ("span_corruption_2", 5),
    ("span_corruption", 3),
    ("span_corruption_5", 2),
    ("span_corruption_10", 1),
  ):
    example = shown[name]  # 15% of 65 words are 10
    hidden = [part.split() for part in example.targets.replace("<", "\n<").splitlines() if part]
    assert sum(len(part) - 1 for part in hidden) == 10 and len(hidden) == spans + 1
    text = example.inputs
    for sentinel, *words in hidden[:-1]:
      text = text.replace(sentinel, " ".join(words))
    assert text == TEXT


def test_an_invalid_sweep_directory_is_rejected(tmp_path):
  with pytest.raises(UserError, match="no sweep in"):
    read_sweep(tmp_path)
  (tmp_path / "sweep.json").write_text(json.dumps({"tables": [8], "scale": "mini"}))
  write_result(tmp_path, synthetic_result(BASELINE_RECIPE, 0))
  with pytest.raises(UserError, match="unknown table 8"):
    compare(read_sweep(tmp_path))


CLAIM = Conclusion(2, "a beats b", above=(("a", "b"),))


@pytest.mark.parametrize(
  ("count", "verdict"),
  [
    (Count(0, 0), "not run"),
    (Count(3, 4), "undecided"),
    (Count(3, 4, holds_clearly=1), "reproduced"),
    (Count(7, 10, holds_clearly=1), "partly reproduced"),
    (Count(5, 10, holds_clearly=1), "partly reproduced"),
    (Count(4, 10, holds_clearly=1), "not reproduced"),
    (Count(9, 10, holds_clearly=8, fails_clearly=1), "partly reproduced"),
  ],
)
def test_verdicts(count, verdict):
  assert CheckedConclusion(CLAIM, count, Count(1, 1)).verdict == verdict


def test_the_open_comparison_that_needs_the_fewest_seeds_is_first():
  pairs = [PairEvidence("glue", "a", str(n), 1.0, 1.0, n, clear=n == 2) for n in (9, 2, 5)]
  assert [pair.seeds for pair in CheckedConclusion(CLAIM, Count(0, 3), Count(3, 3), pairs).open_pairs] == [5, 9]


@pytest.mark.parametrize(("replaced", "holds"), [(19.0, 2), (13.0, 0), (25.0, 2)])
def test_no_worse_than_allows_a_difference_within_the_band(replaced, holds):
  """Replaced spans against BERT- and MASS-style at 20, when a run has a standard deviation of 1."""
  scores = {recipe: (19.0, 21.0) for recipe in TABLES[5].recipes}
  scores["encoder_decoder/iid_replace_spans"] = (replaced - 1, replaced + 1)
  scores["encoder_decoder/iid_drop_tokens"] = (21.0, 19.0)  # seeds are paired: another order is the spread
  results = [
    synthetic_result(recipe, seed, scores={"squad": score})
    for recipe, seeds in scores.items()
    for seed, score in enumerate(seeds)
  ]
  data = ReportData({"tables": [5], "scale": "mini", "seeds": 2}, results, [])
  checked = check_conclusions(compare(data))
  (found,) = (each for each in checked if each.conclusion.text.startswith("Replacing spans"))
  assert (found.ours.holds, found.ours.of) == (holds, 2)
