"""The tasks, metrics and sizes that the fine-tuning recipes of gin/finetune name."""

import re

import pytest

from t5like.configuration.search_path import shipped_folder
from t5like.tasks import registry
from t5like.tasks.missing_data import tfds_name
from t5like.tasks.preparation.official_sizes import OFFICIAL_SIZES

FINETUNE = shipped_folder() / "finetune"
RECIPES = sorted(
  str(p.relative_to(shipped_folder()))
  for p in (shipped_folder() / "finetune").glob("*/*.gin")
  if p.parent.name not in ("suites", "embeddings", "methods")
)
# Targets and predictions of every kind that a metric may compare.
VALUES = [
  ([0, 1], [0, 1]),
  ([["a"]], ["a"]),
  (["a b c d"], ["a b c d"]),
  ([["O", "B-x"]], [["O", "B-x"]]),
  ([{"value": 1, "group": 1}], [{"value": 1}]),
  ([{"value": ["a"], "group": 1}], [{"value": "a"}]),
]
# Rows that heads are trained on, where they are not the rows of the training set.
OTHER_SIZES = {
  "glue/qqp": 363_849,  # as in the t5 library, TFDS leaves out three
  "squad/v1.1": 88_500,  # windows
  "squad/v2.0": 132_000,
  "super_glue/record": 1_200_000,  # candidates
  "imdb_reviews/plain_text": 22_500,  # a tenth is held out
  "trec": 4_907,
  "conll2003/conll2003": 14_041,
  "conll2003": 14_041,
}


def macros(recipe):
  lines = (shipped_folder() / recipe).read_text().splitlines()
  return dict(line.split(" = ", 1) for line in lines if re.match(r"[A-Z_]+ = ", line))


def names(recipe, *keys):
  return [name for key in keys if key in macros(recipe) for name in re.findall(r"'([^']+)'", macros(recipe)[key])]


def metric_names(task):
  found = set()
  for metric in task.metric_fns:
    for targets, predictions in VALUES:
      try:
        found |= set(metric(targets, predictions))
        break
      except Exception:  # not the kind that it compares
        continue
  return found


@pytest.mark.parametrize("recipe", RECIPES)
def test_tasks_and_metrics_exist(recipe):
  tasks = names(recipe, "TEXT_TASK", "HEAD_TASK", "TEXT_EVAL_TASKS", "HEAD_EVAL_TASKS")
  found = {name: registry.find_task(name) for name in tasks}
  scored = (names(recipe, "TEXT_EVAL_TASKS") or names(recipe, "TEXT_TASK"))[0]
  (metric,) = names(recipe, "METRIC")
  assert metric in metric_names(found[scored])


@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if "HEAD_TASK" in macros(recipe)])
def test_numbers_of_examples(recipe):
  task = registry.find_task(names(recipe, "HEAD_TASK")[0])
  data = tfds_name(task)
  official = 30_000 if data is None else OTHER_SIZES.get(data) or OFFICIAL_SIZES[data]["train"]
  assert int(macros(recipe)["EXAMPLES"]) == official


def test_every_task_has_a_recipe():
  """GLUE and SuperGLUE, and the others that users fine-tune on."""
  covered = {name for recipe in RECIPES for name in names(recipe, "TEXT_TASK")}
  benchmarks = {
    name for name in registry.task_names()
    if re.fullmatch(r"(super_)?glue_[a-z0-9]+", name) and name not in ("glue_ax", "super_glue_axb", "super_glue_axg")
  }  # fmt: skip
  others = {
    "squad", "squad_v2", "conll2003", "wnut_17", "swag", "imdb", "trec_6", "cnn_dailymail", "xsum", "wmt_en_de",
    "wmt_en_fr", "wmt_en_ro", "snli",
  }  # fmt: skip
  assert benchmarks | others <= covered
