"""Errors in a user's own task name its line."""

import importlib.util
import sys

import pytest
import seqio
import tensorflow as tf

from t5like.errors import UserError
from t5like.tasks.missing_data import explain_data_errors

MODULE = """
def wrong_feature(dataset):
  return dataset.map(lambda example: {"inputs": example["nosuch"]})


def wrong_type(dataset):
  return dataset.take(len(dataset) + "one")
"""


@pytest.mark.parametrize("rewritten", [False, True])
@pytest.mark.parametrize(
  "step, line, because",
  [("wrong_feature", 3, "KeyError: 'nosuch'"), ("wrong_type", 7, "unsupported operand type")],
)
def test_an_error_of_a_preprocessor_names_its_line(step, line, because, rewritten, tmp_path, monkeypatch):
  """Also of one that TensorFlow has rewritten, which it does for the functions of imported modules."""
  file = tmp_path / "own_tasks.py"
  file.write_text(MODULE)
  spec = importlib.util.spec_from_file_location("own_tasks", file)
  module = importlib.util.module_from_spec(spec)
  if rewritten:
    monkeypatch.setitem(sys.modules, "own_tasks", module)
  spec.loader.exec_module(module)
  source = seqio.FunctionDataSource(
    lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices({"inputs": ["a", "b"]}), ["train"]
  )
  features = {"inputs": seqio.Feature(seqio.PassThroughVocabulary(9), add_eos=False)}
  task = seqio.Task("quiz", source=source, output_features=features, preprocessors=[getattr(module, step)])
  with pytest.raises(UserError) as error, explain_data_errors(task):
    task.get_dataset({"inputs": 4}, "train")
  text = error.value.render()
  assert "the code of task 'quiz' failed" in text and because in text and f"{file}:{line}: " in text
