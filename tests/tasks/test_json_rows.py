"""Rows of custom tasks: a field that is not a string is reported before tf.data reads it."""

import gzip
import json

import pytest

from t5like.errors import UserError
from t5like.tasks.sources import TableSource, read_json_lines, read_table


@pytest.mark.parametrize("value", [None, 3, ["x"], True])
def test_a_field_that_is_not_a_string_is_named_with_its_line(value, tmp_path):
  path = tmp_path / "rows.jsonl"
  rows = [{"premise": "a", "label": "yes"}, {"premise": "b", "label": value}]
  path.write_text("\n".join(map(json.dumps, rows)))
  reader = read_json_lines(path, ["premise", "label"])
  assert next(reader) == rows[0]
  with pytest.raises(UserError) as error:
    next(reader)
  assert "rows.jsonl:2" in str(error.value) and "premise, label" in str(error.value)


@pytest.mark.parametrize(
  "name, content",
  [
    ("rows.tsv", 'id\tquestion\tanswer\n1\tsays "hi\tyes, no\n2\t\tb\n'),
    ("rows.csv", 'answer,id,question\n"yes, no",1,"says ""hi"\nb,2,\n'),
    ("rows.csv.gz", 'answer,id,question\r\n"yes, no",1,"says ""hi"\r\nb,2,\r\n'),
  ],
)
def test_tables_are_read_by_column_name(name, content, tmp_path):
  path = tmp_path / name
  path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
  rows = [{"question": 'says "hi', "answer": "yes, no"}, {"question": "", "answer": "b"}]
  assert list(read_table(path, ["question", "answer"])) == rows
  source = TableSource({"train": path}, ["question", "answer"])
  dataset = source.get_dataset(split="train", shuffle=False)
  assert [{k: v.decode() for k, v in row.items()} for row in dataset.as_numpy_iterator()] == rows


def test_tables_with_missing_columns_are_refused(tmp_path):
  (tmp_path / "rows.csv").write_text("a,b\n1,2\n3\n")
  with pytest.raises(UserError, match="no column 'c'(.|\n)*a, b"):
    next(read_table(tmp_path / "rows.csv", ["a", "c"]))
  with pytest.raises(UserError, match="rows.csv:3"):
    list(read_table(tmp_path / "rows.csv", ["a"]))
