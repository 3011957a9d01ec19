"""BERT's Tables 5 and 6: the paper's scores, the recipes at every scale, their jobs, and the report's verdicts."""

import dataclasses
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from report_sweeps import synthetic_result
from test_sweep import WITHOUT_TENSORFLOW, environment

from t5like import configuration
from t5like.ablations import bert
from t5like.ablations.benchmarks import parse_head_task
from t5like.ablations.report import write_report
from t5like.ablations.report.columns import PERPLEXITY, column_score
from t5like.ablations.report.comparison import compare
from t5like.ablations.report.conclusions import check_conclusions
from t5like.ablations.report.data import read_sweep
from t5like.ablations.report.examples import examples
from t5like.ablations.report.text import evidence_text
from t5like.ablations.sweep.plan import plan_sweep
from t5like.ablations.sweep.results import read_results, write_json, write_result
from t5like.ablations.sweep.settings import SweepSettings
from t5like.ablations.tables import RECIPES, TABLES
from t5like.errors import UserError
from t5like.experiments.compatibility import check_layout, phase_flops
from t5like.experiments.phases import Phase, run_phases
from t5like.experiments.reading import register_configurables
from t5like.objectives import CATALOGUE, Lengths, SpecialTokens
from t5like.runs.run_card import steps_per_phase
from t5like.vocabularies import load_vocabulary

REPOSITORY = Path(__file__).resolve().parents[2]
OF_BERT = [name for name in RECIPES if RECIPES[name].heads]
# Transcribed a second time: MNLI-m, QNLI, MRPC, SST-2, SQuAD; layers, width, heads, perplexity, MNLI-m, MRPC, SST-2.
TABLE_5 = """
84.4 88.4 86.7 92.7 88.5
83.9 84.9 86.5 92.6 87.9
82.1 84.3 77.5 92.1 77.8
"""
TABLE_6 = """
3  768 12 5.84 77.9 79.8 88.4
6  768  3 5.24 80.6 82.2 90.7
6  768 12 4.68 81.9 84.8 91.3
12  768 12 3.99 84.4 86.7 92.9
12 1024 16 3.54 85.7 86.9 93.3
24 1024 16 3.23 86.6 87.8 93.7
"""


def rows(text):
  return [tuple(map(float, line.split())) for line in text.strip().splitlines()]


def build(name, *files, **macros):
  register_configurables()
  given = [("MODEL_DIR", "unused"), *((macro, str(value)) for macro, value in macros.items())]
  configuration.load([RECIPES[name].gin_file, *files], given)
  return configuration.build("train")


def layers(config):
  return config.num_encoder_layers + config.num_decoder_layers


def test_the_scores_match_the_paper():
  assert [tuple(row.paper[c] for c in bert.TASK_COLUMNS) for row in TABLES["bert5"].rows] == rows(TABLE_5)
  by_size = [tuple(row.paper[c] for c in bert.SIZE_COLUMNS) for row in TABLES["bert6"].rows]
  assert by_size == [row[3:] for row in rows(TABLE_6)]
  assert [sizes for sizes, _ in bert.SIZES.values()] == [row[:3] for row in rows(TABLE_6)]
  shared = TABLES["bert5"].rows[0].paper, TABLES["bert6"].rows[3].paper  # the same model, fine-tuned again
  assert all(shared[0][column] == shared[1][column] for column in ("mnli_matched", "mrpc"))
  assert set(TABLES["bert5"].recipes) | set(TABLES["bert6"].recipes) == set(OF_BERT)


@pytest.mark.parametrize("name", OF_BERT)
def test_a_recipe_matches_the_paper(name):
  recipe, built = RECIPES[name], build(name)
  config = built.model.config
  depth, width, heads = bert.SIZES.get(name, bert.SIZES[bert.BASE])[0]
  found = layers(config), config.embed_dim, config.num_heads, config.mlp_dim, config.num_heads * config.head_dim
  assert found == (depth, width, heads, 4 * width, width)
  assert built.objective == CATALOGUE[recipe.objective]
  check_layout(built.model, built.objective)
  causal = name == bert.LEFT_TO_RIGHT
  assert built.model.batch_layout == ("decoder" if causal else "encoder")
  assert (config.norm_position, config.activation, config.positions) == ("post", "gelu", "learned")
  assert config.nsp_head == built.objective.labels_rows if not causal else not config.num_token_types
  assert (built.batch_size, built.steps, built.lengths) == (256, 10**6, {"inputs": 512})
  assert built.phases == [{"steps": 900_000, "lengths": {"inputs": 128}}]
  # The hours of its header, on 16 chips of 275 TFLOP/s at 40%, and the paper's scores.
  text = (REPOSITORY / "gin" / recipe.gin_file).read_text()
  header = " ".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
  short, long = run_phases(built, SpecialTokens.of(load_vocabulary(built.vocabulary)))
  flops = 9 * phase_flops(built.model, 256, short.lengths) + phase_flops(built.model, 256, long.lengths)
  hours = 100_000 * flops / (16 * 275e12 * 0.4 * 3600)
  assert float(re.search(r"([\d.]+) h of pre-training", header)[1]) == pytest.approx(hours, abs=0.06)
  assert f"t5like train --gin_file={recipe.gin_file}" in header and f"--rows={name} " in header
  for number in ("bert5", "bert6"):
    for row in (row for row in TABLES[number].rows if row.recipe == name):
      _, after = header.split(f"Table {number}, {row.name}: ")
      assert [float(score) for score in re.findall(r"\b\d+\.\d+", after.split(" Table ")[0].split(" Required")[0])] == [
        *row.paper.values()
      ]


@pytest.mark.parametrize("scale", ["small", "midi", "mini", "smoke"])
def test_scales_keep_the_ratios_of_table_6(scale):
  """Numbers of heads are the paper's; depth and width are the same share of the paper's in every row."""
  file = f"ablations/scales/bert/{scale}.gin"
  configs = [build(name, file).model.config for name in bert.SIZES]
  papers = [sizes for sizes, _ in bert.SIZES.values()]
  assert len({layers(config) / depth for config, (depth, _, _) in zip(configs, papers, strict=True)}) == 1
  assert len({config.embed_dim / width for config, (_, width, _) in zip(configs, papers, strict=True)}) == 1
  assert [config.num_heads for config in configs] == [heads for _, _, heads in papers]
  pretrained = build(bert.LEFT_TO_RIGHT, file)
  tuned = build(
    bert.LEFT_TO_RIGHT, "ablations/finetune_heads.gin", file,
    TASK="squad_spans", INIT_FROM="somewhere", EXAMPLES=87599, LENGTHS="%SPAN_LENGTHS",
  )  # fmt: skip
  assert tuned.has_head and tuned.objective is None and not tuned.phases and tuned.model.batch_layout == "decoder"
  assert tuned.lengths["inputs"] <= pretrained.lengths["inputs"]  # no position is untrained
  assert layers(pretrained.model.config) == layers(configs[3]) and not pretrained.phases
  assert tuned.model.config.dropout_rate == 0.1


def test_jobs_take_epochs_of_small_tasks_and_the_steps_of_the_scale(tmp_path):
  given = SweepSettings(["bert5"], [], "midi", 2, ["glue_rte", "glue_mnli", "squad"], [])
  runs = plan_sweep(tmp_path, given).runs({})
  assert [run.recipe for run in runs] == [*bert.PRETRAINING_TASKS] * 2
  pretrain, rte, mnli, squad = runs[0].jobs
  assert (pretrain.steps, rte.steps, mnli.steps, squad.steps) == (12_000, round(10 * 2490 / 64), 2000, 2000)
  assert mnli.evaluated == ("glue_mnli_matched_classification", "glue_mnli_mismatched_classification")
  assert ("TASK", "squad_spans") in squad.overrides and ("LENGTHS", '{"inputs": 256}') in squad.overrides
  assert runs[0].shape == runs[3].shape != runs[1].shape  # seeds can train together, other objectives cannot
  assert parse_head_task("toy_spans").trained == ("toy_spans",)
  assert parse_head_task("squad").trained == ("squad_spans",)


def test_the_cost_of_two_phases_counts_the_steps_of_each():
  phases = [Phase(Lengths(127, 128, 0), 8, 900_000), Phase(Lengths(511, 512, 0), 8)]
  assert steps_per_phase(phases, 10**6) == [900_000, 100_000]
  assert steps_per_phase(phases, 500) == [500, 0]  # a run that was cut short


@pytest.mark.parametrize(
  ("tables", "tasks", "message"),
  [([5, "bert5"], [], "either with heads or text to text"), (["bert5"], ["glue_sst2+glue_rte"], "one task for each")],
)
def test_invalid_sweeps_are_rejected(tmp_path, tables, tasks, message):
  with pytest.raises(UserError) as error:
    plan_sweep(tmp_path, SweepSettings(tables, [], "smoke", 1, tasks, []))
  assert message in error.value.render()


def result(recipe, seed, paper, better=True):
  """Returns a result with the paper's scores, or their mirror image, and a little noise; SNLI as MNLI, RTE as MRPC."""
  sign, noise = (1 if better else -1), 0.01 * ((seed * 7 + len(recipe)) % 5)
  score = lambda column: 50 + sign * paper[column] / 2 + noise  # noqa: E731
  stand_ins = {"snli": "mnli_matched", "glue_rte": "mrpc", "glue_sst2": "sst2"}
  tasks = {f"{task}_classification": {"accuracy": score(column)} for task, column in stand_ins.items()}
  if "squad_f1" in paper:
    tasks["squad_spans"] = {"em": 1.0, "f1": score("squad_f1")}
  tasks = {task: metrics | {"best_step": 4} for task, metrics in tasks.items()}
  loss = math.log(paper.get("perplexity", 4.0)) * sign + noise / 100
  return synthetic_result(recipe, seed, groups=(), tasks=tasks, validation_loss=loss)


def sweep(folder, number, better):
  table = TABLES[number]
  write_json(folder / "sweep.json", {"tables": [number], "recipes": table.recipes, "scale": "mini", "seeds": 2})
  for row in table.rows:
    for seed in range(2):
      write_result(folder, result(row.recipe, seed, row.paper, better))
  return read_sweep(folder)


@pytest.mark.parametrize("number", ["bert5", "bert6"])
@pytest.mark.parametrize(("better", "verdict"), [(True, "reproduced"), (False, "not reproduced")])
def test_verdicts_follow_the_scores(tmp_path, number, better, verdict):
  compared = compare(sweep(tmp_path, number, better))
  (table,) = compared.tables
  found = check_conclusions(compared)
  assert [checked.verdict for checked in found] == [verdict] * 2
  # The paper's own scores support all of its conclusions: NSP on 3 tasks, left-to-right on 5; sizes in 5 steps.
  assert [(c.paper.holds, c.paper.of) for c in found] == ([(3, 3), (5, 5)] if number == "bert5" else [(20, 20), (5, 5)])
  assert table.correlations["sst2"].spearman == (1.0 if better else -1.0)
  best = max(table.rows, key=lambda row: row.cells["snli"].mean)
  assert best.cells["snli"].tie and {"mnli_matched", "mrpc"} <= set(table.not_run)


def test_a_lower_perplexity_is_better(tmp_path):
  data = sweep(tmp_path, "bert6", better=True)
  assert column_score(data.results[0], PERPLEXITY) == pytest.approx(3.99, abs=0.01)  # BERT base
  compared = compare(data)
  (table,) = compared.tables
  cells = {row.recipe: row.cells[PERPLEXITY] for row in table.rows}
  large, small = f"{bert.BASE}/layers_24_width_1024", f"{bert.BASE}/layers_3"
  assert cells[large].paper_tie and cells[large].tie and not cells[small].tie
  assert cells[small].difference > 0 > cells[large].difference and table.correlations[PERPLEXITY].spearman == 1.0
  checked = check_conclusions(compared)[0]
  pairs = [pair for pair in checked.evidence if pair.group == PERPLEXITY]
  text = evidence_text(dataclasses.replace(checked, evidence=pairs[-1:]))  # the smaller model's minus the larger one's
  assert f"{bert.BASE}/width_1024 minus {large} +0.31" in text


def test_perplexities_of_other_objectives_do_not_count_in_the_spread(tmp_path):
  """A left-to-right model is a row of another table, without perplexities."""
  data = sweep(tmp_path, "bert6", better=True)
  paper = next(row.paper for row in TABLES["bert5"].rows if row.recipe == bert.LEFT_TO_RIGHT)
  others = [dataclasses.replace(result(bert.LEFT_TO_RIGHT, seed, paper), validation_loss=1.0 + seed) for seed in (0, 1)]
  both = dataclasses.replace(data, sweep={**data.sweep, "tables": ["bert5", "bert6"]}, results=[*data.results, *others])
  assert compare(both).spreads[PERPLEXITY] == compare(data).spreads[PERPLEXITY] is not None


def test_the_page_has_the_columns_of_the_paper(tmp_path):
  write_report(sweep(tmp_path, "bert6", better=True), tmp_path)
  page, text = ((tmp_path / name).read_text() for name in ("report.html", "report.md"))
  assert "<title>BERT ablations at mini scale</title>" in page
  assert "Table bert6 of the BERT paper at mini scale: 12 finished runs of 6 recipes" in text
  assert "| 24 layers, 1,024 wide, 16 heads | **3.23 ± 0.00** | **3.23** |" in text
  assert "GLUE" not in text and "T5" not in text and "within the paper's band" not in text
  # Five sizes other than base, on SST-2 and in perplexity; MNLI and MRPC were not run.
  assert "Of 10 differences from the baseline in papers without standard deviations" in text
  assert "ours have the same sign in 10, 10 of them beyond our band; 0 of the others are beyond it" in text


def test_masked_objectives_are_illustrated():
  shown = {example.objective: example for example in examples([bert.BASE, bert.NO_NSP])}
  with_pairs = shown["bert_mlm_nsp"]
  assert with_pairs.targets.endswith(("| next", "| not next")) and with_pairs.inputs.count("[SEP]") == 2
  assert "|" not in shown["bert_mlm"].targets and shown["bert_mlm"].inputs.startswith("[CLS] ")
  assert 0 < shown["bert_mlm"].inputs.count("<M>") <= len(shown["bert_mlm"].targets.split())


@pytest.mark.slow
def test_a_sweep_with_heads_end_to_end(tmp_path):
  """Prepares the caches, then trains without TensorFlow, the two seeds of each recipe in one program."""
  arguments = [
    "ablate", "--table=bert5", "--scale=smoke", "--seeds=2", f"--sweep_dir={tmp_path}", "--task_modules=labeled_tasks",
    "--tasks=toy_classification,toy_spans", "--gin.LAYERS=1", "--gin.WIDTH=16", "--gin.HEADS=2",
    "--gin.PRETRAIN_STEPS=4", "--gin.FINETUNE_STEPS=4", "--gin.FINETUNE_EVAL_PERIOD=2",
    "--gin.PRETRAIN_LENGTHS={'inputs': 32}", "--gin.SPAN_LENGTHS={'inputs': 32}",
  ]  # fmt: skip
  variables = environment(PYTHONPATH=f"{REPOSITORY}:{REPOSITORY / 'tests'}")
  for command in ([sys.executable, "-m", "t5like"], [sys.executable, "-c", WITHOUT_TENSORFLOW]):
    last = ["--prepare_only"] if command[1] == "-m" else ["--together=2"]
    done = subprocess.run([*command, *arguments, *last], env=variables, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
  assert "6 of 6 runs finished" in done.stdout
  results = read_results(tmp_path)
  assert {(r.recipe, r.seed) for r in results} == {(name, seed) for name in bert.PRETRAINING_TASKS for seed in (0, 1)}
  for found in results:
    assert set(found.tasks) == {"toy_classification", "toy_spans"} and found.validation_loss > 0
    assert {"em", "f1"} <= set(found.tasks["toy_spans"])
    assert found.cost["finetuning"].tokens == 4 * 8 * (48 + 32)  # two tasks of 4 steps
  log = (tmp_path / "runs/bert.bert_mlm_nsp-seed1/toy_spans.log").read_text()
  assert "trained together with others" in log
  assert "runs in one program" in (tmp_path / "runs/bert.bert_mlm_nsp-seed0/toy_spans.log").read_text()
