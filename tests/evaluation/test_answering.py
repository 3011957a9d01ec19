"""The labels of tasks."""

import pytest

from t5like.errors import UserError
from t5like.evaluation.answering import label_set


def test_the_labels_of_a_task():
  examples = [{"targets_pretokenized": text} for text in ("yes", "no", "no", "yes")]
  worded = {"postprocessor": {"function": "m:f", "keywords": {"label_classes": ["b", "a"]}}}
  assert label_set(worded, examples, "t") == ["b", "a"]
  assert label_set({"postprocessor": None}, examples, "t") == ["no", "yes"]
  with pytest.raises(UserError, match="no set of labels"):
    label_set({"postprocessor": None}, [{"targets_pretokenized": str(n)} for n in range(50)], "t")
