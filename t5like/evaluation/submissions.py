"""Files for leaderboards: GLUE's tab-separated tables and SQuAD's JSON, in their official forms."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5like.errors import UserError
from t5like.training.records.model_dir import write_text

_WORDS = ("entailment", "neutral", "contradiction")
_PAIR = ("entailment", "not_entailment")
_NUMBERS = ("0", "1")


@dataclasses.dataclass(frozen=True)
class GlueFile:
  """What gluebenchmark.com wants of one task."""

  name: str
  labels: tuple[str, ...] | None  # by class number; None: a score from 0 to 5
  examples: int  # of the official test set


# By task. The leaderboard wants all eleven in one zip file.
GLUE = {
  "glue_cola": GlueFile("CoLA.tsv", _NUMBERS, 1_063),
  "glue_sst2": GlueFile("SST-2.tsv", _NUMBERS, 1_821),
  "glue_mrpc": GlueFile("MRPC.tsv", _NUMBERS, 1_725),
  "glue_stsb": GlueFile("STS-B.tsv", None, 1_379),
  "glue_qqp": GlueFile("QQP.tsv", _NUMBERS, 390_965),
  "glue_mnli_matched": GlueFile("MNLI-m.tsv", _WORDS, 9_796),
  "glue_mnli_mismatched": GlueFile("MNLI-mm.tsv", _WORDS, 9_847),
  "glue_qnli": GlueFile("QNLI.tsv", _PAIR, 5_463),
  "glue_rte": GlueFile("RTE.tsv", _PAIR, 3_000),
  "glue_wnli": GlueFile("WNLI.tsv", _NUMBERS, 146),
  "glue_ax": GlueFile("AX.tsv", _WORDS, 1_104),
}


@dataclasses.dataclass(frozen=True)
class WrittenFiles:
  """A file of a submission, and what its maker should know of it."""

  path: Path
  rows: int | None  # None: an archive of the others
  story: str = ""  # what may be wrong with it
  note: str = ""


def write_glue(
  folder: Path, task: str, fields: Sequence[Mapping[str, Any]], predictions: Sequence[Any], whole: bool = True
) -> WrittenFiles:
  """One task's table, by the numbers of its rows. `predictions` are class numbers, STS-B's are scores.

  An answer that is no class becomes class 0: the leaderboard takes no blank. `whole`: all rows of the split are here.
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
  if (whole and numbers != list(range(len(rows)))) or len(set(numbers)) < len(rows):
    raise UserError(f"the rows of {task} are not numbered 0 to {len(rows) - 1}: one is missing, or there twice")
  path = folder / form.name
  write_text(path, "index\tprediction\n" + "".join(f"{number}\t{text}\n" for number, text in rows))
  story = []
  if invalid:
    story.append(f"{invalid:,} answers were no label and became the first: --rank gives none")
  if whole and len(rows) != form.examples:
    story.append(f"the official test set has {form.examples:,} rows: the leaderboard will refuse this file")
  return WrittenFiles(path, len(rows), "; ".join(story))


def write_squad(path: Path, answers: Mapping[str, str]) -> WrittenFiles:
  """A text for every question's id, as the official script and the leaderboard of 1.1 and 2.0 take it."""
  write_text(path, json.dumps(dict(answers), ensure_ascii=False) + "\n")
  return WrittenFiles(path, len(answers))


@dataclasses.dataclass(frozen=True)
class SquadQuestion:
  context: str
  answers: list[str]


def read_squad(path: Path) -> dict[str, SquadQuestion]:
  """The official file of questions, by their ids; plain, .xz, .gz or .zip."""
  try:
    data = json.loads(_unpacked(path))
    return {
      question["id"]: SquadQuestion(paragraph["context"], [answer["text"] for answer in question["answers"]])
      for article in data["data"]
      for paragraph in article["paragraphs"]
      for question in paragraph["qas"]
    }
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise UserError(f"{path} is no file of SQuAD", because=f"{type(error).__name__}: {error}") from None


def _unpacked(path: Path) -> bytes:
  if path.suffix == ".zip":
    import zipfile

    with zipfile.ZipFile(path) as archive:
      return archive.read(archive.namelist()[0])
  if path.suffix in (".xz", ".gz"):
    import gzip
    import lzma

    return {".xz": lzma, ".gz": gzip}[path.suffix].open(path).read()
  return path.read_bytes()


_PIECE = re.compile(r"[^\W_]+|[^\w\s]|_")


def as_written(answer: str, context: str) -> str | None:
  """The place of the context that an answer is, whatever spaces stand around its punctuation; None where it is none.

  T5's form of SQuAD sets spaces there, so that 'U . S .' must become 'U.S.' again.
  """
  pieces = _PIECE.findall(answer)
  if not pieces:
    return None
  pattern = re.escape(pieces[0])
  for last, piece in zip(pieces, pieces[1:], strict=False):
    pattern += (r"\s+" if last[-1].isalnum() and piece[0].isalnum() else r"\s*") + re.escape(piece)
  for flags in (0, re.IGNORECASE):
    if found := re.search(pattern, context, flags):
      return found[0]
  return None


def restored(answers: Mapping[str, str], questions: Mapping[str, SquadQuestion]) -> tuple[dict[str, str], int]:
  """Answers as their contexts have them, for all questions of the file, and how many stand in no context."""
  missing = [number for number in questions if number not in answers]
  unknown = [number for number in answers if number not in questions]
  if missing or unknown:
    raise UserError(
      "the answers are of other questions than the file's",
      unanswered=f"{len(missing):,}, such as {missing[0]}" if missing else "",
      unknown=f"{len(unknown):,}, such as {unknown[0]}" if unknown else "",
    )
  found = {number: as_written(answers[number], question.context) for number, question in questions.items()}
  lost = sum(1 for number, text in found.items() if text is None and answers[number].strip())
  return {n: answers[n].strip() if text is None else text for n, text in found.items()}, lost
