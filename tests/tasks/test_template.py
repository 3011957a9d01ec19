"""The template for custom tasks runs unchanged, and so does the example in the README."""

import importlib
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import seqio

from t5like.evaluation import scoring
from t5like.tasks import registry, template
from t5like.tasks.caching import text_pipeline

README = Path(template.__file__).with_name("README.md")


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """A user's working directory, which is also on the import path."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  importlib.invalidate_caches()
  return tmp_path


def test_a_copy_of_the_template_is_a_task(folder):
  shutil.copy(template.__file__, folder / "copied_tasks.py")
  task = registry.find_task("yes_or_no", ["copied_tasks"])
  example = next(text_pipeline.text_examples(task, "train"))
  assert example == {
    "inputs": "If A person on a horse jumps over a broken down airplane. is it true that "
    "A person is training his horse for a competition.",
    "targets": "no",
  }
  dataset = seqio.get_dataset(
    "yes_or_no",
    {"inputs": 64, "targets": 4},
    dataset_split="validation",
    shuffle=False,
    feature_converter=seqio.EncDecFeatureConverter(pack=False),
  )
  batch = next(dataset.as_numpy_iterator())
  vocabulary = task.output_features["targets"].vocabulary
  assert vocabulary.decode(batch["decoder_target_tokens"].tolist()) in ("yes", "no")
  modules = ["copied_tasks", "t5like.tasks.template"]  # the latter registered it first in this process
  metrics = [scoring.find_function(entry, modules) for entry in text_pipeline.scoring(task)["metrics"]]
  assert [metric(["yes", "no"], ["yes", "yes"]) for metric in metrics] == [{"accuracy": 50.0}, {"said_yes": 100.0}]


def test_the_example_in_the_readme_runs(folder):
  (code,) = re.findall(r"```python\n(import .*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
  assert len(code.splitlines()) <= 25
  (folder / "readme_tasks.py").write_text(code)
  for name in ("train", "dev"):
    (folder / f"{name}.jsonl").write_text(json.dumps({"question": "1 + 1?", "answer": "2"}) + "\n")
  task = registry.find_task("quiz", ["readme_tasks"])
  assert list(text_pipeline.text_examples(task, "validation")) == [{"inputs": "quiz: 1 + 1?", "targets": "2"}]
  seqio.TaskRegistry.remove("quiz")
  sys.modules.pop("readme_tasks")


def test_the_readme_names_every_shipped_task():
  named = set(re.findall(r"`([a-z0-9_]+)`", README.read_text(encoding="utf-8")))
  families = ("glue", "super_glue", "squad", "dpr", "cnn", "xsum", "wmt", "conll", "wnut")
  forms = ("_classification", "_spans", "_tagging")  # listed by their suffix
  shipped = {n for n in registry.task_names() if n.startswith(families) and not n.endswith(forms)}
  assert all(form in README.read_text(encoding="utf-8") for form in forms)
  assert shipped <= named and len(shipped) >= 34, sorted(shipped - named)
