"""Chooses the head for a task, and checks that a task fits a head."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import flax.linen as nn

from t5like import data
from t5like.data.labeled_rows import choices_of
from t5like.errors import UserError
from t5like.experiments.experiment import HEAD_TASKS, Experiment
from t5like.models.heads import HEADS, WithHead, attach_head

_NUMBERED = re.compile(r"(LABEL_)?[0-9]+")  # names that say nothing, as in Hugging Face


def attach_task_head(experiment: Experiment, forms: Sequence[tuple[str, data.LabelForm | None]]) -> Experiment:
  """Returns the experiment with a head for its tasks, whose forms are given by name; HEAD's settings are kept."""
  task, form = forms[0]
  for name, other in forms:
    if other is None:
      raise UserError(f"task {name!r} has no labels for a head", try_=_remedy(experiment))
    if other != form:
      raise UserError(f"tasks {task!r} and {name!r} have different labels and need different heads")
  head = experiment.head
  if head == "task" or head is None:
    kind = "choices" if form.grouped and form.choices else form.name
    head = HEADS[kind]()
  fits(head, form, task)
  if hasattr(head, "labels") and not head.labels:
    head = head.clone(labels=form.labels)
  if head.form == "choices" and not head.choices:
    head = head.clone(choices=form.choices)
  return dataclasses.replace(experiment, model=attach_head(experiment.model, head))


def task_form(cache: data.TokenCache) -> data.LabelForm | None:
  """Returns the form of a cache's task; `choices` is the number of candidates per question if it is always the same."""
  form = data.LabelForm.of(cache)
  if form is None or not form.grouped:
    return form
  return dataclasses.replace(form, choices=choices_of(cache))


def fits(head: nn.Module, form: data.LabelForm | None, task: str) -> None:
  """Raises UserError if a task's labels are not those of a head."""
  name = type(head).__name__
  if form is None:
    raise UserError(f"task {task!r} has no labels for a {name}", expected=_EXPECTED[head.form])
  if head.form != form.name and not (head.form == "choices" and form.grouped):
    raise UserError(
      f"the labels of task {task!r} ({form.name}) do not fit a {name}",
      expected=_EXPECTED[head.form],
      try_=f"--gin.HEAD=@{HEADS[form.name].__name__}(), or --gin.HEAD=task",
    )
  own = getattr(head, "labels", ())
  named = own and form.labels and not any(_NUMBERED.fullmatch(label) for label in (*own, *form.labels))
  if named and tuple(own) != tuple(form.labels):
    raise UserError(
      f"the classes of task {task!r} are not those of the head",
      task=", ".join(form.labels),
      head=", ".join(own),
      try_="a head for this task: train with --gin.INIT_FROM=... and another MODEL_DIR",
    )


def rows_form(model: WithHead, cache: data.TokenCache) -> data.LabelForm:
  """Returns the form of a task's rows for a model's head, after checking that they fit."""
  form = data.LabelForm.of(cache)
  fits(model.head, form, cache.manifest["description"]["task"])
  return dataclasses.replace(form, **dataclasses.asdict(head_form(model), dict_factory=_own_fields))


def head_form(model: WithHead) -> data.LabelForm:
  """Returns the form of a model's head."""
  head = model.head
  return data.LabelForm(head.form, tuple(getattr(head, "labels", ())), getattr(head, "choices", 0))


def _own_fields(fields: list[tuple[str, object]]) -> dict[str, object]:
  """Keeps the fields that a head determines."""
  return {name: value for name, value in fields if name in ("name", "labels", "choices")}


def _remedy(experiment: Experiment) -> str:
  forms = ", ".join(f"{experiment.task}{suffix}" for suffix in HEAD_TASKS)
  return f"a task for encoders, such as {forms}, or a model with a decoder: --gin_file=models/t5/tiny.gin"


_EXPECTED = {
  "classification": "a task with class numbers, such as glue_sst2_classification",
  "multi_label": "a task with a 0 or 1 for each label: see multi_labels in t5like/tasks/README.md",
  "regression": "a task with scores, such as glue_stsb_classification",
  "choices": "a task with candidate answers, such as super_glue_copa_classification",
  "tagging": "a task with tagged words, such as wnut_17_tagging",
  "spans": "a task with answers in passages, such as squad_spans",
}
