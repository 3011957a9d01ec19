"""`t5like plan` against published counts and manual calculations."""

import json
import re
import shlex
import time

import pytest

from t5like import configuration
from t5like.experiments.phases import Phase
from t5like.experiments.reading import read_experiment, register_configurables
from t5like.objectives import Lengths
from t5like.planning.accuracy import TPU
from t5like.planning.published import RUNS
from t5like.planning.topology import parse_topology
from t5like.runs.forecast.price_tag import planned_seconds, price_tag

PRETRAIN = ["--gin_file=objectives/span_corruption.gin", "--gin_file=runs/pretrain.gin"]
XXL = ["plan", "--gin_file=models/t5_1_1/xxl.gin", *PRETRAIN, "--gin_file=meshes/fsdp.gin", "--gin.BATCH_SIZE=2048"]


@pytest.mark.slow
def test_t5_xxl_on_a_pod_in_seconds(t5like):
  started = time.process_time()
  plan = json.loads(t5like(*XXL, "--topology=v5p-512", "--gin.REMAT=full", "--price=2", "--json").stdout)
  assert time.process_time() - started < 20
  (phase,) = plan["phases"]
  assert phase["devices"] == 256 and phase["mesh"] == {"data": 1, "fsdp": 256, "tensor": 1, "slices": 1}
  assert sum(phase["parameters"].values()) == 11_135_332_352  # as published
  # The encoder's MLPs: 24 layers of three products of 4,096 x 10,240, on 2,048 x 512 tokens, times 3.
  assert phase["flops_a_step"]["encoder MLP"] == 3 * 24 * 3 * 2 * 4096 * 10240 * 2048 * 512
  # State in float32 over 256 chips, except position tables, and Adafactor's row and column sums.
  assert phase["memory"]["parameters"] == pytest.approx(4 * 11_135_332_352 / 256, rel=1e-3)
  assert phase["memory"]["optimizer"] < 0.1 * phase["memory"]["parameters"]
  # One bfloat16 input of every layer is saved, for 8 rows per chip, and little outside of the layers.
  streams = 8 * (512 + phase["lengths"]["decoder_length"]) * 4096 * 2
  assert 24 * streams < phase["memory"]["activations"] < 32 * streams
  assert plan["fits"] and phase["memory"]["total"] < phase["memory"]["usable"] < 95 * 2**30
  # Weights in bfloat16 are gathered twice, and scattered once as gradients: 255/256 of them each time.
  gathered, scattered = phase["collectives"]
  assert gathered["bytes"] == pytest.approx(2 * scattered["bytes"]) and gathered["link"] == "ICI"
  assert scattered["bytes"] == pytest.approx(2 * 11_135_332_352 * 255 / 256, rel=1e-3)
  # MaxText's 512B, with the same rematerialization and chips, was published at 64% MFU.
  assert 0.4 < phase["peak_share"] < 0.64
  hours = 256 * phase["step_seconds"] * phase["steps"] / 3600
  assert plan["price"]["device_hours"] == pytest.approx(hours) and plan["price"]["dollars"] == pytest.approx(2 * hours)
  # The range of the price is that of the step.
  ends = [2 * hours * end / phase["step_seconds"] for end in phase["step_seconds_range"]]
  assert ends[0] < 2 * hours < ends[1] and plan["price"]["dollars_range"] == pytest.approx(ends)


def test_a_tpu_forecast_is_a_range_below_published_mfu(t5like):
  text = t5like(*XXL, "--topology=v5p-512").stdout
  share, low, high = (float(n) for n in re.search(r"([\d.]+)% MFU \((\d+)% to (\d+)%\)", text).groups())
  # MaxText's dense models on v5p slices of any size: 51.55% to 71.47% (README.md of MaxText/configs/v5p).
  assert 50 < low < share < high and share < 71
  step, shortest, longest = (float(n) for n in re.search(r"([\d.]+) ms \(([\d.]+) ms to ([\d.]+) ms\)", text).groups())
  assert shortest / step == pytest.approx(share / high, rel=0.02) and longest / step == pytest.approx(
    share / low, rel=0.02
  )
  words = " ".join(text.split())
  assert TPU.describe() in words and f"calibrated on {len(RUNS)} published runs" in words
  assert re.search(r"\(\d\.\d days to \d\.\d days\)", text) and re.search(r"\$[\d,]+ \(\$[\d,]+ to \$[\d,]+\)", text)


def test_a_plan_that_does_not_fit_suggests_one_that_does(t5like):
  """With an encoder, which is traced in a third of the time of an encoder and a decoder."""
  command = [
    "plan", "--gin_file=models/bert/large.gin", "--gin_file=objectives/bert_mlm.gin", *PRETRAIN[1:],
    "--gin_file=meshes/fsdp.gin", "--gin.SCAN_LAYERS=True", "--gin.BATCH_SIZE=1024", "--topology=v5e-16",
    "--gin.MESH.data=4", "--gin.MESH.fsdp=4",
  ]  # fmt: skip
  text = t5like(*command).stdout
  assert "DOES NOT FIT" in text
  _, found, options = text.partition("nearest that does:\n")
  assert found
  changes = shlex.split(options.split("\n")[0])
  again = json.loads(t5like(*command, *changes, "--json").stdout)
  assert again["fits"] and again["phases"][0]["batch_size"] == 1024


def times_of(found: list[dict], batch_size: int) -> list[float]:
  return [f["step_seconds"] for f in found if f["batch_size"] == batch_size]


@pytest.mark.slow
def test_a_search_over_machines_with_a_slow_network(t5like):
  command = ["plan", "--gin_file=models/bert/tiny.gin", "--gin_file=objectives/bert_mlm.gin", *PRETRAIN[1:]]
  command += ["--gin.SCAN_LAYERS=True", "--gin.BATCH_SIZE=512", "--topology=2xh100x8"]
  found = json.loads(t5like(*command, "--search", "--batch_sizes=512,1024", "--json").stdout)["found"]
  assert {f["batch_size"] for f in found} == {512, 1024} and all(f["fits"] for f in found)
  for size in (512, 1024):
    assert times_of(found, size) == sorted(times_of(found, size))
  # The number of rows is the same for all batch sizes.
  assert {f["steps"] * f["batch_size"] for f in found} == {524_288 * 512}
  text = t5like(*command, "--search", "--batch_sizes=512").stdout
  assert "fastest: --gin.MESH.data=" in text
  # The printed options reproduce the result, without rematerialization (unquoted none would be None).
  fastest = shlex.split(re.search("fastest: (.*)", text)[1])
  again = json.loads(t5like(*command, *fastest, "--json").stdout)["phases"][-1]
  assert "--gin.REMAT='none'" in fastest and again["step_seconds"] == pytest.approx(min(times_of(found, 512)))
  plain = t5like(*command).stdout
  assert "InfiniBand" in plain and "NVLink" in plain and "|#" in plain
  assert "AWS's list price" in plain and "kg per kWh" in plain


def test_phases_add_up(t5like):
  command = ["plan", "--gin_file=models/bert/tiny.gin", "--gin_file=objectives/bert_mlm.gin", *PRETRAIN[1:]]
  phases = "--gin.PHASES=[{'steps': 900, 'lengths': {'inputs': 128}}]"
  plan = json.loads(
    t5like(*command, phases, "--gin.TRAIN_STEPS=1000", "--gin.SCAN_LAYERS=True", "--topology=v5e-4", "--json").stdout
  )
  assert [phase["steps"] for phase in plan["phases"]] == [900, 100]
  seconds = sum(phase["steps"] * phase["step_seconds"] for phase in plan["phases"])
  assert plan["price"]["device_hours"] == pytest.approx(4 * seconds / 3600)


@pytest.mark.parametrize(
  "options, message",
  [
    (["--topology=v5x-8"], "nearest"),
    (["--topology=v5e-64", "--gin.MESH.data=3"], "does not cover the devices"),
    (["--topology=v5e-256"], "must be divisible by the 256 data shards"),
    (
      ["--topology=v5e-64", "--gin.MESH.data=1", "--gin.MESH.tensor=64"],
      "is not divisible by the size 64 of the 'tensor' axis",
    ),
    (["--topology=2xv5e-16", "--gin.MESH.slices=4"], "--gin.MESH.slices=2"),
    (["--topology=h100", "--search", "--batch_sizes=a"], "invalid --batch_sizes: a"),
    (["--topology=h100", "--batch_sizes=128"], "--batch_sizes is an option of --search"),
    (["--topology=h100", "--search", "--price=1", "--pue=2"], "--price, --pue: --search compares times"),
    (["--topology=v5e-256", "--search", "--batch_sizes=100,50"], "--batch_sizes=128"),
    (["--topology=h100", "--price=-2"], "invalid --price: -2.0"),
    (["--topology=h100", "--price=nan"], "invalid --price: nan"),
    (["--topology=h100", "--pue=0"], "1 or more"),
  ],
)
def test_invalid_options_are_rejected(t5like, options, message):
  error = t5like("plan", "--gin_file=models/t5_1_1/small.gin", *PRETRAIN, *options, status=2).stderr
  assert message in error and "Traceback" not in error


def test_a_plan_without_files_names_what_is_missing(t5like):
  error = t5like("plan", "--topology=h100", status=2).stderr
  assert "'train' is not configured: model_dir, model" in error and "--gin_file=runs/pretrain.gin" in error


def test_the_price_tag_of_a_recurrent_model_has_no_plan(tmp_path):
  files = ["runs/awd_lstm.gin", "models/awd_lstm/tiny.gin"]
  experiment = read_experiment(files, [("MODEL_DIR", str(tmp_path))])
  assert planned_seconds(experiment, parse_topology("h200")) is None


def test_the_price_tag_of_two_attempts(tmp_path):
  register_configurables()
  options = {"MODEL_DIR": str(tmp_path), "TRAIN_STEPS": "300", "BATCH_SIZE": "8", "LENGTHS": "{'inputs': 32}"}
  configuration.load(["models/t5/tiny.gin", "objectives/span_corruption.gin", "runs/pretrain.gin"], [*options.items()])
  experiment = configuration.build("train")
  lines = [
    {"started": 1.0, "process": 1, "written": 9.0, "first_step": 0, "last_step": 200, "ended": "running",
     "steps_lost": 0, "seconds": 3600.0, "spent": {"steps": 1800.0}},
    {"started": 10.0, "process": 2, "written": 19.0, "first_step": 100, "last_step": 300, "ended": "finished",
     "steps_lost": 100, "seconds": 1800.0, "spent": {"steps": 1800.0}},
  ]  # fmt: skip
  (tmp_path / "goodput.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  phases = [Phase(Lengths(35, 32, 8), 8)]
  rows = {line[:14].strip(): line[14:].split() for line in price_tag(experiment, tmp_path, phases).split("\n")}
  assert rows["attempts"] == ["2", "1"] and rows["steps"] == ["400", "300"]
  assert rows["of it in steps"][0] == "66.7%"
  # An hour and a half on eight devices; a hundred steps were trained twice.
  assert rows["device-hours"][0] == "12"
  paid, planned = (float(number) for number in rows["model FLOPs"][::2])
  assert paid / planned == pytest.approx(4 / 3, rel=0.01)
