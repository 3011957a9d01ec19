"""Errors for T5X users: its names are answered with ours, its imports and files are explained."""

import re
from pathlib import Path

import pytest

from t5like import configuration
from t5like.configuration.checks import registered
from t5like.configuration.search_path import shipped_folder
from t5like.configuration.t5x_defaults import RUN_VALUES, model_file, our_task
from t5like.configuration.t5x_files import read_t5x_file
from t5like.configuration.t5x_names import TABLE, markdown_table
from t5like.errors import UserError

pytestmark = pytest.mark.usefixtures("clean_gin")
T5X = Path(__file__).parents[1] / "data" / "t5x_gin" / "t5x"


def message_of(*overrides, files=("models/t5_1_1/small.gin", "runs/finetune.gin")) -> str:
  given = [("MODEL_DIR", "/tmp/x"), ("TASK", "snli"), ("INIT_FROM", "None")]
  with pytest.raises(UserError) as caught:
    configuration.load(files, [*given, *overrides])
  return caught.value.render()


def test_the_readme_contains_the_table_of_the_code():
  assert markdown_table() in (shipped_folder() / "README.md").read_text()


def test_our_names_in_the_table_exist():
  source = "\n".join(p.read_text() for p in shipped_folder().rglob("*.gin"))
  for entry in TABLE.values():
    if not entry.ours or entry.is_option:
      continue
    selector, _, parameter = entry.ours.partition(".")
    if parameter:
      assert selector in registered(), entry
    else:
      assert re.search(rf"(^{entry.ours} = |%{entry.ours}\b)", source, re.MULTILINE), entry


@pytest.mark.parametrize(
  "theirs, ours",
  [
    ("MIXTURE_OR_TASK_NAME", "TASK"),
    ("TASK_FEATURE_LENGTHS", "LENGTHS"),
    ("MIXTURE_OR_TASK_MODULE", "TASK_MODULES"),
    ("INITIAL_CHECKPOINT_PATH", "INIT_FROM"),
    ("EVAL_STEPS", "EVAL_LOSS_BATCHES"),
    ("RANDOM_SEED", "SEED"),
    ("LOSS_NORMALIZING_FACTOR", "LOSS_NORMALIZER"),
    ("PjitPartitioner.num_partitions", "MESH.tensor"),
    ("partitioning.ModelBasedPjitPartitioner.model_parallel_submesh", "MESH.tensor"),
    ("utils.SaveCheckpointConfig.period", "CHECKPOINT_PERIOD"),
    ("train.stats_period", "LOG_PERIOD"),
    ("train_script.train.eval_period", "EVAL_PERIOD"),
    ("train/utils.DatasetConfig.batch_size", "BATCH_SIZE"),
    ("utils.RestoreCheckpointConfig.path", "INIT_FROM"),
    ("adafactor.Adafactor.decay_rate", "adafactor.decay_rate"),
    ("utils.create_learning_rate_scheduler.warmup_steps", "WARMUP_STEPS"),
    ("CHECKPOINT_PATH", "the option model_dir"),
  ],
)
def test_a_name_of_t5x_is_answered_with_ours(theirs, ours):
  short = ".".join(theirs.split("/")[-1].split(".")[-2:])
  message = message_of((theirs, "4"))
  assert f"T5X's {short} is {ours} here" in message and "t5like convert gin" in message


def test_names_without_an_equivalent_are_explained():
  message = message_of(("USE_CACHED_TASKS", "True"))
  assert "T5X's USE_CACHED_TASKS has no equivalent here: token caches are built automatically" in message
  assert "dtype -> PARAM_DTYPE" in message_of(("utils.RestoreCheckpointConfig.unheard_of", "1"))


def test_a_name_of_t5x_in_a_file_is_answered_with_its_line(tmp_path):
  (tmp_path / "mine.gin").write_text("BATCH_SIZE = 8\nMIXTURE_OR_TASK_NAME = 'glue'\n")
  message = message_of(files=["models/t5_1_1/small.gin", "runs/finetune.gin", str(tmp_path / "mine.gin")])
  assert "T5X's MIXTURE_OR_TASK_NAME is TASK here" in message and "mine.gin:2" in message


@pytest.mark.parametrize(
  "line, words",
  [
    ("from __gin__ import dynamic_registration", ["registers its names itself", "t5like convert gin"]),
    ("import __main__ as train_script", ["'__main__'", "remove the line"]),
    ("from t5x import utils", ["'t5x.utils'", "t5like convert gin"]),
    ("import t5.data.mixtures", ["TASK_MODULES = ['t5.data.mixtures']"]),
    ("include 't5x/examples/t5/t5_1_1/base.gin'", ["is models/t5_1_1/base.gin here"]),
    ("include 't5x/configs/runs/infer.gin'", ["is the command `t5like infer` here"]),
  ],
)
def test_imports_and_includes_of_t5x_files_are_explained(line, words, tmp_path):
  (tmp_path / "theirs.gin").write_text(f"{line}\n")
  message = message_of(files=[str(tmp_path / "theirs.gin")])
  assert all(word in message for word in words), message


@pytest.mark.parametrize("run", ["pretrain", "finetune", "eval", "infer"])
def test_our_copy_of_t5x_defaults_equals_its_run_files(run):
  theirs = read_t5x_file(T5X / "configs" / "runs" / f"{run}.gin")
  assert {name: theirs.get(name, "absent") for name in RUN_VALUES[run]} == RUN_VALUES[run]


def test_files_and_tasks_of_t5x_are_mapped_to_ours():
  assert model_file("t5x/examples/t5/t5_1_0/11B.gin") == "models/t5/11b.gin"
  assert model_file("t5x/examples/scalable_t5/mt5/xl.gin") == "models/mt5/xl.gin"
  assert model_file("t5x/examples/decoder_only/models/large.gin") == "models/t5_1_1/large.gin"
  assert model_file("t5x/examples/long_t5/models/base.gin") is None
  assert our_task("glue_cola_v002") == "glue_cola" and our_task("c4_v220_span_corruption") == "c4_span_corruption"
  assert our_task("wmt19_ende_v003") is None
