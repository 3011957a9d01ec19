"""Edits of a task, in its code or in a value that its objects hold, are noticed; rerunning it is not an edit."""

import functools
import importlib
import sys
import textwrap

import pytest
import seqio
import tensorflow as tf

from t5like.evaluation.scoring import find_function
from t5like.tasks.caching import text_pipeline
from t5like.tasks.registry import NameTaken, register_task

HEAD = """
import functools, re
import dataclasses, numpy as np, seqio, tensorflow as tf
VOCABULARY = seqio.ByteVocabulary()
FEATURES = {name: seqio.Feature(VOCABULARY) for name in ("inputs", "targets")}
def rows(split, shuffle_files=False, seed=None):
  return tf.data.Dataset.from_tensor_slices({"inputs": ["one"], "targets": ["1"]})
SOURCE = seqio.FunctionDataSource(rows, splits=["train"])
def add(step=lambda rows: rows, source=SOURCE):
  steps = [step, seqio.preprocessors.tokenize]
  seqio.TaskRegistry.add("edited", source=source, preprocessors=steps, output_features=FEATURES, metric_fns=[])
def with_prefix(text, rows):
  return rows.map(lambda row: {**row, "inputs": tf.strings.join([text, row["inputs"]])})
class Prefix:
  def __init__(self, text):
    self.text = text
  def __call__(self, rows):
    return with_prefix(self.text, rows)
"""
FILES = 'dict(split_to_filepattern={"train": "rows.txt"})'
# Texts of modules; VALUE is edited.
EDITS = {
  "an object": 'add(Prefix("VALUE"))',
  "a method of an object": 'add(Prefix("VALUE").__call__)',
  "a global object": """
    SETTINGS = Prefix("VALUE")
    add(lambda rows: with_prefix(SETTINGS.text, rows))""",
  "slots": """
    @dataclasses.dataclass(slots=True)
    class Settings:
      text: str
    SETTINGS = Settings("VALUE")
    add(lambda rows: with_prefix(SETTINGS.text, rows))""",
  "a mixed dictionary": """
    TABLE = {"step": with_prefix, "text": "VALUE"}
    add(lambda rows: TABLE["step"](TABLE["text"], rows))""",
  "a partial within a function": """
    STEP = functools.partial(with_prefix, "VALUE")
    add(lambda rows: STEP(rows))""",
  "an array": """
    TABLE = np.array(["VALUE"])
    add(lambda rows: with_prefix(TABLE[0], rows))""",
  "a tensor": """
    TEXT = tf.constant("VALUE")
    add(lambda rows: with_prefix(TEXT, rows))""",
  "a pattern": """
    PATTERN = re.compile("VALUE")
    add(lambda rows: with_prefix(PATTERN.pattern, rows))""",
  "a value that a source reads": """
    TEXTS = ["VALUE"]
    def others(split, shuffle_files=False, seed=None):
      return tf.data.Dataset.from_tensor_slices({"inputs": TEXTS, "targets": ["1"]})
    add(source=seqio.FunctionDataSource(others, splits=["train"]))""",
  "a reader of files": f"""
    def read(files):
      return with_prefix("VALUE", tf.data.TextLineDataset(files).map(lambda line: {{"inputs": line, "targets": line}}))
    add(source=seqio.FileDataSource(read, **{FILES}))""",
  "a header": f'add(source=seqio.TextLineDataSource(skip_header_lines=len("VALUE") - 3, **{FILES}))',
  "a description of features": f"""
    KINDS = {{"inputs": tf.io.FixedLenFeature([], tf.string, "VALUE")}}
    add(source=seqio.TFExampleDataSource(feature_description=KINDS, **{FILES}))""",
}


@pytest.fixture
def described(tmp_path, monkeypatch):
  """Returns a function that describes the task of a module's text, as in a new process."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  (tmp_path / "rows.txt").write_text("a\n")
  names = iter(range(9))

  def describe(text):
    folder = tmp_path / str(next(names))
    folder.mkdir()
    (folder / "edited_tasks.py").write_text(HEAD + textwrap.dedent(text))
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    sys.modules.pop("edited_tasks", None)
    importlib.import_module("edited_tasks")
    try:
      return text_pipeline.describe(seqio.TaskRegistry.get("edited"), "train")
    finally:
      seqio.TaskRegistry.remove("edited")

  yield describe
  sys.modules.pop("edited_tasks", None)


@pytest.mark.parametrize("text", EDITS.values(), ids=EDITS)
def test_an_edited_value_makes_token_caches_stale(described, text):
  first, same, edited = (described(text.replace("VALUE", value)) for value in ("old", "old", "newer"))
  assert first == same != edited


def test_arguments_of_partials_have_no_addresses(described):
  step = """
    def encoded(vocabulary, kinds, other, rows):
      return rows
    add(functools.partial(encoded, VOCABULARY, {"inputs": with_prefix, "others": [FEATURES["inputs"]]}, Prefix("a")))"""
  assert described(step) == described(step)


class Prefix:
  def __init__(self, text):
    self.text = text

  def __call__(self, rows):
    return rows

  def right(self, targets, predictions):
    return {self.text: 1.0}


def definition(prefix, header=0):
  return dict(
    source=seqio.TextLineDataSource({"train": "rows.txt"}, skip_header_lines=header),
    preprocessors=[Prefix(prefix), seqio.preprocessors.tokenize],
    output_features={"targets": seqio.Feature(seqio.ByteVocabulary())},
    metric_fns=[Prefix(prefix).right],
  )


def test_another_value_of_an_object_is_another_definition():
  try:
    task = register_task("held_values", **definition("a"))
    assert register_task("held_values", **definition("a")) is task
    for other in (definition("b"), definition("a", header=1)):
      with pytest.raises(NameTaken, match="values"):
        register_task("held_values", **other)
  finally:
    seqio.TaskRegistry.remove("held_values")


def doubled(metric):
  @functools.wraps(metric)
  def double(targets, predictions):
    return {f"double {name}": 2 * value for name, value in metric(targets, predictions).items()}

  return double


def share(targets, predictions, names=None):
  names = names or {}
  return {"share": 100 * sum(names.get(t, t) == p for t, p in zip(targets, predictions, strict=True)) / len(targets)}


# A name in a module is not enough to find these: functions with their arguments.
UNNAMED = {
  "a method of an object": Prefix("x").right,
  "a decorated function": doubled(share),
  "numbers as keys": functools.partial(share, names={0: 1}),
  "tuples": functools.partial(share, names={"a": ("b",)}),
}


@pytest.mark.parametrize("metric", UNNAMED.values(), ids=UNNAMED)
def test_metrics_that_a_name_does_not_find_are_those_of_the_task(metric):
  settings = definition("a") | {"metric_fns": [share, metric]}
  task = register_task("unnamed_metric", **settings)
  try:
    named, unnamed = text_pipeline.scoring(task)["metrics"]
    assert named == {"function": f"{__name__}:share", "keywords": {}}
    assert find_function(unnamed, [__name__]) is metric
  finally:
    seqio.TaskRegistry.remove("unnamed_metric")


def test_nested_fields_and_bytes_that_are_no_text(capsys):
  rows = {"targets": [b"caf\xe9", b"\xef\xbf\xbd"], "answers": {"text": [["a"], ["b"]], "start": [[1], [2]]}}
  dataset = tf.data.Dataset.from_tensor_slices(rows)
  source = seqio.FunctionDataSource(lambda split, shuffle_files=False, seed=None: dataset, splits=["train"])
  settings = definition("a") | {"source": source}
  task = register_task("nested_fields", **settings)
  try:
    first, second = text_pipeline.text_examples(task, "train")
    assert text_pipeline.text_features(task, "train") == ["targets"]
  finally:
    seqio.TaskRegistry.remove("nested_fields")
  assert first == {"targets": "caf\ufffd", "answers": {"text": ["a"], "start": [1]}}
  assert second == {"targets": "\ufffd", "answers": {"text": ["b"], "start": [2]}}
  (note,) = capsys.readouterr().err.splitlines()
  assert note == "note: task 'nested_fields' has text that is not UTF-8; invalid bytes are replaced, as in 'caf\ufffd'"
