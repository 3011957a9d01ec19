"""Evaluation of a model with a head: its outputs, through the task's postprocessor, to the task's metrics."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t5like import data
from t5like.data.labeled_rows import ChoiceRows, EmbeddingRows, LabeledRows, SpanRows, TagRows
from t5like.decoding import bucket
from t5like.errors import UserError
from t5like.evaluation.evaluated_model import EvaluatedModel
from t5like.evaluation.evaluation_set import EvaluationSet, data_identity
from t5like.evaluation.heads.embeddings import cosines, score_retrieval
from t5like.evaluation.scoring import Evaluation, find_function, find_metrics
from t5like.evaluation.settings import EvaluationSettings
from t5like.experiments.heads import scored_form
from t5like.inference.heads.outputs import HeadRunner, sigmoid, softmax
from t5like.objectives.segments import TEXT_FIELDS
from t5like.objectives.spans import make_windows, squad_answers
from t5like.tasks.encoders.scores import class_id
from t5like.tasks.metrics import values as metric_values
from t5like.tasks.metrics.values import PREDICTIONS, Answers
from t5like.vocabularies import Vocabulary

Fields = Mapping[str, Any]
_GENERATION = ("rank", "candidates", "shots", "prompt", "infill")
_SPECIAL = 2  # tokens around a text, at most
_UNANSWERABLE = "squad_v2_windows"  # the metric of questions without an answer


class HeadEvaluator:
  """Scores the labels that a head predicts. Has the interface of Evaluator."""

  def __init__(self, model: EvaluatedModel, settings: EvaluationSettings):
    head = model.module.head
    for name in _GENERATION:
      if getattr(settings, name) not in (None, False):
        raise UserError(f"--{name} needs a model that generates text; this one has a {type(head).__name__}")
    if settings.decoding:
      raise UserError(f"a head does not decode: --{next(iter(settings.decoding))} has no effect")
    if getattr(head, "prompt", ""):
      raise UserError("token caches do not have the default prompt of this model", prompt=head.prompt)
    self._model, self._settings = model, settings
    self._length = settings.inputs_length or getattr(head, "length", None) or model.inputs
    self._batch_size = settings.batch_size or model.batch_size
    self._runner = HeadRunner(model.module, model.mesh)
    pooled = {"embed": head.pooling} if head.form == "embedding" and head.loss is None else {}  # not trained for it
    self.identity = settings.identity() | pooled

  def read(self, task: str, cache: data.TokenCache) -> EvaluationSet:
    """Builds the evaluation set of a token cache: one entry per postprocessed prediction."""
    form = scored_form(self._model.module, cache)
    if form.name == "embedding" and form.texts < 2:
      raise UserError(f"task {task!r} has single texts, without a score", try_="--task=glue_stsb_classification")
    length = _longest(cache, form, self._length) if form.name == "embedding" else self._length
    source = data.labeled_rows(cache, form, length, self._model.special, seed=0)
    examples = min(self._settings.examples or cache.examples, cache.examples)
    fields = list(scored_fields(source, examples, self._model.vocabulary))
    if not fields:
      raise UserError(f"the split {self._settings.split!r} of task {task!r} has no examples")
    identity = data_identity(cache, self._settings.task_modules)
    return EvaluationSet(task, self._settings.split, fields, cache.scoring, [], identity, source=source)

  def __call__(
    self, params: Any, evaluation_set: EvaluationSet, progress: Callable[[int], None] = lambda done: None
  ) -> Evaluation:
    """Predicts the labels of every row and scores them."""
    source, fields, modules = evaluation_set.source, evaluation_set.fields, self._settings.task_modules
    per_row = source.form.choices if isinstance(source, ChoiceRows) else 1
    rows, logits = len(fields) // per_row, []
    for first in range(0, rows, self._batch_size):
      numbers = np.arange(first, min(first + self._batch_size, rows))
      logits.append(self._runner(params, source.read(numbers), self._batch_size, _output(source)))
      progress(int(numbers[-1] + 1) * per_row)
    outputs, form = np.concatenate(logits), source.form
    if isinstance(source, EmbeddingRows):
      if not form.target and form.texts == 2:
        return score_retrieval(outputs, evaluation_set, modules)
      outputs = outputs if form.target == "classification" else cosines(outputs)
      form = dataclasses.replace(form, name=form.target or "embedding")
    return score_logits(outputs, form, evaluation_set, modules)


def _longest(cache: data.TokenCache, form: data.LabelForm, most: int) -> int:
  """Returns the length of the longest text with special tokens, at most `most`: single texts are short."""
  tokens = max(int(cache.lengths(field).max(initial=1)) for field in TEXT_FIELDS[: form.texts])
  return min(bucket(tokens + _SPECIAL), most)


def _output(source: LabeledRows) -> str | None:
  """Returns the output of the model that is scored; None: its logits."""
  return "embeddings" if isinstance(source, EmbeddingRows) and source.form.target != "classification" else None


def scored_fields(source: LabeledRows, examples: int, vocabulary: Vocabulary) -> Iterator[dict[str, Any]]:
  """Yields what postprocessors read, as seqio would: of every example, or of every window of a passage."""
  given = itertools.islice(source.cache.fields(), examples)
  if isinstance(source, SpanRows):
    settings = source.settings
    for example in given:
      windows = make_windows(
        vocabulary, example["first"], example["second"], length=settings.length, stride=settings.stride,
        longest_question=settings.longest_question, form=source.pair_form,
      )  # fmt: skip
      for row, length in enumerate(windows.lengths):
        starts, ends = windows.offsets[row, :length].T
        per_token = {"offset_starts": starts, "offset_ends": ends, "best_context": windows.best_context[row, :length]}
        yield example | per_token
  elif isinstance(source, TagRows):
    for number, example in enumerate(given):
      joined = source.joined(np.array([number]))
      yield example | {"word_numbers": joined.word_numbers[0, : joined.lengths[0]]}
  else:
    whole = examples // source.form.choices * source.form.choices if isinstance(source, ChoiceRows) else examples
    for example in itertools.islice(given, whole):
      named = {name.removesuffix("_pretokenized"): value for name, value in example.items()}
      label = {"labels": named.pop("label")} if "label" in named else {}
      yield named | label


def score_logits(
  logits: np.ndarray, form: data.LabelForm, evaluation_set: EvaluationSet, modules: Sequence[str]
) -> Evaluation:
  """Returns the scores of logits [rows, ...], and the predictions."""
  scoring, fields = evaluation_set.scoring, evaluation_set.fields
  postprocess = find_function(scoring["postprocessor"], modules) if scoring["postprocessor"] else class_id
  given = _per_example(logits, form)
  targets = [postprocess(None, example=example, is_target=True) for example in fields]
  outputs = [postprocess(value, example=example, is_target=False) for value, example in zip(given, fields, strict=True)]
  metrics = find_metrics(scoring, modules)
  values = metric_values.compute(metrics, Answers(targets, outputs))
  baseline, answer = {}, ""
  counts = collections.Counter(target for target in targets if isinstance(target, int))
  if form.name == "classification" and counts:
    chosen = counts.most_common(1)[0][0]
    answer = form.labels[chosen] if 0 <= chosen < len(form.labels) else ""
    if answer:
      by_prediction = [metric for metric in metrics if metric.takes == PREDICTIONS]
      baseline = metric_values.compute(by_prediction, Answers(targets, [chosen] * len(targets))).numbers
  if form.name == "spans":
    rows = list(_answer_rows(fields, outputs, scoring))
  else:
    rows = [
      {"inputs": _text(example), "prediction": output, "target": target} | _more(form, value)
      for example, output, target, value in zip(fields, outputs, targets, given, strict=True)
    ]
  return Evaluation(values.numbers, baseline, rows, answer, list(scoring["metrics"]), values.others, values.failures)


def _per_example(logits: np.ndarray, form: data.LabelForm) -> Sequence[Any]:
  """Returns what a postprocessor takes for each example: the scores of classes, tags or positions, or a number."""
  if form.name == "choices":  # each candidate: its score of being right, against 0
    flat = logits.reshape(-1)
    return np.stack([np.zeros_like(flat), flat], axis=1)
  return logits[:, 0] if form.name == "regression" else logits


def _more(form: data.LabelForm, value: Any) -> dict[str, Any]:
  if form.name == "multi_label":
    marks = zip(form.labels, sigmoid(value), strict=True)
    return {"probabilities": {label: round(float(p), 6) for label, p in marks}}
  if form.name != "classification":
    return {}
  probabilities = softmax(value)
  return {
    "label": form.labels[int(np.argmax(value))],
    "probabilities": {label: round(float(p), 6) for label, p in zip(form.labels, probabilities, strict=True)},
  }


def _text(example: Fields) -> str:
  if "tokens" in example:
    return " ".join(example["tokens"])
  return " | ".join(example[name] for name in TEXT_FIELDS if name in example)


def _answer_rows(fields: Sequence[Fields], outputs: Sequence[Any], scoring: Mapping[str, Any]) -> Iterator[dict]:
  """Yields the answer to every question from all its windows; `span` is the best one if there may be no answer."""
  v2 = [entry for entry in scoring["metrics"] if str(entry.get("function")).endswith(f":{_UNANSWERABLE}")]
  answers = squad_answers(
    *([output[part] for output in outputs] for part in ("starts", "ends", "offsets", "best_context")),
    [str(example["id"]) for example in fields],
    [example["second"] for example in fields],
  )
  threshold = float(v2[0]["keywords"].get("threshold", 0.0)) if v2 else np.inf
  by_id = {str(example["id"]): example for example in fields}
  for question, answer in answers.items():
    example = by_id[question]
    text = "" if answer.null_score - answer.score > threshold else answer.text
    row = {"inputs": example["first"], "prediction": text, "target": example["answers"], "id": question}
    row |= {"span": answer.text} if v2 else {}
    yield row | {"score": answer.score, "null_score": answer.null_score}


def check_head_scorable(cache: data.TokenCache) -> None:
  """Raises UserError if a task with labels has no metrics."""
  if not cache.scoring["metrics"] and not cache.scoring.get("refused"):
    raise UserError(
      f"task {cache.manifest['description']['task']!r} has no metric functions; its labels may be withheld",
      try_="--gin.EVAL_SPLIT=''  (or a task with metrics)",
    )
