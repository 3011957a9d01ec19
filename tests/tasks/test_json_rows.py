"""Rows of a task of one's own: a member that is no text is named before tf.data meets it."""

import json

import pytest

from t5like.errors import UserError
from t5like.tasks.sources import read_json_lines


@pytest.mark.parametrize("value", [None, 3, ["x"], True])
def test_a_member_that_is_no_text_is_named_with_its_line(value, tmp_path):
  path = tmp_path / "rows.jsonl"
  rows = [{"premise": "a", "label": "yes"}, {"premise": "b", "label": value}]
  path.write_text("\n".join(map(json.dumps, rows)))
  reader = read_json_lines(path, ["premise", "label"])
  assert next(reader) == rows[0]
  with pytest.raises(UserError) as error:
    next(reader)
  assert "rows.jsonl:2" in str(error.value) and "premise, label" in str(error.value)
