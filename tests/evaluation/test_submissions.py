"""Exact contents of leaderboard files, and restoring the original text of answers."""

import dataclasses
import gzip
import json
import lzma
import zipfile

import pytest

from t5like.errors import UserError
from t5like.evaluation.evaluation_set import EvaluationSet
from t5like.evaluation.leaderboards import Submission
from t5like.evaluation.leaderboards.glue_files import GLUE, SUPER_GLUE, write_glue, write_super_glue
from t5like.evaluation.leaderboards.squad_files import (
  SquadQuestion,
  find_in_context,
  read_squad,
  restore_answers,
  write_squad,
)
from t5like.evaluation.leaderboards.submitting import _write, _zip
from t5like.tasks.encoders import scores as encoder_scores
from t5like.tasks.library import glue, super_glue


def rows(*numbers):
  return [{"idx": number} for number in numbers]


def test_exact_contents_of_glue_files(tmp_path):
  """Names and labels as in public submission scripts; rows are sorted by number."""
  write_glue(tmp_path, "glue_mnli_matched", rows(1, 0, 2), [2, 0, 1], complete=False)
  assert (tmp_path / "MNLI-m.tsv").read_text() == ("index\tprediction\n0\tentailment\n1\tcontradiction\n2\tneutral\n")
  write_glue(tmp_path, "glue_cola", rows(0, 1), [1, 0], complete=False)
  assert (tmp_path / "CoLA.tsv").read_text() == "index\tprediction\n0\t1\n1\t0\n"
  write_glue(tmp_path, "glue_stsb", rows(0, 1, 2), [3.8, -1.0, 7.0], complete=False)
  assert (tmp_path / "STS-B.tsv").read_text() == "index\tprediction\n0\t3.800\n1\t0.000\n2\t5.000\n"
  write_glue(tmp_path, "glue_rte", rows(0, 1), [1, 0], complete=False)
  assert (tmp_path / "RTE.tsv").read_text() == "index\tprediction\n0\tnot_entailment\n1\tentailment\n"


def test_label_words_are_those_of_the_tasks():
  """Class indices map to the label words of our tasks."""
  for task, form in GLUE.items():
    if form.labels and not form.labels[0].isdigit():
      assert form.labels == glue.LABELS[task.removeprefix("glue_")]


def super_glue_lines(folder, name):
  return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.mark.parametrize("suffix", ["", "_classification"])
def test_exact_contents_of_super_glue_files(tmp_path, suffix):
  """Names, labels and their case as in jiant's submission formatter; text models and heads predict class numbers."""
  expected = {
    "boolq": '{"idx": 0, "label": "false"}\n{"idx": 1, "label": "true"}\n',
    "cb": '{"idx": 0, "label": "entailment"}\n{"idx": 1, "label": "contradiction"}\n',
    "rte": '{"idx": 0, "label": "entailment"}\n{"idx": 1, "label": "not_entailment"}\n',
    "wic": '{"idx": 0, "label": "false"}\n{"idx": 1, "label": "true"}\n',
    "wsc": '{"idx": 0, "label": "False"}\n{"idx": 1, "label": "True"}\n',
    "axb": '{"idx": 0, "label": "entailment"}\n{"idx": 1, "label": "not_entailment"}\n',
    "axg": '{"idx": 0, "label": "entailment"}\n{"idx": 1, "label": "not_entailment"}\n',
  }
  for config, content in expected.items():
    write_super_glue(tmp_path, f"super_glue_{config}{suffix}", rows(1, 0), [1, 0], complete=False)
    assert (tmp_path / SUPER_GLUE[f"super_glue_{config}"].name).read_text() == content


def test_copa_and_record_from_text_and_from_the_scores_of_candidates(tmp_path):
  copa = '{"idx": 0, "label": 1}\n{"idx": 1, "label": 0}\n'
  write_super_glue(tmp_path, "super_glue_copa", rows(0, 1), [1, 0], complete=False)
  assert (tmp_path / "COPA.jsonl").read_text() == copa
  # The token cache has one row per choice; scores are those of the task's postprocessor.
  choices = [{"group": 1}, {"group": 1}, {"group": 0}, {"group": 0}]
  logits = [[0.0, 2.0], [0.0, 1.0], [3.0, 0.0], [2.0, 0.0]]
  scores = [encoder_scores.candidate(score) for score in logits]
  write_super_glue(tmp_path, "super_glue_copa_classification", choices, scores, complete=False)
  assert (tmp_path / "COPA.jsonl").read_text() == copa

  record = '{"idx": 3, "label": "Zoë"}\n{"idx": 8, "label": "Bob"}\n'
  fields = [{"idx/passage": 9, "idx/query": 8}, {"idx/passage": 1, "idx/query": 3}]
  write_super_glue(tmp_path, "super_glue_record", fields, [{"value": "Bob"}, {"value": "Zoë"}], complete=False)
  assert (tmp_path / "ReCoRD.jsonl").read_text() == record
  entities = [([9, 8], "Ann"), ([9, 8], "Bob"), ([1, 3], "Zoë"), ([1, 3], "Bob")]
  fields = [{"group": group, "candidate": name} for group, name in entities]
  scores = [{"score": score} for score in (-1.0, 0.5, 0.5, 0.5)]
  write_super_glue(tmp_path, "super_glue_record_classification", fields, scores, complete=False)
  assert (tmp_path / "ReCoRD.jsonl").read_text() == record  # of equal scores, the first


def test_multirc_is_nested_by_paragraph_and_question(tmp_path):
  expected = [
    {"idx": 0, "passage": {"questions": [
      {"idx": 0, "answers": [{"idx": 0, "label": 1}, {"idx": 1, "label": 0}]},
      {"idx": 1, "answers": [{"idx": 2, "label": 1}]},
    ]}},
    {"idx": 1, "passage": {"questions": [{"idx": 2, "answers": [{"idx": 3, "label": 0}]}]}},
  ]  # fmt: skip
  places, values = [(1, 2, 3), (0, 0, 1), (0, 1, 2), (0, 0, 0)], [{"value": value} for value in (0, 0, 1, 1)]
  text = [{"idx/paragraph": p, "idx/question": q, "idx/answer": a} for p, q, a in places]
  heads = [{"group": [p, q], "idx/answer": a} for p, q, a in places]
  for task, fields in (("super_glue_multirc", text), ("super_glue_multirc_classification", heads)):
    written = write_super_glue(tmp_path, task, fields, values)
    assert super_glue_lines(tmp_path, "MultiRC.jsonl") == expected and written.rows == 2
    assert "has 166 rows" in written.warning
  with pytest.raises(UserError, match="two answers to question 1, 2, 3"):
    write_super_glue(tmp_path, "super_glue_multirc", [text[0], text[0]], values[:2])


def test_super_glue_label_words_are_those_of_the_tasks():
  for task, form in SUPER_GLUE.items():
    words = super_glue.LABELS.get(task.removeprefix("super_glue_"))
    if form.labels and isinstance(form.labels[0], str) and words:
      assert form.labels == words or form.labels == tuple(word.lower() for word in words)
  assert len(SUPER_GLUE) == 10


def test_a_head_answers_its_own_task_and_the_diagnostics(tmp_path):
  assert Submission("super_glue").tasks("c4") == Submission("super_glue").tasks() == list(SUPER_GLUE)
  assert Submission("super_glue").tasks("super_glue_rte_classification") == [
    "super_glue_rte_classification", "super_glue_axb_classification", "super_glue_axg_classification"
  ]  # fmt: skip
  assert Submission("glue").tasks("glue_mnli_classification")[-1] == "glue_ax_classification"
  assert Submission("glue").tasks("glue_cola_classification") == ["glue_cola_classification"]
  assert Submission("super_glue").split == "test" and Submission("squad").split == "validation"
  # Files of several models are collected.
  write_super_glue(tmp_path, "super_glue_cb", rows(0), [1])
  write_super_glue(tmp_path, "super_glue_wic_classification", rows(0), [1])
  archive = _zip(tmp_path, SUPER_GLUE)
  assert zipfile.ZipFile(archive.path).namelist() == ["CB.jsonl", "WiC.jsonl"]
  assert "BoolQ.jsonl, COPA.jsonl" in archive.warning and "CB" not in archive.warning


def test_warnings_about_files_that_the_leaderboard_would_reject(tmp_path):
  written = write_glue(tmp_path, "glue_wnli", rows(0, 1), [-1, 1])
  assert "1 answers are not a label" in written.warning and "has 146 rows" in written.warning
  assert (tmp_path / "WNLI.tsv").read_text().endswith("0\t0\n1\t1\n")
  with pytest.raises(UserError, match="not numbered 0 to 1"):
    write_glue(tmp_path, "glue_wnli", rows(0, 2), [1, 1])


# SQuAD 1.1 dev (CC BY-SA 4.0), shortened.
CONTEXT = (
  "The Broncos defeated the Carolina Panthers 24–10 at Levi's Stadium in the San Francisco Bay Area (Santa Clara, "
  'California). As this was the 50th Super Bowl, the league emphasized the "golden anniversary" in the U.S.'
)


@pytest.mark.parametrize(
  ("answer", "written"),
  [
    ("Levi ' s Stadium", "Levi's Stadium"),
    ("Santa Clara , California", "Santa Clara, California"),
    ('" golden anniversary "', '"golden anniversary"'),
    ("U . S .", "U.S."),
    ("24–10", "24–10"),
    ("carolina panthers", "Carolina Panthers"),
    ("San FranciscoBay", None),  # words stay separate
    ("Denver", None),
    ("", None),
  ],
)
def test_answers_get_the_text_of_their_context(answer, written):
  assert find_in_context(answer, CONTEXT) == written


def test_squad_files(tmp_path):
  question = {"id": "q1", "question": "Where?", "answers": [{"text": "Levi's Stadium", "answer_start": 52}]}
  unanswerable = {"id": "q2", "question": "Why?", "answers": []}
  file = {"version": "1", "data": [{"paragraphs": [{"context": CONTEXT, "qas": [question, unanswerable]}]}]}
  (tmp_path / "dev.json.xz").write_bytes(lzma.compress(json.dumps(file).encode()))
  official = read_squad(tmp_path / "dev.json.xz")
  texts, lost = restore_answers({"q2": "", "q1": "Levi ' s Stadium"}, official)
  assert texts == {"q1": "Levi's Stadium", "q2": ""} and lost == 0
  write_squad(tmp_path / "squad.json", texts)
  assert json.loads((tmp_path / "squad.json").read_text()) == texts
  assert restore_answers({"q2": "Denver", "q1": "x"}, official)[1] == 2
  with pytest.raises(UserError, match="(?s)do not match the questions.*1, such as q2"):
    restore_answers({"q1": "x"}, official)
  for content in ('{"data": [', "[]", "[" * 100_000, "9" * 5000):
    (tmp_path / "broken.json").write_text(content)
    with pytest.raises(UserError, match="is not a SQuAD file"):
      read_squad(tmp_path / "broken.json")


def test_official_files_are_read_in_their_published_formats(tmp_path):
  question = {"id": "q1", "question": "Where?", "answers": [{"text": "a"}, {"text": "b"}]}
  text = json.dumps({"data": [{"paragraphs": [{"context": "a b", "qas": [question]}]}]})
  (tmp_path / "plain.json").write_text(text)
  (tmp_path / "small.json.gz").write_bytes(gzip.compress(text.encode()))
  with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
    archive.writestr("dev.json", text)
  for name in ("plain.json", "small.json.gz", "packed.zip"):
    assert read_squad(tmp_path / name) == {"q1": SquadQuestion("a b", ["a", "b"])}


def test_all_rows_of_the_glue_test_sets_are_required(tmp_path):
  # Wang et al. 2019, table 1, and the files of gluebenchmark.com.
  sizes = dict(
    cola=1063, sst2=1821, mrpc=1725, stsb=1379, qqp=390965, mnli_matched=9796, mnli_mismatched=9847, qnli=5463,
    rte=3000, wnli=146, ax=1104,
  )  # fmt: skip
  assert {task.removeprefix("glue_"): form.examples for task, form in GLUE.items()} == sizes
  written = write_glue(tmp_path, "glue_wnli", rows(*range(146)), [1] * 146)
  assert (written.rows, written.warning) == (146, "")
  with pytest.raises(UserError, match="missing or duplicated"):
    write_glue(tmp_path, "glue_wnli", rows(3, 3), [1, 1], complete=False)
  assert "2 answers are not a label" in write_glue(tmp_path, "glue_rte", rows(4, 7), [2, -1], complete=False).warning
  assert "1 answers" in write_glue(tmp_path, "glue_stsb", rows(0, 1, 2), [0.0, 5.0, 5.01], complete=False).warning


def test_answers_of_a_span_head_and_of_text(tmp_path):
  """A span head has several windows per question, and its answers are as in the context."""
  question = {"id": "q1", "question": "Where?", "answers": [{"text": "Levi's Stadium", "answer_start": 52}]}
  file = {"data": [{"paragraphs": [{"context": CONTEXT, "qas": [question]}]}]}
  (tmp_path / "dev.json").write_text(json.dumps(file))
  for task, windows, answer in (("squad", 1, "Levi ' s Stadium"), ("squad_spans", 3, "Levi's Stadium")):
    fields = [{"id": "q1"}] * windows
    evaluated = EvaluationSet(task, "validation", fields, {}, [], "")
    row = {"prediction": answer, "target": ["Levi's Stadium"]} | ({"id": "q1"} if windows > 1 else {})
    written = _write(Submission("squad"), tmp_path, evaluated, [row], complete=True)
    assert json.loads((tmp_path / "squad.json").read_text()) == {"q1": answer}
    assert ("spaces around punctuation" in written.note) == (task == "squad")
    written = _write(Submission("squad", str(tmp_path / "dev.json")), tmp_path, evaluated, [row], complete=True)
    assert json.loads((tmp_path / "squad.json").read_text()) == {"q1": "Levi's Stadium"}
    assert written.note == "squad, scored as by the official script: em 100.000, f1 100.000"
  assert Submission("squad").tasks("squad_v2_spans") == ["squad_v2_spans"]
  evaluated = dataclasses.replace(evaluated, task="squad_v2_spans")
  row |= {"prediction": "Levi's", "span": "Levi's", "score": 4.0, "null_score": 3.0}
  for threshold, expected in ((None, "Levi's"), (-1.0, "Levi's"), (-1.5, "")):
    _write(Submission("squad", no_answer_threshold=threshold), tmp_path, evaluated, [row], complete=True)
    assert json.loads((tmp_path / "squad_v2.json").read_text()) == {"q1": expected}
