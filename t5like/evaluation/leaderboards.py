"""Leaderboard submissions: answers a leaderboard's tasks and writes its files."""

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
_SPACED = "T5's inputs have spaces around punctuation; --squad_file=dev-v1.1.json restores the original text of answers"


@dataclasses.dataclass(frozen=True)
class Submission:
  """A leaderboard, with the official SQuAD file to restore the text of answers."""

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
    """Raises UserError, before decoding, if tasks are not part of the leaderboard or files cannot be read."""
    known = submissions.GLUE if self.leaderboard == "glue" else _SQUAD
    for evaluation_set in sets:
      if evaluation_set.task not in known:
        raise UserError(
          f"task {evaluation_set.task!r} is not part of the {self.leaderboard} leaderboard",
          nearest=nearest(evaluation_set.task, known), known=", ".join(known),
        )  # fmt: skip
      field = "idx" if self.leaderboard == "glue" else "id"
      if field not in evaluation_set.fields[0]:
        raise UserError(
          f"the examples of {evaluation_set.task!r} have no {field!r}", found=", ".join(evaluation_set.fields[0])
        )
    if self.squad_file:
      self.questions()

  def questions(self) -> dict[str, submissions.SquadQuestion]:
    return submissions.read_squad(storage.local_copy(storage.as_path(self.squad_file)))


def submit(
  submission: Submission, tasks: TaskEvaluation, params: Any, out: Path, step: int | None
) -> Iterator[WrittenFiles]:
  """Answers all tasks and yields the files as process 0 writes them."""
  folder, written = out / FOLDER / f"{submission.leaderboard}-{step or 0}", []
  for evaluation_set in tasks.sets:
    predictions = [row["prediction"] for row in tasks(params, evaluation_set).rows]
    if jax.process_index() != 0:
      continue
    try:
      written.append(_write(submission, folder, evaluation_set, predictions, complete=not tasks.settings.examples))
    except OSError as error:
      raise UserError("cannot write the submission", folder=folder, because=error.strerror) from None
    yield written[-1]
  if jax.process_index() == 0 and submission.leaderboard == "glue":
    yield _zip(folder, written)


def _write(
  submission: Submission, folder: Path, evaluation_set: EvaluationSet, predictions: list, complete: bool
) -> WrittenFiles:
  if submission.leaderboard == "glue":
    return submissions.write_glue(folder, evaluation_set.task, evaluation_set.fields, predictions, complete)
  path = folder / f"{evaluation_set.task}.json"
  answers = {example["id"]: text for example, text in zip(evaluation_set.fields, predictions, strict=True)}
  if not submission.squad_file:
    return dataclasses.replace(submissions.write_squad(path, answers), note=_SPACED)
  official = submission.questions()
  if not complete:
    official = {number: official[number] for number in answers if number in official}
  texts, lost = submissions.restore_answers(answers, official)
  metric = metrics.squad if evaluation_set.task == "squad" else metrics.squad2
  scores = metric([question.answers for question in official.values()], list(texts.values()))
  shown = ", ".join(f"{name} {value:.3f}" for name, value in scores.items())
  return dataclasses.replace(
    submissions.write_squad(path, texts),
    note=f"{evaluation_set.task}, scored as by the official script: {shown}",
    warning=f"{lost:,} answers are not in their context and are kept as generated" if lost else "",
  )


def _zip(folder: Path, written: Sequence[WrittenFiles]) -> WrittenFiles:
  """Writes the flat archive that the leaderboard takes."""
  archive, content = folder / "submission.zip", io.BytesIO()
  with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
    for item in written:
      file.writestr(item.path.name, item.path.read_bytes())
  archive.write_bytes(content.getvalue())
  names = {item.path.name for item in written}
  missing = [form.name for form in submissions.GLUE.values() if form.name not in names]
  return WrittenFiles(
    archive, None, f"incomplete: the leaderboard also requires {', '.join(missing)}" if missing else ""
  )
