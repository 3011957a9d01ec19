"""What the settings of a run on own rows need not say: their number, and the usual metric of their form."""

import gzip

import pytest

import t5like
from t5like.errors import UserError

FILES = ["models/bert/tiny.gin", "finetune/bert.gin"]


def read(task="films_classification", files=FILES, **given):
  return t5like.read_experiment(files, HEAD_TASK=task, MODEL_DIR="run", INIT_FROM=None, **given)


@pytest.fixture
def rows(tmp_path):
  """Two files with 60 and 40 rows, of which one is compressed and one has an empty line."""
  (tmp_path / "a.jsonl").write_text("{}\n" * 60 + "\n")
  (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b"{}\n" * 39 + b"{}"))
  (tmp_path / "c.txt").write_text("a text\n")
  return {"train": f"{tmp_path}/*.json*", "validation": f"{tmp_path}/c.txt"}


def test_rows_for_training_are_counted_if_their_number_is_not_given(rows):
  assert read(CORPUS_FILES=rows, HEAD_BATCH_SIZE=10, EPOCHS=2).steps == 20
  assert read(CORPUS_FILES=rows, HEAD_BATCH_SIZE=10, EPOCHS=2, EXAMPLES=50).steps == 10
  embeddings = ["models/bert/tiny.gin", "finetune/embeddings/own.gin"]  # EXAMPLES = %gin.REQUIRED
  assert read("films_embedding", embeddings, CORPUS_FILES=rows, HEAD_BATCH_SIZE=10, EPOCHS=1).steps == 10
  fewer = ["models/bert/tiny.gin", "finetune/bert.gin", "finetune/glue/rte.gin"]  # has EXAMPLES
  assert read(files=fewer, CORPUS_FILES=rows, HEAD_BATCH_SIZE=10, EPOCHS=1).steps == 249


def test_a_device_is_not_counted(tmp_path):
  (tmp_path / "a.jsonl").symlink_to("/dev/zero")
  with pytest.raises(UserError, match="a.jsonl is not a file"):
    read(CORPUS_FILES={"train": f"{tmp_path}/a.jsonl"})


@pytest.mark.parametrize("files", [{"train": "none/*.jsonl"}, {"train": "gs://bucket/*.jsonl"}])
def test_rows_that_are_not_here_are_not_counted(files):
  with pytest.raises(UserError, match="missing required values: EXAMPLES"):
    read(CORPUS_FILES=files)


def test_text_is_not_counted(rows):
  with pytest.raises(UserError, match="missing required values: EXAMPLES"):
    read(CORPUS_FILES={"train": rows["validation"]})


@pytest.mark.parametrize(
  ("task", "metric"),
  [("a_classification", "accuracy"), ("a_tagging", "f1"), ("a_spans", "f1"), ("a_text_to_text", "accuracy")],
)
def test_the_usual_metric_of_a_form_keeps_the_best_checkpoint(task, metric):
  assert read(task, EXAMPLES=1).keep.metric == f"eval/{task}/{metric}"
  assert read(task, EXAMPLES=1, METRIC="other").keep.metric == f"eval/{task}/other"
  assert read(task, EXAMPLES=1, EVAL_SPLIT="").keep.metric == ""
  assert read("x_classification", EXAMPLES=1, HEAD_EVAL_TASKS=[task]).keep.metric == f"eval/{task}/{metric}"


def test_other_tasks_need_a_metric():
  with pytest.raises(UserError, match="no metric for task 'a'\n +try +METRIC="):
    read("a", EXAMPLES=1)
