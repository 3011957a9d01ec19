"""Rows of outputs are strict JSON."""

import json

import numpy as np
import pytest

from t5like.inference.outputs import _line


def refuse(constant):
  raise AssertionError(constant)


@pytest.mark.parametrize(
  ("row", "read"),
  [
    ({"text": "grün", "score": -1.5}, {"text": "grün", "score": -1.5}),
    ({"score": float("nan"), "all": [float("-inf"), 1.0]}, {"score": None, "all": [None, 1.0]}),
    ({"embedding": np.array([1.0, np.inf], np.float32)}, {"embedding": [1.0, None]}),
    ({"text": "\ud800", "score": float("nan")}, {"text": "\ud800", "score": None}),
  ],
)
def test_a_row_is_a_line_of_json(row, read):
  line = _line(row)
  assert line.endswith(b"\n") and json.loads(line, parse_constant=refuse) == read
