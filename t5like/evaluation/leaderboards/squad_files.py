"""SQuAD's JSON: answers by question id, and the official file to restore their original text."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path

from t5like.errors import UserError
from t5like.evaluation.leaderboards.written_files import WrittenFiles
from t5like.files import storage


def write_squad(path: Path, answers: Mapping[str, str]) -> WrittenFiles:
  """Writes the answers by question id, as the official script and leaderboards of 1.1 and 2.0 take them."""
  storage.write_atomic(path, json.dumps(dict(answers), ensure_ascii=False) + "\n")
  return WrittenFiles(path, len(answers))


@dataclasses.dataclass(frozen=True)
class SquadQuestion:
  context: str
  answers: list[str]


def read_squad(path: Path) -> dict[str, SquadQuestion]:
  """Reads an official SQuAD file (plain, .xz, .gz or .zip); returns questions by id."""
  try:
    data = storage.parse_json(_read_unpacked(path))
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
