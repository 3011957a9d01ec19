"""Labeled rows of the user's own: from memory or JSON lines to tasks."""

import json

import numpy as np
import pytest

import t5like
from t5like.errors import UserError
from t5like.experiments.cache_building import register_files
from t5like.tasks.caching.label_forms import label_form
from t5like.tasks.encoders.own_questions import Questions, placed_answers
from t5like.tasks.encoders.own_rows import CLASS, TEXT, LabeledColumns, register_classification
from t5like.tasks.registry import find_task_or_mixture


def write(path, *rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return str(path)


def examples(task, split="train", length=16):
  found = find_task_or_mixture(task).get_dataset({"inputs": length, "targets": length}, split, shuffle=False)
  return list(found.as_numpy_iterator())


def test_pairs_of_texts_with_words_as_labels(tmp_path):
  rows = [{"text": f"one {n}", "text_pair": "two", "label": label} for n, label in enumerate(["no", "yes", "maybe"])]
  files = {"train": write(tmp_path / "a.jsonl", *rows[:2], rows[2]), "validation": write(tmp_path / "b.jsonl", rows[1])}
  register_files("words_classification", files)
  task = find_task_or_mixture("words_classification")
  assert [int(row["labels"]) for row in examples("words_classification")] == [1, 2, 0]  # maybe, no, yes
  assert [int(row["labels"]) for row in examples("words_classification", "validation")] == [2]
  assert task.output_features["labels"].vocabulary.labels == ("maybe", "no", "yes")


def test_numbers_as_labels_are_in_their_order(tmp_path):
  rows = [{"text": "x", "label": label} for label in (10, 2, True)]
  source = LabeledColumns({"train": write(tmp_path / "a.jsonl", *rows)}, {"text": TEXT, "label": CLASS})
  assert source.names("train", "label") == ["1", "2", "10"]


def test_labels_with_a_fraction_are_scores(tmp_path):
  rows = [{"text": "x", "label": label} for label in (4, 2.5, -1)]
  register_files("scores_classification", {"train": write(tmp_path / "a.jsonl", *rows)})
  assert [float(row["labels"]) for row in examples("scores_classification")] == [4.0, 2.5, -1.0]
  task = find_task_or_mixture("scores_classification")
  assert label_form(task) == {"name": "regression"}
  measured = {name: value for metric in task.metric_fns for name, value in metric([1.0, 2.0], [2.0, 4.0]).items()}
  assert measured == pytest.approx({"pearson_corrcoef": 100, "spearman_corrcoef": 100, "mean_squared_error": 2.5})


def test_lists_of_labels_are_marks(tmp_path):
  rows = [{"text": "x", "label": label} for label in (["b", "c"], [], ["a"])]
  register_files("marks_classification", {"train": write(tmp_path / "a.jsonl", *rows)})
  assert [row["labels"].tolist() for row in examples("marks_classification")] == [[0, 1, 1], [0, 0, 0], [1, 0, 0]]
  assert label_form(find_task_or_mixture("marks_classification")) == {"name": "multi_label", "labels": ["a", "b", "c"]}


def test_words_with_tags(tmp_path):
  rows = [{"tokens": ["in", "New", "York"], "tags": ["O", "B-place", "I-place"]}, {"tokens": ["so"], "tags": ["O"]}]
  files = {"train": write(tmp_path / "a.jsonl", *rows), "validation": write(tmp_path / "b.jsonl", rows[1])}
  register_files("places_tagging", files)
  found = examples("places_tagging")
  assert found[0]["targets"][found[0]["weights"] == 1].tolist() == [0, 1, 2] and found[1]["weights"].sum() == 1
  assert label_form(find_task_or_mixture("places_tagging"))["labels"] == ["O", "B-place", "I-place"]
  other = write(tmp_path / "c.jsonl", {"tokens": ["x"], "tags": ["B-person"]})
  with pytest.raises(UserError) as error:
    list(find_task_or_mixture("places_tagging").source._rows(other))
  assert "tags of the training split (O, B-place, I-place)" in error.value.render()


def test_rows_of_several_files_are_text_to_text(tmp_path):
  for n in range(2):
    write(tmp_path / f"part{n}.jsonl", {"inputs": f"in {n}", "targets": f"out {n}"})
  register_files("several_text_to_text", {"train": f"{tmp_path}/*.jsonl"})
  found = [(row["inputs_pretokenized"], row["targets_pretokenized"]) for row in examples("several_text_to_text")]
  assert found == [(b"in 0", b"out 0"), (b"in 1", b"out 1")]
  assert find_task_or_mixture("several_text_to_text").postprocess_fn(" out 0\n") == "out 0"


@pytest.mark.parametrize(
  "name, row, message",
  [
    ("a_text_to_text", {"input": "x", "targets": "y"}, "have no inputs"),
    ("a_classification", {"text": "x"}, "have no label"),
    ("a_classification", {"text": "x", "label": "only one"}, "has 1 different labels"),
    ("a_classification", {"text": "x", "label": float("inf")}, "a number as label"),
    ("a_classification", {"text": "x", "label": 1e39}, "a number as label"),
    ("a_classification", {"text": "x", "label": {}}, "a word or a whole number"),
    ("a_classification", {"text": "x", "label": [0.5]}, "a list of words or whole numbers as label"),
    ("a_classification", {"text": "x", "label": []}, "has 0 different labels"),
    ("a_tagging", {"tokens": ["x"]}, "have no tags"),
    ("a_tagging", {"tokens": "x", "tags": ["O"]}, "a list of strings as tokens"),
    ("a_tagging", {"tokens": ["x", "y"], "tags": ["O"]}, "a tag for each"),
    ("a_tagging", {"tokens": [], "tags": []}, "a tag for each"),
    ("a_tagging", {"tokens": ["x"], "tags": ["O"]}, "has 1 different tags"),
    ("a_classification", {"text": "x", "label": " "}, "a word or a whole number"),
    ("a_classification", {"text": 3, "label": "x"}, "a string as text"),
    ("a_classification", {"text": "\ud83d", "label": "x"}, "half of a surrogate pair"),
  ],
)
def test_rows_of_another_form_are_refused(tmp_path, name, row, message):
  with pytest.raises(UserError) as error:
    register_files(name, {"train": write(tmp_path / "a.jsonl", row)})
  assert message in error.value.render()


def test_labels_that_the_training_split_lacks_are_named(tmp_path):
  files = {"validation": write(tmp_path / "b.jsonl", {"text": "x", "label": "c"})}
  files["train"] = write(tmp_path / "a.jsonl", {"text": "x", "label": "a"}, {"text": "x", "label": "b"})
  source = register_classification("lacks_classification", files).source
  with pytest.raises(UserError) as error:
    list(source._rows(files["validation"]))
  assert "b.jsonl:1" in error.value.render() and "(a, b)" in error.value.render()


QUESTIONS = [
  {"question": "Where?", "context": "Grün\nin Rome, in Rome", "answers": {"text": ["Rome"], "answer_start": [17]}},
  {"question": "When?", "context": "In 1066 or 1067.", "answers": ["1067", "1066"]},
]


def test_questions_about_passages(tmp_path):
  files = {"train": write(tmp_path / "a.jsonl", *QUESTIONS), "dev": write(tmp_path / "b.jsonl", QUESTIONS[1])}
  register_files("where_spans", files)
  task, found = find_task_or_mixture("where_spans"), examples("where_spans", length=24)
  vocabulary = task.output_features["inputs"].vocabulary
  for row, answer, start in zip(found, ("Rome", "1067"), (17, 11), strict=True):
    first, last = row["labels"]
    assert vocabulary.decode(row["inputs"][first : last + 1].tolist()) == answer.lower()
    assert row["offset_starts"][first] == start
  assert [answer.decode() for answer in found[1]["answers"]] == ["1067", "1066"]
  assert len({row["id"] for row in found}) == 2 and label_form(task)["name"] == "spans"
  assert len(examples("where_spans", "dev")) == 1
  assert task.metric_fns[0].__name__ == "squad_windows"
  register_files("maybe_spans", {"train": write(tmp_path / "c.jsonl", *QUESTIONS, QUESTIONS[0] | {"answers": []})})
  assert find_task_or_mixture("maybe_spans").metric_fns[0].__name__ == "squad_v2_windows"
  assert examples("maybe_spans", length=24)[2]["labels"].tolist() == [0, 0]


@pytest.mark.parametrize(
  ("answers", "placed"),
  [
    (None, []), ([], []), ({"text": [], "answer_start": []}, []), ("b", [(1, "b")]), (["c", "b"], [(3, "c"), (1, "b")]),
    ({"text": ["b"]}, [(1, "b")]), ({"text": ["b"], "answer_start": [2]}, [(2, "b")]),
    ({"text": ["b"], "answer_start": [0]}, None), ({"text": ["b"], "answer_start": []}, None), (["d"], None),
    ([""], None), (5, None), ({"text": ["b"], "answer_start": ["1"]}, None),
    ({"text": ["abb"], "answer_start": [-4]}, None),
  ],
)  # fmt: skip
def test_answers_are_where_the_context_has_them(answers, placed):
  assert placed_answers(answers, "abbc") == placed


@pytest.mark.parametrize(
  ("row", "message"),
  [
    ({"question": "Why?", "context": "so", "answers": ["no"]}, "expected  answers in the context: "),
    ({"question": 5, "context": "so", "answers": ["so"]}, "expected  a string as question"),
    ({"question": "Why?", "answers": []}, "expected  a string as context"),
  ],
)
def test_questions_that_cannot_be_learned_are_named(tmp_path, row, message):
  files = {"train": write(tmp_path / "a.jsonl", QUESTIONS[1], row)}
  register_files(f"odd_{tmp_path.name}_spans", files)
  with pytest.raises(UserError) as error:
    list(Questions(files)._rows(files["train"]))
  assert message in error.value.render() and "a.jsonl" in error.value.render()


def test_some_question_must_have_an_answer(tmp_path):
  files = {"train": write(tmp_path / "a.jsonl", QUESTIONS[0] | {"answers": []})}
  with pytest.raises(UserError, match="no row of task 'never_spans' has an answer"):
    register_files("never_spans", files)


class Frame:
  """What is used of a DataFrame."""

  columns = ("text",)

  def to_dict(self, orient):
    assert orient == "records"
    return [{"text": "a", "label": np.int64(1)}]


class PolarsFrame:
  """What is used of a DataFrame of polars."""

  columns = ("text",)

  def to_dict(self, *, as_series=True):
    raise AssertionError

  def to_dicts(self):
    return [{"text": "a", "label": 1}]


class ArrowTable:
  """What is used of a table of pyarrow."""

  columns = ()

  def to_pylist(self):
    return PolarsFrame().to_dicts()


def test_rows_in_memory_become_a_file(tmp_path):
  rows = [{"text": "grün", "label": np.int64(1)}, {"text": np.str_("b"), "label": True}]
  path = t5like.save_examples(rows, str(tmp_path / "new"))
  assert [json.loads(line) for line in open(path)] == [{"text": "grün", "label": 1}, {"text": "b", "label": True}]
  assert t5like.save_examples(iter(rows), str(tmp_path / "new")) == path
  frame = t5like.save_examples(Frame(), str(tmp_path / "new"))
  assert frame != path
  assert {t5like.save_examples(table, str(tmp_path / "new")) for table in (PolarsFrame(), ArrowTable())} == {frame}
  assert len(list((tmp_path / "new").iterdir())) == 2
  cells = {"tokens": np.array(["a", "b"]), "tags": np.array([0, 1]), "when": np.datetime64("nat"), "size": float("nan")}
  path = t5like.save_examples([cells | {"id": np.int8(3), "what": {1}}], str(tmp_path / "new"))
  assert json.loads(open(path).read()) == {"tokens": ["a", "b"], "tags": [0, 1], "when": None, "id": 3}


@pytest.mark.parametrize(
  "rows, message",
  [
    ([], "no rows"), ("text", "not rows"), ({"text": "a"}, "not rows"), (5, "not rows"), (["a"], "row 0 is not a dict"),
    ([{"text": "a"}, {"text": float("nan")}], "row 1 has no text: nan\n  try  table.dropna(subset=['text'])"),
    ([{"text": {1}}], "row 0: invalid text: {1}"), ([{"text": "\ud800"}], "row 0: invalid text: '\\ud800'"),
    ([{"text": "a", "label": 1}, {"text": "b"}], "row 1 has no label\n  because  row 0 has it"),
    ([{"text": "a"}, {"text": "b", "text_pair": "c"}], "row 0 has no text_pair\n  because  row 1 has it"),
    ([{"inputs": None, "targets": "b", "other": None}], "row 0 has no inputs\n  row"),
  ],
)  # fmt: skip
def test_what_is_no_row_is_refused(tmp_path, rows, message):
  with pytest.raises(UserError) as error:
    t5like.save_examples(rows, str(tmp_path / "new"))
  assert message in error.value.render() and not (tmp_path / "new").exists()
