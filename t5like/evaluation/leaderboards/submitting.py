"""Leaderboard submissions: answers a leaderboard's tasks and writes its files."""

from __future__ import annotations

import dataclasses
import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from t5like.errors import UserError, nearest
from t5like.evaluation.evaluation_set import EvaluationSet
from t5like.evaluation.leaderboards.glue_files import FILES, GlueFile, leaderboard_task, write_glue, write_super_glue
from t5like.evaluation.leaderboards.squad_files import SquadQuestion, read_squad, restore_answers, write_squad
from t5like.evaluation.leaderboards.written_files import WrittenFiles
from t5like.evaluation.task_evaluation import TaskEvaluation
from t5like.files import storage
from t5like.tasks import metrics

FOLDER = "submissions"
_SQUAD = ("squad", "squad_v2")
_WRITERS = {"glue": write_glue, "super_glue": write_super_glue}
# A head answers one task; these leaderboard tasks have the same classes.
_ALSO_ANSWERED = {
  "glue_mnli": ("glue_mnli_matched", "glue_mnli_mismatched", "glue_ax"),
  "super_glue_rte": ("super_glue_rte", "super_glue_axb", "super_glue_axg"),
}
_SPACED = "T5's inputs have spaces around punctuation; --squad_file=dev-v1.1.json restores the original text of answers"


@dataclasses.dataclass(frozen=True)
class Submission:
  """A leaderboard, with the official SQuAD file to restore the text of answers."""

  leaderboard: str  # "glue", "super_glue" or "squad"
  squad_file: str | None = None
  no_answer_threshold: float | None = None  # of a model with a span head: see SpanHead

  @property
  def split(self) -> str:
    """The split that the leaderboard scores."""
    return "test" if self.leaderboard in _WRITERS else "validation"

  def tasks(self, trained_on: str = "") -> list[str]:
    """Returns the tasks that a model answers: all of the leaderboard, or those of the head that it was trained with."""
    known = list(FILES.get(self.leaderboard, ["squad"]))
    task = leaderboard_task(trained_on)
    if task == trained_on:
      return known
    suffix = trained_on.removeprefix(task)
    return [f"{each}{suffix}" for each in _ALSO_ANSWERED.get(task, (task,))]

  def check(self, sets: Sequence[EvaluationSet]) -> None:
    """Raises UserError, before decoding, if tasks are not part of the leaderboard or files cannot be read."""
    known = FILES.get(self.leaderboard, _SQUAD)
    for evaluation_set in sets:
      if leaderboard_task(evaluation_set.task) not in known:
        raise UserError(
          f"task {evaluation_set.task!r} is not part of the {self.leaderboard} leaderboard",
          nearest=nearest(evaluation_set.task, known), known=", ".join(known),
        )  # fmt: skip
      field, found = "idx" if self.leaderboard in _WRITERS else "id", evaluation_set.fields[0]
      if not any(name == field or name.startswith(f"{field}/") or name == "group" for name in found):
        raise UserError(f"the examples of {evaluation_set.task!r} have no {field!r}", found=", ".join(found))
    if self.squad_file:
      self.questions()

  def questions(self) -> dict[str, SquadQuestion]:
    return read_squad(storage.local_copy(storage.as_path(self.squad_file)))


def submit(
  submission: Submission, tasks: TaskEvaluation, params: Any, out: Path, step: int | None
) -> Iterator[WrittenFiles]:
  """Answers all tasks and yields the files as process 0 writes them.

  A model with a head answers a single task: with the same `out`, the files of several models are added to one archive.
  """
  heads = all(leaderboard_task(each.task) != each.task for each in tasks.sets)
  folder = out / FOLDER / (submission.leaderboard if heads else f"{submission.leaderboard}-{step or 0}")
  for evaluation_set in tasks.sets:
    rows = tasks(params, evaluation_set).rows
    if jax.process_index() != 0:
      continue
    with storage.write_errors("the submission", folder=folder):
      written = _write(submission, folder, evaluation_set, rows, complete=not tasks.settings.examples)
    yield written
  if jax.process_index() == 0 and submission.leaderboard in _WRITERS:
    yield _zip(folder, FILES[submission.leaderboard])


def _write(
  submission: Submission, folder: Path, evaluation_set: EvaluationSet, rows: Sequence[Mapping[str, Any]], complete: bool
) -> WrittenFiles:
  """Writes the answers to one task. `rows` are those of its evaluation: of a span head, one per question."""
  task, threshold = leaderboard_task(evaluation_set.task), submission.no_answer_threshold
  predictions = [row["prediction"] if threshold is None else _span_or_none(row, threshold) for row in rows]
  if write := _WRITERS.get(submission.leaderboard):
    return write(folder, task, evaluation_set.fields, predictions, complete)
  path, from_spans = folder / f"{task}.json", task != evaluation_set.task
  numbers = [row["id"] for row in rows] if from_spans else [example["id"] for example in evaluation_set.fields]
  answers = dict(zip(numbers, predictions, strict=True))
  if not submission.squad_file:
    tuned = f"no answer above the threshold {threshold:.4g} of the model" if threshold is not None else ""
    return dataclasses.replace(write_squad(path, answers), note=tuned if from_spans else _SPACED)
  official = submission.questions()
  if not complete:
    official = {number: official[number] for number in answers if number in official}
  texts, lost = restore_answers(answers, official)
  metric = metrics.squad if task == "squad" else metrics.squad2
  scores = metric([question.answers for question in official.values()], list(texts.values()))
  shown = ", ".join(f"{name} {value:.3f}" for name, value in scores.items())
  return dataclasses.replace(
    write_squad(path, texts),
    note=f"{task}, scored as by the official script: {shown}",
    warning=f"{lost:,} answers are not in their context and are kept as generated" if lost else "",
  )


def _span_or_none(row: Mapping[str, Any], threshold: float) -> Any:
  if "span" not in row:  # every question has an answer
    return row["prediction"]
  return "" if row["null_score"] - row["score"] > threshold else row["span"]


def _zip(folder: Path, forms: Mapping[str, GlueFile]) -> WrittenFiles:
  """Writes the flat archive that the leaderboard takes, of all its files in the folder."""
  archive, content = folder / "submission.zip", io.BytesIO()
  found = [form.name for form in forms.values() if (folder / form.name).is_file()]
  with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
    for name in found:
      file.writestr(name, (folder / name).read_bytes())
  archive.write_bytes(content.getvalue())
  missing = [form.name for form in forms.values() if form.name not in found]
  return WrittenFiles(
    archive, None, f"incomplete: the leaderboard also requires {', '.join(missing)}" if missing else ""
  )
