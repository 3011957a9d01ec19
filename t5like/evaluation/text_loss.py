"""Loss evaluation of text, for `t5like eval --loss`."""

from __future__ import annotations

import dataclasses
import itertools
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from t5like import data
from t5like.console import ProgressLine, say
from t5like.errors import UserError
from t5like.evaluation.answering import split_starts
from t5like.evaluation.checkpoints import Measurement
from t5like.evaluation.evaluated_model import EvaluatedModel
from t5like.evaluation.perplexity import BatchLosses, TextLoss, causal_loss, denoising_loss
from t5like.evaluation.settings import TextLossSettings
from t5like.evaluation.tables import Record
from t5like.evaluation.task_caches import TaskCaches
from t5like.experiments import seqio_process
from t5like.files import storage
from t5like.inference import Model
from t5like.inference.ranking import CandidateScorer
from t5like.models.embedder import check_length
from t5like.objectives import CATALOGUE, Lengths, Objective, find_objective, split_task_name
from t5like.vocabularies.training import read_texts

_WINDOW = 512
Progress = Callable[[int, int], None]  # receives rows done and their total


@dataclasses.dataclass(frozen=True)
class Corpus:
  """Text to predict: documents, or targets given their inputs."""

  name: str
  split: str
  texts: list[list[int]]
  bytes: int
  inputs: list[list[int]] | None = None  # of each text, for labeled tasks
  data: str = ""


@dataclasses.dataclass(frozen=True)
class LossMetric:
  """A way to measure the loss of a text."""

  identity: Mapping[str, Any]  # distinguishes it from others, by setting
  text: str  # the same, human-readable
  measure: Callable[[Any, Progress], TextLoss]  # takes parameters


def loss_measurements(model: Model, settings: TextLossSettings) -> list[Measurement]:
  """Returns measurements of the loss of each text. Use them under the model's `sharding()`."""
  texts = [_text_file(model, settings)] if settings.text else _tasks(model, settings)
  metrics = [_metric(model, settings, corpus) for corpus in texts]
  for metric in metrics:
    say(f"measured: {metric.text}")
  return [_measurement(corpus, metric, settings) for corpus, metric in zip(texts, metrics, strict=True)]


def measured_loss(task: str, scores: Mapping[str, float]) -> float:
  """Returns the score of a text for averages."""
  return scores["loss"]


def _measurement(corpus: Corpus, metric: LossMetric, settings: TextLossSettings) -> Measurement:
  more = {"examples": settings.examples, "average": settings.average}
  identity = {**metric.identity, **{name: value for name, value in more.items() if value}}
  words = [f"loss: {metric.text}", *([f"first {settings.examples}"] if settings.examples else [])]
  words += ["average"] if settings.average else []

  def measure(params: Any, blank: Record) -> Record:
    line = ProgressLine()
    loss = metric.measure(params, lambda done, total: line.show(f"{corpus.name}: {done:,}/{total:,} rows"))
    line.end_line()
    return dataclasses.replace(blank, scores=loss.scores())

  size = len(corpus.texts)
  blank = Record(None, "", corpus.name, corpus.split, ", ".join(words), size, {}, data=corpus.data, identity=identity)
  return Measurement(blank, measure)


def _text_file(model: Model, settings: TextLossSettings) -> Corpus:
  """Reads a file: JSON lines are one document each, any other file is a single document."""
  path = storage.as_path(settings.text)
  lines = list(read_texts(path, settings.text_field))
  is_json = any(ending in (".jsonl", ".json") for ending in path.suffixes)
  texts = lines if is_json else ["".join(lines)]
  return _document_corpus(model, path.name, "", texts[: settings.examples or None])


def _document_corpus(model: Model, name: str, split: str, texts: Sequence[str]) -> Corpus:
  if not any(texts):
    raise UserError(f"{name} is empty")
  encoded = model.vocabulary.encode_batch(list(texts))
  if not any(map(len, encoded)):
    raise UserError(f"{name} has no tokens: it contains only spaces")
  size = sum(len(text.encode("utf-8", errors="replace")) for text in texts)
  identity = zlib.crc32(json.dumps(list(texts)).encode())
  return Corpus(name, split, [list(tokens) for tokens in encoded], size, data=f"{identity:08x}")


def _tasks(model: Model, settings: TextLossSettings) -> list[Corpus]:
  own = (model.experiment.task,) if model.has_training_config else ()
  names = settings.tasks or own
  if not names:
    raise UserError("no text to evaluate", try_="--task=TASK, or --text=FILE")
  caches = TaskCaches(model, settings.cache_dir, settings.task_modules, settings.inputs_length)
  split, examples, found = settings.split, settings.examples, []
  for name in (split_task_name(name)[0] for name in names):
    if caches.is_labeled(name, split):
      found.append(_labeled_corpus(name, split, caches.open_task(name, split), examples))
      continue
    for task, documents in seqio_process.texts(name, split, examples, settings.task_modules).items():
      found.append(
        _labeled_corpus(task, split, caches.open_task(task, split), examples) if documents is None
        else _document_corpus(model, task, split, documents)
      )  # fmt: skip
  return found


def _labeled_corpus(task: str, split: str, cache: data.TokenCache, examples: int) -> Corpus:
  if set(cache.features) != {"inputs", "targets"}:
    raise UserError(f"task {task!r} has no targets to predict: its examples have {', '.join(cache.features)}")
  count = min(examples or cache.examples, cache.examples)
  sides = {}
  for feature in ("inputs", "targets"):
    texts = cache.texts(feature, np.arange(count))
    sides[feature] = [row[:n].tolist() for row, n in zip(texts.tokens, texts.lengths, strict=True)]
  fields = itertools.islice(cache.fields(), count)
  size = sum(len(example["targets_pretokenized"].encode("utf-8", errors="replace")) for example in fields)
  identity = zlib.crc32(json.dumps(cache.manifest["description"], sort_keys=True).encode())
  return Corpus(task, split, sides["targets"], size, sides["inputs"], f"{identity:08x}")


def _metric(model: Model, settings: TextLossSettings, corpus: Corpus) -> LossMetric:
  """Returns the loss metric for this model and text."""
  evaluated = EvaluatedModel.of_loaded(model)
  if corpus.inputs is not None:
    return _target_metric(evaluated, settings, corpus)
  losses = BatchLosses(evaluated.module, evaluated.mesh, settings.batch_size)
  if evaluated.layout in ("decoder", "prefix_lm"):
    return _causal_metric(evaluated, settings, corpus, losses)
  if settings.stride:
    raise UserError("--stride is only for language models: a denoiser reads every token once")
  objective, lengths = _objective(model, settings)

  def denoising(params: Any, progress: Progress) -> TextLoss:
    return denoising_loss(losses, params, corpus.texts, corpus.bytes, objective, lengths, model.special, progress)

  return LossMetric(
    {"loss": "denoising", "objective": objective.name, "window": lengths.raw},
    f"hidden text given the rest ({objective.name}, rows of {lengths.raw}): a pseudo-loss, not a likelihood",
    denoising,
  )


def _causal_metric(
  evaluated: EvaluatedModel, settings: TextLossSettings, corpus: Corpus, losses: BatchLosses
) -> LossMetric:
  if not getattr(evaluated.module.config, "has_output", True):
    raise UserError("this ELMo was saved without its output layer, which a loss needs")
  window = settings.window or evaluated.positions or max(evaluated.inputs, 2)
  check_length(evaluated.module.config, window)
  stride = settings.stride or max(window // 2, 1)
  if stride > window:
    raise UserError(f"invalid --stride={stride}: exceeds --window={window}, tokens would be skipped")
  start = evaluated.special.start

  def causal(params: Any, progress: Progress) -> TextLoss:
    return causal_loss(losses, params, corpus.texts, corpus.bytes, start, window, stride, progress)

  return LossMetric(
    {"loss": "causal", "window": window, "stride": stride},
    f"every token given those before it, window {window}, stride {stride}",
    causal,
  )


def _target_metric(evaluated: EvaluatedModel, settings: TextLossSettings, corpus: Corpus) -> LossMetric:
  if evaluated.layout == "encoder":
    raise UserError(
      f"{type(evaluated.module).__name__} is an encoder and cannot predict the targets of {corpus.name!r}",
      try_="a corpus, or --text=FILE, for masked-token prediction",
    )
  form, eos, layout = evaluated.form, evaluated.special.eos, evaluated.layout
  length = settings.inputs_length or evaluated.inputs
  inputs = [form.tokens(row[: length - (form.end is not None)]) for row in corpus.inputs]
  targets = [[*evaluated.special.before_targets, *row, eos] for row in corpus.texts]
  positions = evaluated.positions
  longest = max(len(a) + len(b) for a, b in zip(inputs, targets, strict=True))
  if positions is not None and layout != "encoder_decoder" and longest > positions + 1:
    raise UserError(
      f"inputs and targets of {longest} tokens exceed the model's {positions} positions",
      try_=f"--inputs_length={max(positions - max(map(len, targets)), 1)}",
    )
  scorer = CandidateScorer(evaluated.module, evaluated.mesh, evaluated.special.start, settings.batch_size)

  def target_loss(params: Any, progress: Progress) -> TextLoss:
    nats = 0.0
    for first in range(0, len(inputs), 256):
      part = slice(first, first + 256)
      found = scorer(params, *split_starts(layout, inputs[part], [[target] for target in targets[part]]))
      nats -= sum(row[0].log_likelihood for row in found)
      progress(min(first + 256, len(inputs)), len(inputs))
    return TextLoss(nats, sum(map(len, targets)), None, corpus.bytes)

  identity = {"loss": "targets", "inputs_length": length}
  return LossMetric(identity, "targets given their inputs, end-of-sequence among them", target_loss)


def _objective(model: Model, settings: TextLossSettings) -> tuple[Objective, Lengths]:
  """Returns the denoising objective: as requested, as in training, or the usual one for the architecture."""
  masked = model.module.batch_layout == "encoder"
  if masked and not getattr(model.module.config, "mlm_head", False):
    raise UserError("this encoder was saved without a masked-LM head", folder=model.folder)
  named = split_task_name(settings.tasks[0])[1] if settings.tasks else None
  own = model.experiment.objective if model.has_training_config else None
  if settings.objective or named:
    objective = find_objective(settings.objective or named)
  elif own is not None and not own.needs_others:
    objective = own
  else:
    objective = CATALOGUE["bert_mlm" if masked else "span_corruption"]
  inputs_missing = not masked and not objective.lengths(_WINDOW).inputs
  if (objective.makes == "masked") != masked or objective.needs_others or inputs_missing:
    fitting = ["bert_mlm", "spanbert", "electra"] if masked else ["span_corruption", "bert_style", "prefix_lm"]
    raise UserError(
      f"the objective {objective.name} does not fit {type(model.module).__name__}",
      try_=f"--objective={' or '.join(fitting)}",
    )
  inputs = settings.window or (model.experiment.lengths["inputs"] if model.has_training_config else _WINDOW)
  inputs = min(inputs, model.positions or inputs)
  lengths = objective.lengths(inputs)
  objective.check(lengths, model.special)
  return objective, lengths
