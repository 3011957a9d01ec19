"""Rows of outputs are strict JSON; standard output may be full, or closed."""

import json
import os
import types

import numpy as np
import pytest

from t5like.errors import RunError, UserError
from t5like.inference.job_settings import Generate
from t5like.inference.outputs import JsonLines, VectorFile, _line, check_header
from t5like.inference.rows import RejectedRow, Row, check_task, read_rows
from t5like.vocabularies import load_vocabulary


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


def test_an_input_field_called_error_does_not_make_a_rejected_row(tmp_path):
  lines = JsonLines(tmp_path / "out.jsonl", "inputs")
  lines._out = open(lines.path, "ab")
  lines.write([Row(0, "line 1", "a text", {"error": "of the writer"})], [{"prediction": "yes"}])
  lines.close()
  assert json.loads(lines.path.read_text())["input_error"] == "of the writer"
  assert 0 not in lines._read_done()[0] and lines.rejected == 0


@pytest.mark.parametrize("kind", ["lines", "vectors"])
def test_rejected_rows_are_counted_after_a_restart_too(tmp_path, kind):
  rows = [Row(0, "line 1", "a", {}), RejectedRow(1, "line 2", "too long"), Row(2, "line 3", "b", {})]
  answer = {"embedding": [1.0, 2.0]}

  def opened():
    return JsonLines(tmp_path / "out", "text") if kind == "lines" else VectorFile(tmp_path / "out.npy", 2)

  first = opened()
  assert first.resume(iter(rows)) == 0
  first.write(rows[:2], [answer, None])
  first._out.close()
  second = opened()
  assert (second.resume(iter(rows)), second.rejected) == (2, 1)
  second.write(rows[1:2], [None])
  assert second.rejected == 2


def test_a_disk_that_is_full(tmp_path):
  file, row = tmp_path / "out.jsonl", Row(0, "line 1", "a text", {})
  file.symlink_to("/dev/full")
  lines = JsonLines(file, "inputs")
  lines._out = open(file, "ab")
  for action in (lambda: lines.write([row], [{}]), lines.close):
    with pytest.raises(RunError, match="out.jsonl: No space left on device"):
      action()


def test_standard_output_that_is_full_or_closed(monkeypatch):
  lines, row = JsonLines(None, "inputs"), Row(0, "line 1", "a text", {})
  with open("/dev/full", "wb", buffering=0) as full:
    monkeypatch.setattr("sys.stdout", types.SimpleNamespace(buffer=full))
    lines.resume([])
    with pytest.raises(RunError, match="cannot write to standard output: No space left on device"):
      lines.write([row], [{}])
  reader, writer = os.pipe()
  os.close(reader)
  with open(writer, "wb", buffering=0) as closed:
    monkeypatch.setattr("sys.stdout", types.SimpleNamespace(buffer=closed))
    lines.resume([])
    with pytest.raises(BrokenPipeError):  # which the command line expects: `t5like ... | head`
      lines.write([row], [{}])


@pytest.mark.parametrize("record", ["[]", "3", "[" * 100_000, '{"settings": [1]}', '{"settings": null}', "{", None])
def test_a_damaged_record_is_reported(record, tmp_path):
  out = tmp_path / "out.jsonl"
  out.write_text("")
  if record is not None:
    (tmp_path / "out.jsonl.run.json").write_text(record)
  with pytest.raises(UserError, match="cannot be resumed: out.jsonl.run.json is missing or damaged"):
    check_header(out, {"settings": {"beams": 2}})


def test_a_damaged_last_row_is_written_again(tmp_path):
  (tmp_path / "out.jsonl").write_text('{"row": 0, "text": "a"}\n' + "[" * 100_000 + "\n")
  lines = JsonLines(tmp_path / "out.jsonl", "text")
  assert lines.resume(iter([Row(0, "line 1", "a", {}), Row(1, "line 2", "b", {})])) == 1
  lines.close()
  assert (tmp_path / "out.jsonl").read_text() == '{"row": 0, "text": "a"}\n'


@pytest.mark.parametrize(
  ("manifest", "message"),
  [({"answers": "ids"}, "plain ids, not text"), ({"targets_vocabulary": {"name": "byte"}}, "their own vocabulary")],
)
def test_a_task_whose_answers_are_not_in_the_models_vocabulary_is_for_eval(manifest, message):
  cache = types.SimpleNamespace(manifest=manifest, features=("inputs", "targets"), is_corpus=False)
  with pytest.raises(UserError, match=f"{message}(.|\n)*t5like eval --task=mine"):
    check_task([types.SimpleNamespace(task="mine", cache=cache)], "T5")


def test_outputs_of_a_model_with_several_ends_can_be_resumed():
  """Before there was a setting for them, outputs ended at the model's own ends, too."""

  def identity(own, **given):
    model = types.SimpleNamespace(vocabulary=load_vocabulary("tiny"), positions=None, decoding=own, given_languages=())
    return Generate(given).identity(model)

  assert "more_ends" not in identity({"more_ends": (7,)})
  assert identity({}, more_ends=[7])["more_ends"] == (7,)


def test_a_field_that_is_named_is_not_replaced_by_another(tmp_path):
  """Without a name, rows for training are read, too."""
  path = tmp_path / "rows.jsonl"
  path.write_text('{"text": "the sea"}\n')
  (row,) = read_rows(str(path), "jsonl", "inputs")
  assert row.text == "the sea"
  (row,) = read_rows(str(path), "jsonl", "question")
  assert isinstance(row, RejectedRow) and "no field 'question'" in row.reason
