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
from t5like.models.heads import HEADS, LOSSES, Probe, WithHead, attach_head
from t5like.objectives.segments import TEXT_FIELDS

_OWN_FIELDS = ("name", "labels", "choices", "texts", "target", "twice")  # of a form, which a head determines
_NUMBERED = re.compile(r"(LABEL_)?[0-9]+")  # names that say nothing, as in Hugging Face


def attach_task_head(experiment: Experiment, forms: Sequence[tuple[str, data.LabelForm | None]]) -> Experiment:
  """Returns the experiment with a head for its tasks, whose forms are given by name; HEAD's settings are kept."""
  task, form = forms[0]
  for name, other in forms:
    if other is None:
      raise UserError(f"task {name!r} has no labels for a head", try_=_remedy(experiment))
    if other != form:
      raise UserError(f"tasks {task!r} and {name!r} have different labels and need different heads")
  head, probe = experiment.head, experiment.head if isinstance(experiment.head, Probe) else None
  if head == "task" or head is None or probe:
    kind = "choices" if form.grouped and form.choices else form.name
    head = HEADS[kind]()
  check_fits(head, form, task)
  if head.form == "embedding":
    head = _embedding_head(head, form)
  elif hasattr(head, "labels") and not head.labels:
    head = head.clone(labels=form.labels)
  if head.form == "choices" and not head.choices:
    head = head.clone(choices=form.choices)
  return dataclasses.replace(experiment, model=(probe.attach if probe else attach_head)(experiment.model, head))


def task_form(cache: data.TokenCache) -> data.LabelForm | None:
  """Returns the form of a cache's task; `choices` is the number of candidates per question if it is always the same."""
  form = data.LabelForm.of(cache)
  if form is None or not form.grouped:
    return form
  return dataclasses.replace(form, choices=choices_of(cache))


def check_fits(head: nn.Module, form: data.LabelForm | None, task: str) -> None:
  """Raises UserError if a task's labels are not those of a head."""
  name = type(head).__name__
  if form is None:
    raise UserError(f"task {task!r} has no labels for a {name}", expected=_EXPECTED[head.form])
  if head.form == "embedding":
    _check_embedding_fits(head, form, task)
  elif head.form != form.name and not (head.form == "choices" and form.grouped):
    raise UserError(
      f"the labels of task {task!r} ({form.name}) do not fit a {name}",
      expected=_EXPECTED[head.form],
      try_=f"--gin.HEAD=@{HEADS[form.name].__name__}(), or --gin.HEAD=task",
    )
  own = tuple(getattr(head, "labels", ()))
  named = not any(_NUMBERED.fullmatch(label) for label in (*own, *form.labels))
  if len(own) > 1 and form.labels and (len(own) != len(form.labels) or (named and own != tuple(form.labels))):
    raise UserError(
      f"the classes of task {task!r} are not those of the head",
      task=", ".join(form.labels),
      head=", ".join(own),
      try_="a head for this task: train with --gin.INIT_FROM=... and another MODEL_DIR",
    )


def _label_kind(form: data.LabelForm) -> str:
  """Returns "classification", "regression" or '' for a task whose texts are embedded."""
  return form.target if form.name == "embedding" else form.name


def _embedding_head(head: nn.Module, form: data.LabelForm) -> nn.Module:
  """Returns the head with a loss for the task's labels, its classes and its number of texts."""
  single = form.name == "embedding" and form.texts == 1
  by_kind = {"classification": "softmax", "regression": "cosine", "": "simcse" if single else "ranking"}
  loss = head.loss or by_kind[_label_kind(form)]
  texts = form.texts if form.name == "embedding" and loss != "simcse" else 2
  labels = (head.labels or form.labels) if loss == "softmax" else ()
  return head.clone(loss=loss, texts=head.texts or texts, labels=labels)


def _check_embedding_fits(head: nn.Module, form: data.LabelForm, task: str) -> None:
  """Raises UserError if a head cannot embed the task's texts, or its loss needs other labels."""
  kind = _label_kind(form)
  if kind not in ("classification", "regression", "") or form.grouped:
    raise UserError(f"the texts of task {task!r} ({form.name}) cannot be embedded", expected=_EXPECTED["embedding"])
  if head.loss and head.target != kind and head.loss != "simcse":
    fitting = [loss for loss, labels in LOSSES.items() if labels == kind]
    raise UserError(
      f"the loss {head.loss!r} does not fit task {task!r}, which has {kind or 'no'} labels",
      try_=f"--gin.EmbeddingHead.loss={' or '.join(fitting)}",
    )


def check_can_score(head: nn.Module, form: data.LabelForm | None, task: str) -> None:
  """Raises UserError if a model with this head cannot be evaluated on a task.

  Embeddings are scored on other tasks than those that they are trained on: cosines of any texts.
  """
  if head.form != "embedding" or form is None:
    check_fits(head, form, task)
  elif _label_kind(form) == "classification":
    if head.loss != "softmax":
      raise UserError(
        f"task {task!r} has classes, which embeddings trained with the loss {head.loss!r} do not predict",
        try_="scored pairs, such as glue_stsb_classification, or retrieval: snli_retrieval_embedding",
      )
    check_fits(head, form, task)
  else:
    _check_embedding_fits(head.clone(loss=None), form, task)


def check_compared_rows(model: nn.Module, batch_size: int) -> None:
  """Raises UserError if the loss of a head compares rows with others, but a batch has only one."""
  if batch_size > 1 or not isinstance(model, WithHead) or not model.compares_rows or model.head.texts > 2:
    return
  raise UserError(
    f"BATCH_SIZE = 1: the loss {model.head.loss!r} compares the rows of a batch, so it would always be 0",
    try_="--gin.BATCH_SIZE=32 (with --gin.MICROBATCHES=N for less memory), or --gin.EmbeddingHead.loss=...",
  )


def scored_form(model: WithHead, cache: data.TokenCache) -> data.LabelForm:
  """Returns the form of a task's rows for evaluation, after checking that the model can be evaluated on it."""
  form, task = data.LabelForm.of(cache), cache.manifest["description"]["task"]
  check_can_score(model.head, form, task)
  if model.head.form != "embedding":
    return rows_form(model, cache)
  texts = sum(field in cache.features for field in TEXT_FIELDS)
  return dataclasses.replace(
    form, name="embedding", texts=texts, target=_label_kind(form), around=model.head.around
  )  # fmt: skip


def rows_form(model: WithHead, cache: data.TokenCache) -> data.LabelForm:
  """Returns the form of a task's rows for a model's head, after checking that they fit."""
  form = data.LabelForm.of(cache)
  check_fits(model.head, form, cache.manifest["description"]["task"])
  return dataclasses.replace(form, **dataclasses.asdict(head_form(model), dict_factory=_own_fields))


def head_form(model: WithHead) -> data.LabelForm:
  """Returns the form of a model's head."""
  head = model.head
  form = data.LabelForm(head.form, tuple(getattr(head, "labels", ())), getattr(head, "choices", 0))
  if head.form != "embedding":
    return form
  return dataclasses.replace(form, texts=head.texts, target=head.target, twice=head.loss == "simcse")


def _own_fields(fields: list[tuple[str, object]]) -> dict[str, object]:
  """Keeps the fields that a head determines."""
  return {name: value for name, value in fields if name in _OWN_FIELDS}


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
  "embedding": "a task of pairs or triplets, such as snli_triplets_embedding, or pairs with a class or a score",
}
