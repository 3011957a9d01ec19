"""A custom task in a user's module, as in the README."""

import json

import pytest

MODULE = """
import seqio
from t5like.tasks import postprocessors, preprocessors
from t5like.tasks.library.corpora import register_corpus
from t5like.tasks.registry import default_features
from t5like.tasks.sources import JsonLinesSource

register_corpus("logbook", {"train": "diary.jsonl"})


def long_answers(targets, predictions):
  return {"long": 100 * sum(len(p) > 3 for p in predictions) / len(predictions)}


def question(dataset):
  return preprocessors.labeled_text(dataset, name="quiz", keys=("question",), label_key="answer")


seqio.TaskRegistry.add(
  "sums",
  source=JsonLinesSource({"train": "quiz.jsonl", "validation": "quiz.jsonl"}, ["question", "answer"]),
  preprocessors=[question, seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim],
  output_features=default_features(),
  postprocess_fn=postprocessors.strip_text,
  metric_fns=[long_answers],
)
"""


@pytest.fixture
def folder(tmp_path):
  (tmp_path / "my_tasks.py").write_text(MODULE)
  (tmp_path / "diary.jsonl").write_text(
    "".join(json.dumps({"text": f"Day {i}: it rained again."}) + "\n" for i in range(50))
  )
  rows = [{"question": f"{i} plus {i}?", "answer": str(2 * i)} for i in range(16)]
  (tmp_path / "quiz.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  return tmp_path


@pytest.mark.slow  # test_t5x_users_tasks.py trains on a custom task, test_token_cache.py builds a custom corpus
def test_a_custom_corpus_and_labeled_task(t5like, small_model, folder, monkeypatch):
  monkeypatch.chdir(folder)
  own = [*small_model, "--gin.TASK_MODULES=['my_tasks']", "--gin.CACHE_DIR=tokens", "--gin.TRAIN_STEPS=2"]
  pretrain = ["--gin_file=objectives/span_corruption.gin", "--gin_file=runs/pretrain.gin", "--gin.TASK=logbook"]
  out = t5like("train", *own, *pretrain, "--gin.LENGTHS={'inputs': 16}", "--gin.MODEL_DIR=first").stdout
  assert "t5like cache logbook" in out and "task logbook (train)" in out
  finetune = ["--gin_file=runs/finetune.gin", "--gin.TASK=sums", "--gin.INIT_FROM=first", "--gin.MODEL_DIR=second"]
  lengths = "--gin.LENGTHS={'inputs': 16, 'targets': 4}"
  t5like("cache", "sums", "--split=validation", "--vocabulary=tiny", "--out=tokens", "--task_modules=my_tasks")
  out = t5like("train", *own, *finetune, lengths).stdout
  assert "sums (validation, 16 examples) at step 2: long " in out and "quiz question: 0 plus 0?" in out


@pytest.mark.slow  # starts TensorFlow five times; tests/data/test_cache.py tests the check itself
def test_a_changed_file_makes_the_cache_stale_and_rebuilds_it(t5like_process, folder):
  command = ["cache", "logbook", "--vocabulary=tiny", "--out=tokens", "--task_modules=my_tasks"]
  assert "token cache written" in t5like_process(*command, cwd=folder).stdout
  assert "up to date" in t5like_process(*command, cwd=folder).stdout
  (folder / "diary.jsonl").write_text(json.dumps({"text": "One long dry day."}) + "\n")
  out = t5like_process(*command, cwd=folder).stdout
  assert "token cache written" in out and "1 examples" in out
