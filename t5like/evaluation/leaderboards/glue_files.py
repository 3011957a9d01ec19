"""GLUE's tab-separated tables and SuperGLUE's JSON lines, in the formats of their leaderboards."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5like.errors import UserError
from t5like.evaluation.leaderboards.written_files import WrittenFiles
from t5like.files import storage

_NLI_LABELS = ("entailment", "neutral", "contradiction")
_ENTAILMENT_LABELS = ("entailment", "not_entailment")
_BINARY_LABELS = ("0", "1")


# Tasks for models with heads are written to the same files.
_HEAD_FORMS = ("_classification", "_spans")


@dataclasses.dataclass(frozen=True)
class GlueFile:
  """The file that gluebenchmark.com or super.gluebenchmark.com requires for one task."""

  name: str
  labels: tuple[str | int, ...] | None  # by class index; None: a score from 0 to 5, or a text
  examples: int  # lines of the official test set


# By task. The leaderboard requires all eleven in one zip file.
GLUE = {
  "glue_cola": GlueFile("CoLA.tsv", _BINARY_LABELS, 1_063),
  "glue_sst2": GlueFile("SST-2.tsv", _BINARY_LABELS, 1_821),
  "glue_mrpc": GlueFile("MRPC.tsv", _BINARY_LABELS, 1_725),
  "glue_stsb": GlueFile("STS-B.tsv", None, 1_379),
  "glue_qqp": GlueFile("QQP.tsv", _BINARY_LABELS, 390_965),
  "glue_mnli_matched": GlueFile("MNLI-m.tsv", _NLI_LABELS, 9_796),
  "glue_mnli_mismatched": GlueFile("MNLI-mm.tsv", _NLI_LABELS, 9_847),
  "glue_qnli": GlueFile("QNLI.tsv", _ENTAILMENT_LABELS, 5_463),
  "glue_rte": GlueFile("RTE.tsv", _ENTAILMENT_LABELS, 3_000),
  "glue_wnli": GlueFile("WNLI.tsv", _BINARY_LABELS, 146),
  "glue_ax": GlueFile("AX.tsv", _NLI_LABELS, 1_104),
}
# Labels are strings, in the case that the leaderboard expects, except for COPA and MultiRC; a line of MultiRC is a
# paragraph with all its questions.
SUPER_GLUE = {
  "super_glue_boolq": GlueFile("BoolQ.jsonl", ("false", "true"), 3_245),
  "super_glue_cb": GlueFile("CB.jsonl", ("entailment", "contradiction", "neutral"), 250),
  "super_glue_copa": GlueFile("COPA.jsonl", (0, 1), 500),
  "super_glue_multirc": GlueFile("MultiRC.jsonl", (0, 1), 166),
  "super_glue_record": GlueFile("ReCoRD.jsonl", None, 10_000),
  "super_glue_rte": GlueFile("RTE.jsonl", _ENTAILMENT_LABELS, 3_000),
  "super_glue_wic": GlueFile("WiC.jsonl", ("false", "true"), 1_400),
  "super_glue_wsc": GlueFile("WSC.jsonl", ("False", "True"), 146),
  "super_glue_axb": GlueFile("AX-b.jsonl", _ENTAILMENT_LABELS, 1_104),
  "super_glue_axg": GlueFile("AX-g.jsonl", _ENTAILMENT_LABELS, 356),
}
FILES = {"glue": GLUE, "super_glue": SUPER_GLUE}


def leaderboard_task(task: str) -> str:
  """Returns the task that an encoder form stands for: glue_cola_classification is glue_cola."""
  return next((task.removesuffix(form) for form in _HEAD_FORMS if task.endswith(form)), task)


def write_glue(
  folder: Path, task: str, fields: Sequence[Mapping[str, Any]], predictions: Sequence[Any], complete: bool = True
) -> WrittenFiles:
  """Writes one task's table, sorted by row number. `predictions` are class indices, or scores for STS-B.

  An invalid answer becomes class 0, as the leaderboard takes no blanks. `complete`: the rows are the complete split.
  """
  form = GLUE[leaderboard_task(task)]
  rows, invalid = [], 0
  for example, prediction in zip(fields, predictions, strict=True):
    if form.labels is None:
      invalid += not 0 <= prediction <= 5
      text = f"{min(max(float(prediction), 0.0), 5.0):.3f}"
    else:
      known = 0 <= prediction < len(form.labels)
      invalid += not known
      text = form.labels[prediction if known else 0]
    rows.append((int(example["idx"]), text))
  rows.sort()
  numbers = [number for number, _ in rows]
  if (complete and numbers != list(range(len(rows)))) or len(set(numbers)) < len(rows):
    raise UserError(f"the rows of {task} are not numbered 0 to {len(rows) - 1}: one is missing or duplicated")
  path = folder / form.name
  storage.write_atomic(path, "index\tprediction\n" + "".join(f"{number}\t{text}\n" for number, text in rows))
  return WrittenFiles(path, len(rows), _warning(form, len(rows), invalid, complete))


def write_super_glue(
  folder: Path, task: str, fields: Sequence[Mapping[str, Any]], predictions: Sequence[Any], complete: bool = True
) -> WrittenFiles:
  """Writes one task's JSON lines, sorted by number. Arguments are as in `write_glue`.

  A prediction is a class index, {"value": class index or text}, or the {"score"} of one candidate among those of its
  question, as a head gives for COPA and ReCoRD.
  """
  form = SUPER_GLUE[leaderboard_task(task)]
  if predictions and isinstance(predictions[0], Mapping) and "score" in predictions[0]:
    fields, predictions = _best_candidates(fields, predictions, as_text=form.labels is None)
  answers: dict[tuple[int, ...], Any] = {}
  invalid = 0
  for example, prediction in zip(fields, predictions, strict=True):
    label = prediction["value"] if isinstance(prediction, Mapping) else prediction
    if form.labels is not None:
      known = 0 <= label < len(form.labels)
      invalid += not known
      label = form.labels[label if known else 0]
    place = _place(example)
    # ReCoRD's labeled splits have an example per correct answer, all with the same prediction.
    if place in answers and form.labels is not None:
      raise UserError(f"{task} has two answers to question {', '.join(map(str, place))}")
    answers.setdefault(place, label)
  lines = _super_glue_lines(answers)
  if complete and [line["idx"] for line in lines] != list(range(len(lines))):
    raise UserError(f"the rows of {task} are not numbered 0 to {len(lines) - 1}: one is missing or duplicated")
  path = folder / form.name
  storage.write_atomic(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
  return WrittenFiles(path, len(lines), _warning(form, len(lines), invalid, complete))


def _super_glue_lines(answers: Mapping[tuple[int, ...], Any]) -> list[dict[str, Any]]:
  """Returns the lines of a file, sorted.

  Answers are by (idx), by (passage, query) in ReCoRD, and by (paragraph, question, answer) in MultiRC.
  """
  lines: dict[int, dict[str, Any]] = {}
  questions: dict[int, list[dict[str, Any]]] = {}  # by number, of all paragraphs
  for place, label in sorted(answers.items()):
    if len(place) < 3:
      lines[place[-1]] = {"idx": place[-1], "label": label}
      continue
    paragraph, question, answer = place
    line = lines.setdefault(paragraph, {"idx": paragraph, "passage": {"questions": []}})
    if question not in questions:
      questions[question] = []
      line["passage"]["questions"].append({"idx": question, "answers": questions[question]})
    questions[question].append({"idx": answer, "label": label})
  return [lines[number] for number in sorted(lines)]


def _place(example: Mapping[str, Any]) -> tuple[int, ...]:
  """Returns the numbers that identify an example; the encoder forms have those of the question as `group`."""
  if "idx" in example:
    return (int(example["idx"]),)
  names = ("idx/paragraph", "idx/question", "idx/passage", "idx/query")
  question = example["group"] if "group" in example else [example[name] for name in names if name in example]
  question = question if isinstance(question, list | tuple) else [question]
  return tuple(map(int, [*question, *([example["idx/answer"]] if "idx/answer" in example else [])]))


def _best_candidates(
  fields: Sequence[Mapping[str, Any]], predictions: Sequence[Mapping[str, Any]], as_text: bool
) -> tuple[list[Mapping[str, Any]], list[Any]]:
  """Returns an example of each question, and its best candidate as text, or as its number in the order of the rows."""
  questions: dict[tuple[int, ...], list[tuple[float, Mapping[str, Any]]]] = {}
  for example, prediction in zip(fields, predictions, strict=True):
    questions.setdefault(_place(example), []).append((prediction["score"], example))
  chosen, answers = [], []
  for members in questions.values():
    best = max(range(len(members)), key=lambda number: members[number][0])  # the first of equal ones
    chosen.append(members[best][1])
    answers.append(chosen[-1]["candidate"] if as_text else best)
  return chosen, answers


def _warning(form: GlueFile, rows: int, invalid: int, complete: bool) -> str:
  warnings = []
  if invalid:
    warnings.append(f"{invalid:,} answers are not a label and were replaced by the first one (--rank avoids this)")
  if complete and rows != form.examples:
    warnings.append(f"the official test set has {form.examples:,} rows: the leaderboard will reject this file")
  return "; ".join(warnings)
