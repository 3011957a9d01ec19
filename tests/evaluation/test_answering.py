"""Batches of prompts, and the labels of tasks."""

import numpy as np
import pytest

from t5like.errors import UserError
from t5like.evaluation.answering import label_set, length_batches


def test_every_prompt_is_in_one_batch_and_few_shapes_are_compiled():
  lengths = np.random.default_rng(0).integers(1, 100, 101).tolist()
  batches = list(length_batches(lengths, 8))
  assert sorted(row for rows, _ in batches for row in rows) == list(range(101))
  assert all(lengths[row] <= padded for rows, padded in batches for row in rows)
  assert {padded for _, padded in batches} == {128, 64, 32}
  assert lengths[batches[0][0][0]] == max(lengths)  # what does not fit fails at once


def test_the_labels_of_a_task():
  examples = [{"targets_pretokenized": text} for text in ("yes", "no", "no", "yes")]
  worded = {"postprocessor": {"function": "m:f", "keywords": {"label_classes": ["b", "a"]}}}
  assert label_set(worded, examples, "t") == ["b", "a"]
  assert label_set({"postprocessor": None}, examples, "t") == ["no", "yes"]
  with pytest.raises(UserError, match="no set of labels"):
    label_set({"postprocessor": None}, [{"targets_pretokenized": str(n)} for n in range(50)], "t")
