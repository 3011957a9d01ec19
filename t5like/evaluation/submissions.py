"""Leaderboard files: GLUE's tab-separated tables and SQuAD's JSON, in the official formats."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5like.errors import UserError
from t5like.training.records.model_dir import write_text

_NLI_LABELS = ("entailment", "neutral", "contradiction")
_ENTAILMENT_LABELS = ("entailment", "not_entailment")
_BINARY_LABELS = ("0", "1")


@dataclasses.dataclass(frozen=True)
class GlueFile:
  """The file that gluebenchmark.com requires for one task."""

  name: str
  labels: tuple[str, ...] | None  # by class index; None: a score from 0 to 5
  examples: int  # in the official test set


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


@dataclasses.dataclass(frozen=True)
class WrittenFiles:
  """A file of a submission, with remarks for the user."""

  path: Path
  rows: int | None  # None: an archive of the others
  warning: str = ""
  note: str = ""


def write_glue(
  folder: Path, task: str, fields: Sequence[Mapping[str, Any]], predictions: Sequence[Any], complete: bool = True
) -> WrittenFiles:
  """Writes one task's table, sorted by row number. `predictions` are class indices, or scores for STS-B.

  An invalid answer becomes class 0, as the leaderboard takes no blanks. `complete`: the rows are the complete split.
  """
  form = GLUE[task]
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
  write_text(path, "index\tprediction\n" + "".join(f"{number}\t{text}\n" for number, text in rows))
  warnings = []
  if invalid:
    warnings.append(f"{invalid:,} answers are not a label and were replaced by the first one (--rank avoids this)")
  if complete and len(rows) != form.examples:
    warnings.append(f"the official test set has {form.examples:,} rows: the leaderboard will reject this file")
  return WrittenFiles(path, len(rows), "; ".join(warnings))


def write_squad(path: Path, answers: Mapping[str, str]) -> WrittenFiles:
  """Writes the answers by question id, as the official script and leaderboards of 1.1 and 2.0 take them."""
  write_text(path, json.dumps(dict(answers), ensure_ascii=False) + "\n")
  return WrittenFiles(path, len(answers))


@dataclasses.dataclass(frozen=True)
class SquadQuestion:
  context: str
  answers: list[str]


def read_squad(path: Path) -> dict[str, SquadQuestion]:
  """Reads an official SQuAD file (plain, .xz, .gz or .zip); returns questions by id."""
  try:
    data = json.loads(_read_unpacked(path))
    return {
      question["id"]: SquadQuestion(paragraph["context"], [answer["text"] for answer in question["answers"]])
      for article in data["data"]
      for paragraph in article["paragraphs"]
      for question in paragraph["qas"]
    }
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise UserError(f"{path} is not a SQuAD file", because=f"{type(error).__name__}: {error}") from None


def _read_unpacked(path: Path) -> bytes:
  if path.suffix == ".zip":
    import zipfile

    with zipfile.ZipFile(path) as archive:
      return archive.read(archive.namelist()[0])
  if path.suffix in (".xz", ".gz"):
    import gzip
    import lzma

    return {".xz": lzma, ".gz": gzip}[path.suffix].open(path).read()
  return path.read_bytes()


_WORD_OR_SYMBOL = re.compile(r"[^\W_]+|[^\w\s]|_")


def find_in_context(answer: str, context: str) -> str | None:
  """Finds an answer in its context, ignoring spaces around punctuation; None: not found.

  T5's version of SQuAD adds such spaces, so that 'U . S .' must become 'U.S.' again.
  """
  pieces = _WORD_OR_SYMBOL.findall(answer)
  if not pieces:
    return None
  pattern = re.escape(pieces[0])
  for last, piece in zip(pieces, pieces[1:], strict=False):
    pattern += (r"\s+" if last[-1].isalnum() and piece[0].isalnum() else r"\s*") + re.escape(piece)
  for flags in (0, re.IGNORECASE):
    if found := re.search(pattern, context, flags):
      return found[0]
  return None


def restore_answers(answers: Mapping[str, str], questions: Mapping[str, SquadQuestion]) -> tuple[dict[str, str], int]:
  """Returns the answers to all questions as they appear in their contexts, and the number of those not found."""
  missing = [number for number in questions if number not in answers]
  unknown = [number for number in answers if number not in questions]
  if missing or unknown:
    raise UserError(
      "the answers do not match the questions of the SQuAD file",
      unanswered=f"{len(missing):,}, such as {missing[0]}" if missing else "",
      unknown=f"{len(unknown):,}, such as {unknown[0]}" if unknown else "",
    )
  found = {number: find_in_context(answers[number], question.context) for number, question in questions.items()}
  lost = sum(1 for number, text in found.items() if text is None and answers[number].strip())
  return {n: answers[n].strip() if text is None else text for n, text in found.items()}, lost
