"""`t5like eval --submit`: a model's answers as files for a leaderboard."""

from __future__ import annotations

import argparse
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import jax

from t5like import evaluation
from t5like.console import say
from t5like.errors import UserError, nearest
from t5like.evaluation import submissions
from t5like.evaluation.evaluation_set import Questions
from t5like.files import storage
from t5like.tasks import metrics

FOLDER = "submissions"
_SQUAD = ("squad", "squad_v2")


def submit(
  args: argparse.Namespace,
  out: Path,
  step: int | None,
  questions: list[Questions],
  answer: Callable[[Questions], evaluation.Evaluation],
) -> int:
  check(args, questions)
  folder = out / FOLDER / f"{args.submit}-{0 if step is None else step}"
  written = []
  for asked in questions:
    predictions = [row["prediction"] for row in answer(asked).rows]
    if jax.process_index() != 0:
      continue
    try:
      written.append(_write(args, folder, asked, predictions))
    except OSError as error:
      raise UserError("the submission cannot be written", folder=folder, because=error.strerror) from None
    say(f"{written[-1].path}  {written[-1].rows:,} rows" + (f"\n  note: {written[-1].story}" * bool(written[-1].story)))
  if jax.process_index() == 0 and args.submit == "glue":
    _zip(folder, written)
  return 0


def check(args: argparse.Namespace, questions: list[Questions]) -> None:
  """Before the model is asked: can these tasks be submitted, and all that they need be read?"""
  known = submissions.GLUE if args.submit == "glue" else _SQUAD
  for asked in questions:
    if asked.task not in known:
      raise UserError(
        f"task {asked.task!r} is no part of the {args.submit} leaderboard",
        nearest=nearest(asked.task, known), known=", ".join(known),
      )  # fmt: skip
    field = "idx" if args.submit == "glue" else "id"
    if field not in asked.fields[0]:
      raise UserError(f"the examples of {asked.task!r} have no {field!r}", found=", ".join(asked.fields[0]))
  if args.squad_file:
    submissions.read_squad(storage.local_copy(storage.as_path(args.squad_file)))


def _write(args: argparse.Namespace, folder: Path, asked: Questions, predictions: list) -> submissions.Written:
  if args.submit == "glue":
    return submissions.write_glue(folder, asked.task, asked.fields, predictions, whole=not args.examples)
  answers = {example["id"]: text for example, text in zip(asked.fields, predictions, strict=True)}
  if not args.squad_file:
    say("note: T5's text sets spaces around punctuation; --squad_file=dev-v1.1.json gives answers their own text again")
    return submissions.write_squad(folder / f"{asked.task}.json", answers)
  official = submissions.read_squad(storage.local_copy(storage.as_path(args.squad_file)))
  if args.examples:
    official = {number: official[number] for number in answers if number in official}
  texts, lost = submissions.restored(answers, official)
  metric = metrics.squad if asked.task == "squad" else metrics.squad2
  scores = metric([question.answers for question in official.values()], list(texts.values()))
  say(f"{asked.task}, as the official script scores it: " + ", ".join(f"{k} {v:.3f}" for k, v in scores.items()))
  found = submissions.write_squad(folder / f"{asked.task}.json", texts)
  story = f"{lost:,} answers are in no context, and stand as the model wrote them" if lost else ""
  return submissions.Written(found.path, found.rows, story)


def _zip(folder: Path, written: list[submissions.Written]) -> None:
  """The leaderboard takes one archive without folders in it."""
  archive = folder / "submission.zip"
  content = io.BytesIO()
  with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
    for item in written:
      file.writestr(item.path.name, item.path.read_bytes())
  archive.write_bytes(content.getvalue())
  names = {item.path.name for item in written}
  missing = [form.name for form in submissions.GLUE.values() if form.name not in names]
  say(f"{archive}" + (f"  (the leaderboard wants {', '.join(missing)} too)" if missing else ""))
