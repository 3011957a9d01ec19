"""Sweeps end to end at the smallest scale: without TensorFlow, manually, resumed, and with two workers."""

import contextlib
import datetime
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from t5like.ablations.report.examples import TEXT
from t5like.ablations.sweep import local_workers as ablate_workers
from t5like.ablations.sweep import worker as ablate_run
from t5like.ablations.sweep.plan import SweepRun, TrainJob, plan_sweep
from t5like.ablations.sweep.results import read_failures, read_results, run_name
from t5like.ablations.sweep.settings import SweepSettings
from t5like.cli.main import main
from t5like.training.records.goodput import read_attempts
from t5like.training.records.metrics import read_metrics

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "gin/ablations/README.md"
SMALL = [
  "--scale=smoke", "--gin.LAYERS=1", "--gin.PRETRAIN_STEPS=4", "--gin.FINETUNE_STEPS=4", "--gin.FINETUNE_EVAL_PERIOD=2",
  "--gin.EMBED_DIM=16", "--gin.MLP_DIM=32", "--gin.PRETRAIN_LENGTHS={'inputs': 32}",
]  # fmt: skip

# Simulates a machine without these packages.
WITHOUT_TENSORFLOW = """
import sys
class Absent:
  def find_spec(self, name, path=None, target=None):
    if name.split(".")[0] in ("tensorflow", "tensorflow_datasets", "tensorflow_text", "seqio"):
      raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from t5like.ablations.sweep.settings import SweepSettings
from t5like.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


# An objective that fails in training, after the README's example; it is tried with two rows before.
BROKEN = """
class Broken(Reversal):
  def __call__(self, rows, draws, special):
    if len(rows.tokens) > 2:
      raise ValueError("broken")
    return super().__call__(rows, draws, special)


gin.external_configurable(Broken, "broken")
"""


def environment(**more):
  return {**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_NUM_CPU_DEVICES": "1", **more}


@pytest.fixture(scope="module")
def caches(token_caches, tmp_path_factory):
  """Returns a folder with the token caches that --prepare_only would build."""
  folder = tmp_path_factory.mktemp("held_out")
  assert main(["cache", "novels", "--split=validation", "--vocabulary=tiny", f"--out={folder}"]) == 0
  (vocabulary,) = (folder / "novels").iterdir()
  (vocabulary / "train").symlink_to(token_caches / "novels" / vocabulary.name / "train")
  (folder / "snli").symlink_to(token_caches / "snli")
  return folder


def sweep_folder(folder, caches):
  (folder / "caches").mkdir(parents=True)
  for task in ("novels", "snli"):
    (folder / "caches" / task).symlink_to(caches / task)
  return folder


def readme_example() -> tuple[str, str, list[str]]:
  """Returns the module, the recipe and the command of the README's example."""
  module, recipe, command = re.findall(r"```(?:python)?\n(.*?)```", PAGE.read_text(), re.DOTALL)
  return module, recipe, shlex.split(command)


@pytest.fixture(scope="module")
def swept(caches, tmp_path_factory):
  """Runs the README's example and a recipe whose objective fails, without TensorFlow."""
  home = tmp_path_factory.mktemp("home")
  module, recipe, command = readme_example()
  (home / "my_objectives.py").write_text(module + BROKEN)
  (home / "reversal.gin").write_text(recipe)
  (home / "broken.gin").write_text(recipe.replace("@reversal()", "@broken()"))
  folder = sweep_folder(home / "sweep", caches)
  assert command[:2] == ["t5like", "ablate"] and {"--scale=smoke", "--recipe=reversal.gin"} <= set(command)
  arguments = ["ablate", "--recipe=reversal.gin", "--recipe=broken.gin", *SMALL, f"--sweep_dir={folder}"]
  done = subprocess.run(
    [sys.executable, "-c", WITHOUT_TENSORFLOW, *arguments],
    cwd=home, env=environment(), capture_output=True, text=True, timeout=300,
  )  # fmt: skip
  return home, folder, arguments, done


def test_every_run_ends_with_a_result_or_a_failure(swept):
  _, folder, _, done = swept
  assert done.returncode == 1, done.stdout + done.stderr
  assert [result.recipe for result in read_results(folder)] == ["own/reversal"]
  (failure,) = read_failures(folder)
  assert failure.recipe == "own/broken" and "Traceback" in failure.traceback
  assert "1 of 2 runs finished" in done.stdout and "failed: own/broken, seed 0" in done.stdout
  settings = json.loads((folder / "sweep.json").read_text())
  assert (settings["tables"], settings["seeds"], settings["tasks"]) == ([], 1, ["snli"])


def test_a_result_matches_the_records_of_its_run(swept):
  _, folder, _, _ = swept
  (result,) = read_results(folder)
  runs = folder / "runs/own.reversal-seed0"
  evaluations = {row["step"]: row["accuracy"] for row in read_metrics(runs / "snli") if row["kind"] == "eval/snli"}
  assert set(evaluations) == {2, 4}
  assert result.tasks["snli"]["accuracy"] == max(evaluations.values()) == result.scores["other"]
  assert evaluations[result.tasks["snli"]["best_step"]] == max(evaluations.values())
  losses = [row for row in read_metrics(runs / "pretrain") if row["kind"] == "train"]
  assert result.curve == [(row["step"], row["loss"]) for row in losses]
  held_out = [row["loss"] for row in read_metrics(runs / "pretrain") if row["kind"] == "eval_loss/novels"]
  assert result.validation_loss == held_out[-1]
  # 4 steps of 8 rows; the targets are the 32 inputs in reverse.
  assert result.cost["pretraining"].tokens == 4 * 8 * (32 + 32)
  assert result.cost["finetuning"].tokens == 4 * 8 * (48 + 4)
  assert result.cost["total"].device == "cpu" and result.cost["total"].devices == 1
  parts = ("pretraining", "finetuning")
  assert result.cost["total"].model_flops == sum(result.cost[part].model_flops for part in parts) > 1e6
  assert 0 < result.cost["total"].device_seconds < 300 and result.started < result.finished


def test_the_objective_of_a_custom_recipe_is_in_the_report(swept, t5like, tmp_path, monkeypatch):
  """The run records the example, so that a report does not need the module."""
  _, folder, _, _ = swept
  monkeypatch.chdir(tmp_path)
  exported = tmp_path / "sweep.json"
  t5like("ablate", "--report", f"--sweep_dir={folder}", f"--output={tmp_path / 'one'}", f"--export={exported}")
  t5like("ablate", "--report", f"--from={exported}", f"--output={tmp_path / 'two'}")
  reversed_text = " ".join(reversed(TEXT.split()))
  for page in ("one", "two"):
    assert f"| reversal | {reversed_text} | {TEXT} |" in (tmp_path / page / "report.md").read_text()
    assert reversed_text in (tmp_path / page / "report.html").read_text()
  assert "my_objectives" not in sys.modules


def test_the_objective_of_the_readme_reverses_its_inputs(swept):
  home, _, _, _ = swept
  script = """
from t5like.objectives import Draws, Rows
import numpy as np
from my_objectives import Reversal
pairs = Reversal()(Rows(np.array([[5, 6, 7, 0], [8, 9, 0, 0]], np.int32), np.array([3, 2])), None, None)
assert pairs.inputs.tokens[0, :3].tolist() == [7, 6, 5] and pairs.inputs.tokens[1, :2].tolist() == [9, 8]
assert pairs.targets.tokens[0, :3].tolist() == [5, 6, 7] and pairs.inputs.lengths.tolist() == [3, 2]
"""
  subprocess.run([sys.executable, "-c", script], cwd=home, env=environment(), check=True)


def test_finished_runs_are_not_repeated_and_manual_runs_are_picked_up(swept, t5like, monkeypatch):
  home, folder, arguments, _ = swept
  monkeypatch.chdir(home)
  (before,), name = read_results(folder), "own.reversal-seed0"
  (folder / "results" / f"{name}.json").unlink()
  (folder / "runs" / name / "snli").rename(folder / "runs" / name / "first_time")
  pretrained = folder / "runs" / name / "pretrain/goodput.jsonl"
  written = pretrained.stat().st_mtime_ns
  lines = t5like(*arguments, "--list").stdout.splitlines()
  manual = next(line for line in lines if f"{name}/snli" in line)
  assert manual.startswith("t5like train ") and "# own/reversal, seed 0" in lines
  t5like(*shlex.split(manual)[1:])
  out = t5like("ablate", f"--sweep_dir={folder}", status=1).stdout
  assert "pretrain: already finished" in out and "snli: already finished" in out
  assert pretrained.stat().st_mtime_ns == written
  (after,) = read_results(folder)
  assert (after.tasks, after.curve, after.commands) == (before.tasks, before.curve, before.commands)


def test_a_damaged_result_does_not_count_as_finished(swept, t5like, monkeypatch):
  home, folder, _, _ = swept
  monkeypatch.chdir(home)
  result = next((folder / "results").glob("*.json"))
  content = result.read_text()
  for damaged in ('{"bro', "{}"):
    result.write_text(damaged)
    err = t5like("ablate", f"--sweep_dir={folder}", status=2).stderr
    assert str(result) in err and "remove the file" in err
  result.write_text(content)


def test_a_sweep_that_cannot_be_written(t5like, tmp_path):
  (tmp_path / "file").touch()
  command = ["ablate", "--table=7", "--scale=smoke", f"--sweep_dir={tmp_path}/file/sweep"]
  assert "cannot write the sweep" in t5like(*command, status=2).stderr


@pytest.mark.parametrize(
  "content, named",
  [(None, "mine.gin"), ("train.objective = @reversl()\n", "reversl"), ("EMBED_DIMM = 3\n", "EMBED_DIMM")],
)
def test_an_invalid_recipe_is_refused_before_anything_starts(content, named, tmp_path, t5like):
  file = tmp_path / "mine.gin"
  if content:
    file.write_text(f"include 'ablations/pretrain.gin'\n{content}")
  command = ["ablate", "--table=4", f"--recipe={file}", "--scale=smoke", f"--sweep_dir={tmp_path / 'sweep'}"]
  for more in ([], ["--list"]):
    assert named in t5like(*command, *more, status=2).stderr
  assert not (tmp_path / "sweep").exists()


def test_the_settings_of_a_sweep_cannot_change(swept, t5like):
  _, folder, _, _ = swept
  rejected = t5like("ablate", "--table=7", "--scale=mini", f"--sweep_dir={folder}", status=2)
  assert "a different scale" in rejected.stderr
  rejected = t5like("ablate", "--table=7", "--rows=4", f"--sweep_dir={folder}", status=2)
  assert "no row '4'" in rejected.stderr


FILELESS_TASK = """
from t5like.tasks.library.translation import register_translation
from t5like.tasks.sources import JsonLinesSource
source = JsonLinesSource({"train": "no_file.jsonl", "validation": "no_file.jsonl"}, ["is", "en"])
register_translation("fileless", source, source="is", target="en")
"""


def test_missing_data_are_reported_before_training(caches, tmp_path, t5like, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "fileless_tasks.py").write_text(FILELESS_TASK)
  folder = sweep_folder(tmp_path / "sweep", caches)
  messages = {"no_such_task": "no task 'no_such_task'", "fileless": "(nothing was trained): fileless (train)\n"}
  for task, message in messages.items():
    line = ["ablate", "--table=7", "--rows=3", *SMALL, f"--tasks=snli,{task}", f"--sweep_dir={folder}"]
    assert message in t5like(*line, "--task_modules=fileless_tasks", status=2).stderr
    assert not (folder / "runs").exists()
    assert not (folder / "sweep.json").exists()  # so that the corrected command does not conflict


def test_invalid_settings_of_a_sweep_are_named(t5like, tmp_path):
  valid = {"tables": [7], "recipes": ["encoder_decoder/span_corruption"], "scale": "smoke", "seeds": 1, "tasks": [],
           "corpus": []}  # fmt: skip
  for change, because in [
    ({"recipes": None}, "invalid recipes: None"),
    ({"recipes": []}, "no recipes"),
    ({"recipes": ["spans"]}, "unknown recipe 'spans'"),
    ({"seeds": "two"}, "invalid seeds: 'two'"),
    ({"gin": 5}, "invalid gin: 5"),
    ({"color": 1}, "color"),
  ]:
    (tmp_path / "sweep.json").write_text(json.dumps(valid | change))
    message = t5like("ablate", f"--sweep_dir={tmp_path}", status=2).stderr
    assert "not a sweep directory" in message and because in message, message


@pytest.mark.slow
def test_multi_task_training_mixes_tasks_and_corpus(caches, tmp_path, t5like):
  """Table 11: half of the rows are text, half are labeled examples, which are scored."""
  folder = sweep_folder(tmp_path / "sweep", caches)
  t5like(
    "ablate", "--table=11", "--rows=Equal", *SMALL, "--gin.PRETRAIN_LENGTHS={'inputs': 64}", f"--sweep_dir={folder}"
  )
  (result,) = read_results(folder)
  assert result.recipe == "encoder_decoder/iid_replace_spans/mixed_equal"
  assert result.tasks["snli"]["best_step"] in (2, 4, 6, 8) and result.curve[-1][0] == 4 + 4
  card = (folder / "runs/encoder_decoder.iid_replace_spans.mixed_equal-seed0/mixed/run_card.txt").read_text()
  assert re.search(r"a mixture of 2 tasks\n +50\.0%  \w+, [\d,]+ tokens\n +50\.0%  snli, [\d,]+ examples", card)
  assert result.cost["finetuning"].tokens == 0 and result.cost["total"].tokens > 0


def holder(folder, run) -> dict:
  """Returns the claim on a run that is being trained; {} otherwise."""
  path = folder / f"claims/{run}.1"
  found = json.loads(path.read_text() or "{}") if path.is_file() else {}
  return found if not found.get("released") and read_metrics(folder / "runs" / run / "pretrain") else {}


def wait_for(process, folder, pid=None) -> tuple[str, int]:
  """Waits for a run that is being trained by process `pid` or by any; returns the run and the process id."""
  deadline = time.monotonic() + 240
  while True:
    assert time.monotonic() < deadline and process.poll() is None
    for path in (folder / "claims").glob("*.1"):
      found = holder(folder, path.name.removesuffix(".1"))
      if found and pid in (None, found["pid"]):
        return path.name.removesuffix(".1"), found["pid"]
    time.sleep(0.05)


THREE = ["ablate", "--table=7", "--rows=3", "--rows=5", "--rows=10", *SMALL, "--gin.LOG_PERIOD=2"]


def start(folder, *more):
  return subprocess.Popen(
    [sys.executable, "-m", "t5like", *THREE, f"--sweep_dir={folder}", *more],
    env=environment(),
    stdout=subprocess.PIPE,
    text=True,
  )


@pytest.mark.slow  # three processes with jax
def test_an_interrupted_worker_stops_and_a_killed_one_is_replaced(caches, tmp_path):
  folder = sweep_folder(tmp_path / "sweep", caches)
  stopped = start(folder, "--gin.PRETRAIN_STEPS=100000")
  wait_for(stopped, folder, stopped.pid)
  stopped.send_signal(signal.SIGTERM)
  out = stopped.communicate(timeout=240)[0]
  assert stopped.returncode == 128 + signal.SIGTERM, out
  assert "run the same command to resume" in out and not read_results(folder) and not read_failures(folder)
  shutil.rmtree(folder / "claims")
  shutil.rmtree(folder / "runs")
  (folder / "sweep.json").unlink()

  victim, survivor = start(folder), start(folder)
  held, _ = wait_for(victim, folder, victim.pid)
  victim.send_signal(signal.SIGKILL)
  victim.wait()
  out = survivor.communicate(timeout=300)[0]
  assert survivor.returncode == 0, out
  assert "3 of 3 runs finished" in out
  assert len(read_results(folder)) == 3 and not read_failures(folder)
  assert (folder / f"claims/{held}.2").is_file()  # taken over
  taken = [path.stem for path in (folder / "claims").iterdir() if path.name.endswith(".1")]
  runs = {run_name(result.recipe, result.seed) for result in read_results(folder)}
  # None was started twice by live workers.
  assert sorted(taken) == sorted([*runs, *(f"{run}.pretrain" for run in runs)])


@pytest.mark.slow  # three processes with jax
def test_a_killed_local_worker_is_restarted(caches, tmp_path):
  folder = sweep_folder(tmp_path / "sweep", caches)
  process = start(folder, "--workers=2")
  _, victim = wait_for(process, folder)
  assert victim != process.pid
  os.kill(victim, signal.SIGKILL)
  out = process.communicate(timeout=300)[0]
  assert process.returncode == 0, out
  assert "exited with status -9; restarting" in out and "3 of 3 runs finished" in out
  assert {line[:4] for line in out.splitlines() if line.startswith("[")} == {"[1] ", "[2] "}
  for result in read_results(folder):
    for job in ("pretrain", "snli"):
      attempts = read_attempts(folder / "runs" / run_name(result.recipe, result.seed) / job / "goodput.jsonl")
      assert {attempt["device_share"] for attempt in attempts} == {0.5}
    started, ended = map(datetime.datetime.fromisoformat, (result.started, result.finished))
    assert result.cost["total"].device_seconds <= (ended - started).total_seconds() / 2 + 1


def test_a_worker_whose_device_is_lost_leaves_the_other_runs_alone(tmp_path, monkeypatch):
  """After some GPU errors, everything that the process computes next fails too."""

  def lost(*_):
    raise jax.errors.JaxRuntimeError("INTERNAL: the device is lost")

  monkeypatch.setattr(ablate_run, "train_here", lost)
  monkeypatch.setattr(ablate_run.jnp, "ones", lost)
  runs = [
    SweepRun(recipe, 0, [TrainJob("pretrain", [], [], tmp_path / "runs" / recipe / "pretrain", 1, ())])
    for recipe in ("lm/lm", "shared/prefix_lm")
  ]
  assert ablate_run.Worker(tmp_path, "smoke", runs).work() == ablate_workers.DEVICE_LOST
  assert [failure.recipe for failure in read_failures(tmp_path)] == ["lm/lm"]


def test_seeds_of_a_recipe_then_recipes_of_its_shape_train_in_one_program(tmp_path, monkeypatch):
  """A failed run leaves its group; the others go on to the next job."""
  trained = []

  def fail_first_seed(jobs, _):
    trained.append([job.model_dir.relative_to(tmp_path).parts for job in jobs])
    return [ValueError("not this one") if job.model_dir.parent.name.endswith("b-0") else None for job in jobs]

  def run(recipe, seed, shape):
    jobs = [TrainJob(name, [], [], tmp_path / f"{recipe}-{seed}" / name, 1, ()) for name in ("pretrain", "squad")]
    return SweepRun(recipe, seed, jobs, shape)

  monkeypatch.setattr(ablate_run, "train_here", fail_first_seed)
  shapes = {"a": None, "b": "long", "c": "long", "d": "short"}
  runs = [run(recipe, seed, shape) for seed in (0, 1) for recipe, shape in shapes.items()]
  assert ablate_run.Worker(tmp_path, "smoke", runs, together=3).work() == 1
  groups = [[folder for folder, _ in jobs] for jobs in trained if jobs[0][1] == "pretrain"]
  assert groups == [["a-0"], ["b-0", "b-1", "c-0"], ["d-0", "d-1"], ["a-1"], ["c-1"]]
  assert [("b-1", "squad"), ("c-0", "squad")] in trained
  failed = {(f.recipe, f.seed): f.error for f in read_failures(tmp_path)}
  assert failed["b", 0] == "ValueError: not this one" and "squad" not in failed["b", 0]


def test_rows_that_differ_in_fine_tuning_share_one_pre_training(tmp_path, monkeypatch):
  """No worker starts such a row while another one pre-trains for it."""
  given = SweepSettings([10], [], "smoke", 1, [], [])
  runs = plan_sweep(tmp_path, given).runs({})[:3]
  (folder,) = {run.jobs[0].model_dir for run in runs}
  assert folder == tmp_path / "runs/encoder_decoder.iid_replace_spans-seed0/pretrain"
  assert len({run.jobs[1].model_dir for run in runs}) == len(runs)
  trained, for_others, worker = [], [], ablate_run.Worker(tmp_path, "smoke", runs)

  def train(jobs, _):
    other = ablate_run.Worker(tmp_path, "smoke", runs)
    for_others.append(other._take())
    with other._claim or contextlib.nullcontext():
      trained.extend(job.model_dir for job in jobs)
    return [None] * len(jobs)

  monkeypatch.setattr(ablate_run, "train_here", train)
  monkeypatch.setattr(ablate_run, "is_finished", lambda job: job.model_dir in trained)
  assert worker.work() == 1  # nothing was scored
  assert trained == [folder, *(run.jobs[1].model_dir for run in runs)]
  assert for_others[:2] == [ablate_run._LATER, 1]  # the second row is free once the first one is fine-tuned


def test_rows_that_differ_in_fine_tuning_do_not_train_in_one_program(tmp_path):
  """Adapters of two sizes cannot; gradual unfreezing trains alone. Other workers take what a worker cannot stack."""
  baseline = "encoder_decoder/iid_replace_spans"
  rows = [baseline, f"{baseline}/adapters_32", f"{baseline}/adapters_128", f"{baseline}/gradual_unfreezing"]
  settings = SweepSettings([10], [], "midi", 2, ["squad"], [])
  runs = plan_sweep(tmp_path, settings, rows).runs({})
  shapes = {(run.recipe, run.seed): run.shape for run in runs}
  first, second = ([shapes[row, seed] for row in rows] for seed in (0, 1))
  assert first == second and first[3] is None
  assert len({*first[:3]}) == 3


def test_recipes_of_the_same_lengths_have_the_same_shape(tmp_path):
  given = SweepSettings([2, 4, 5], [], "smoke", 0, [], [])
  shapes = {run.recipe: run.shape for run in plan_sweep(tmp_path, given).runs({})}
  full_text = [f"encoder_decoder/{name}" for name in ("bert_style", "mass_style", "deshuffling")]
  assert len({shapes[recipe] for recipe in full_text}) == 1
  others = ("encoder_decoder/iid_replace_spans", "shared/iid_replace_spans", "six_layers/iid_replace_spans", "lm/lm")
  assert len({shapes[recipe] for recipe in (*others, full_text[0])}) == 5


@pytest.mark.slow
def test_runs_of_one_shape_leave_results_of_their_own(caches, tmp_path, t5like):
  folder = sweep_folder(tmp_path / "sweep", caches)
  rows = ("--rows=BERT-style", "--rows=Deshuffling")
  out = t5like("ablate", "--table=4", *rows, "--seeds=2", "--together=4", *SMALL, f"--sweep_dir={folder}").stdout
  assert "4 of 4 runs finished" in out
  results = read_results(folder)
  assert len({result.validation_loss for result in results}) == 4  # not copies of one run
  for result in results:
    attempts = read_attempts(folder / "runs" / run_name(result.recipe, result.seed) / "pretrain/goodput.jsonl")
    assert {attempt["device_share"] for attempt in attempts} == {0.25}
