"""A model's answers as files for a leaderboard."""

from __future__ import annotations

import dataclasses
import io
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from t5like.errors import UserError, nearest
from t5like.evaluation import submissions
from t5like.evaluation.evaluation_set import EvaluationSet
from t5like.evaluation.submissions import WrittenFiles
from t5like.evaluation.task_evaluation import TaskEvaluation
from t5like.files import storage
from t5like.tasks import metrics

FOLDER = "submissions"
_SQUAD = ("squad", "squad_v2")
_SPACED = "T5's text sets spaces around punctuation; --squad_file=dev-v1.1.json gives answers their own text again"


@dataclasses.dataclass(frozen=True)
class Submission:
  """Which leaderboard, and the official questions of SQuAD, whose contexts answers are taken from."""

  leaderboard: str  # "glue" or "squad"
  squad_file: str | None = None

  @property
  def split(self) -> str:
    """The split that the leaderboard scores."""
    return "test" if self.leaderboard == "glue" else "validation"

  @property
  def tasks(self) -> list[str]:
    return list(submissions.GLUE) if self.leaderboard == "glue" else ["squad"]

  def check(self, sets: Sequence[EvaluationSet]) -> None:
    """Before the model is asked: can these tasks be submitted, and everything that they need be read?"""
    known = submissions.GLUE if self.leaderboard == "glue" else _SQUAD
    for asked in sets:
      if asked.task not in known:
        raise UserError(
          f"task {asked.task!r} is no part of the {self.leaderboard} leaderboard",
          nearest=nearest(asked.task, known), known=", ".join(known),
        )  # fmt: skip
      field = "idx" if self.leaderboard == "glue" else "id"
      if field not in asked.fields[0]:
        raise UserError(f"the examples of {asked.task!r} have no {field!r}", found=", ".join(asked.fields[0]))
    if self.squad_file:
      self.questions()

  def questions(self) -> dict[str, submissions.SquadQuestion]:
    return submissions.read_squad(storage.local_copy(storage.as_path(self.squad_file)))


def submit(
  submission: Submission, tasks: TaskEvaluation, params: Any, out: Path, step: int | None
) -> Iterator[WrittenFiles]:
  """Answers all tasks and yields the files as they are written, by process 0 alone."""
  folder, written = out / FOLDER / f"{submission.leaderboard}-{step or 0}", []
  for asked in tasks.sets:
    predictions = [row["prediction"] for row in tasks(params, asked).rows]
    if jax.process_index() != 0:
      continue
    try:
      written.append(_write(submission, folder, asked, predictions, whole=not tasks.settings.examples))
    except OSError as error:
      raise UserError("the submission cannot be written", folder=folder, because=error.strerror) from None
    yield written[-1]
  if jax.process_index() == 0 and submission.leaderboard == "glue":
    yield _zip(folder, written)


def _write(submission: Submission, folder: Path, asked: EvaluationSet, predictions: list, whole: bool) -> WrittenFiles:
  if submission.leaderboard == "glue":
    return submissions.write_glue(folder, asked.task, asked.fields, predictions, whole)
  path = folder / f"{asked.task}.json"
  answers = {example["id"]: text for example, text in zip(asked.fields, predictions, strict=True)}
  if not submission.squad_file:
    return dataclasses.replace(submissions.write_squad(path, answers), note=_SPACED)
  official = submission.questions()
  if not whole:
    official = {number: official[number] for number in answers if number in official}
  texts, lost = submissions.restored(answers, official)
  metric = metrics.squad if asked.task == "squad" else metrics.squad2
  scores = metric([question.answers for question in official.values()], list(texts.values()))
  shown = ", ".join(f"{name} {value:.3f}" for name, value in scores.items())
  return dataclasses.replace(
    submissions.write_squad(path, texts),
    note=f"{asked.task}, as the official script scores it: {shown}",
    story=f"{lost:,} answers are in no context, and stand as the model wrote them" if lost else "",
  )


def _zip(folder: Path, written: Sequence[WrittenFiles]) -> WrittenFiles:
  """The leaderboard takes one archive without folders in it."""
  archive, content = folder / "submission.zip", io.BytesIO()
  with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
    for item in written:
      file.writestr(item.path.name, item.path.read_bytes())
  archive.write_bytes(content.getvalue())
  names = {item.path.name for item in written}
  missing = [form.name for form in submissions.GLUE.values() if form.name not in names]
  return WrittenFiles(archive, None, f"the leaderboard wants {', '.join(missing)} too" if missing else "")
