"""`t5like eval --loss`: how well a model predicts text, without decoding."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from t5like import evaluation
from t5like.cli.decoding_options import given_options
from t5like.cli.options import task_modules
from t5like.console import ProgressLine, say
from t5like.errors import UserError
from t5like.evaluation.answering import split_starts
from t5like.evaluation.evaluation_set import default_lengths, is_cached, learned_positions, open_tasks
from t5like.evaluation.following import chosen_steps
from t5like.evaluation.perplexity import BatchLosses, TextLoss, causal_loss, denoising_loss
from t5like.evaluation.tables import FOLDER, Record, Results, checkpoint_identity, scores_table, steps_table
from t5like.evaluation.task_evaluation import load_next
from t5like.experiments import seqio_process as task_process
from t5like.files import storage
from t5like.inference.model import LoadedModel, load_model
from t5like.models.embedder import check_length
from t5like.objectives import CATALOGUE, Lengths, Objective, find_objective, split_task_name
from t5like.parallel.process_zero import first_process_decides
from t5like.training.checkpoints.folders import checkpoints_folder
from t5like.vocabularies.training import read_texts

_BATCH = 16
_WINDOW = 512


@dataclasses.dataclass(frozen=True)
class Corpus:
  """Text to predict: documents, or targets that follow their inputs."""

  name: str
  split: str
  texts: list[list[int]]
  bytes: int
  inputs: list[list[int]] | None = None  # labelled: what each text is an answer to
  data: str = ""


# (parameters, hears of rows done) -> sums
Measure = Callable[[Any, Callable[[int, int], None]], TextLoss]


def run(args: argparse.Namespace) -> int:
  if args.follow:
    raise UserError("--loss follows no run: the loop itself does it", try_="--gin.EVAL_LOSS_PERIOD=1000 in training")
  if given_options(args):
    raise UserError("--loss writes nothing", expected=f"no --{next(iter(given_options(args)))} beside it")
  loaded = load_model(args.model_dir, args.vocabulary, modules=task_modules(args))
  with loaded.sharding():
    corpora = [_text_file(loaded, args)] if args.text else _tasks(loaded, args)
    ways = [(corpus, *_way(loaded, args, corpus)) for corpus in corpora]
    for _, _, how in ways:
      say(f"measured: {how}")
    return _measure_all(loaded, args, ways)


def _measure_all(loaded: LoadedModel, args: argparse.Namespace, ways: list[tuple[Corpus, Measure, str]]) -> int:
  out = storage.as_path(args.out).absolute() if args.out else loaded.folder
  results, progress, told = Results(out / FOLDER), ProgressLine(), []
  steps = chosen_steps(loaded.folder, args.steps) if args.steps else [loaded.step(args.step)]
  for step in steps:
    identity = "" if step is None else checkpoint_identity(checkpoints_folder(loaded.folder) / str(step))
    params, records = None, []
    for corpus, measure, how in ways:
      more = [*([f"first {args.examples}"] if args.examples else []), *(["average"] if args.average else [])]
      words = ", ".join([f"loss: {how}", *more])
      blank = Record(step, identity, corpus.name, corpus.split, words, len(corpus.texts), {}, data=corpus.data)
      if not args.again and first_process_decides(lambda b=blank: int(results.find(b.key) is not None)):
        say(f"{corpus.name} was measured already (--again does it anew)")
        records.append((results.find(blank.key) if jax.process_index() == 0 else None) or blank)
        continue
      if params is None and (params := load_next(loaded, step, args.average, len(steps) > 1)) is None:
        break
      loss = measure(params, lambda done, total, c=corpus: progress.show(f"{c.name}: {done:,}/{total:,} rows"))
      progress.leave()
      records.append(dataclasses.replace(blank, scores=loss.scores()))
      if jax.process_index() == 0:
        results.add(records[-1])
    if records:
      say(f"{'the model' if step is None else f'step {step:,}'}:\n{scores_table(records)}")
    told += records
  if len(steps) > 1 and told:
    say(f"loss of all checkpoints:\n{steps_table(told)}")
  say(f"tables: {results.json} and {results.csv.name}")
  return 0 if told else 1


def _text_file(loaded: LoadedModel, args: argparse.Namespace) -> Corpus:
  """JSON lines are a document each, any other file is one; its bytes are those of its text."""
  path = storage.as_path(args.text)
  lines = list(read_texts(path, args.text_field))
  is_json = any(ending in (".jsonl", ".json") for ending in path.suffixes)
  texts = lines if is_json else ["".join(lines)]
  return _of_documents(loaded, path.name, "", texts[: args.examples or None])


def _of_documents(loaded: LoadedModel, name: str, split: str, texts: Sequence[str]) -> Corpus:
  if not any(texts):
    raise UserError(f"{name} is empty: there is nothing to predict")
  coded = loaded.vocabulary.encode_batch(list(texts))
  size = sum(len(text.encode("utf-8", errors="replace")) for text in texts)
  identity = zlib.crc32(json.dumps(list(texts)).encode())
  return Corpus(name, split, [list(tokens) for tokens in coded], size, data=f"{identity:08x}")


def _tasks(loaded: LoadedModel, args: argparse.Namespace) -> list[Corpus]:
  split = args.split or "validation"
  names = [
    name for name in (args.task or ("" if loaded.trained_elsewhere else loaded.experiment.task)).split(",") if name
  ]
  if not names:
    raise UserError("there is no text to predict", try_="--task=TASK, or --text=FILE")
  found = []
  for name in (split_task_name(name)[0] for name in names):
    if is_cached(loaded, args, name, split):
      found.append(_cached(loaded, args, name, split))
      continue
    for task, documents in task_process.texts(name, split, args.examples, task_modules(args)).items():
      labelled = documents is None
      found.append(_cached(loaded, args, task, split) if labelled else _of_documents(loaded, task, split, documents))
  return found


def _cached(loaded: LoadedModel, args: argparse.Namespace, task: str, split: str) -> Corpus:
  (cache,) = open_tasks(loaded, args, [task], split).values()
  if set(cache.features) != {"inputs", "targets"}:
    raise UserError(f"task {task!r} has no targets to predict: its examples have {', '.join(cache.features)}")
  return _labelled(task, split, cache, args.examples)


def _labelled(task: str, split: str, cache: Any, examples: int) -> Corpus:
  count = min(examples or cache.examples, cache.examples)
  sides = {}
  for feature in ("inputs", "targets"):
    texts = cache.texts(feature, np.arange(count))
    sides[feature] = [row[:n].tolist() for row, n in zip(texts.tokens, texts.lengths, strict=True)]
  fields = itertools.islice(cache.fields(), count)
  size = sum(len(example["targets_pretokenized"].encode("utf-8", errors="replace")) for example in fields)
  identity = zlib.crc32(json.dumps(cache.manifest["description"], sort_keys=True).encode())
  return Corpus(task, split, sides["targets"], size, sides["inputs"], f"{identity:08x}")


def _way(loaded: LoadedModel, args: argparse.Namespace, corpus: Corpus) -> tuple[Measure, str]:
  """How this model is measured on this text, and the words for it."""
  batch_size = args.batch_size or _BATCH
  if corpus.inputs is not None:
    return _of_targets(loaded, args, corpus, batch_size)
  losses = BatchLosses(loaded.model, loaded.mesh, batch_size)
  if loaded.model.batch_layout in ("decoder", "prefix_lm"):
    window = args.window or learned_positions(loaded) or max(default_lengths(loaded)[0], 2)
    check_length(loaded.model.config, window)
    stride = args.stride or max(window // 2, 1)
    if stride > window:
      raise UserError(f"--stride={stride} is more than --window={window}: tokens would be left out")
    start = loaded.special.start

    def causal(params: Any, progress: Callable[[int, int], None]) -> TextLoss:
      return causal_loss(losses, params, corpus.texts, corpus.bytes, start, window, stride, progress)

    return causal, f"every token given those before it, window {window}, stride {stride}"
  if args.stride:
    raise UserError("--stride is for language models: a denoiser reads every token once")
  objective, lengths = _objective(loaded, args)

  def denoising(params: Any, progress: Callable[[int, int], None]) -> TextLoss:
    return denoising_loss(losses, params, corpus.texts, corpus.bytes, objective, lengths, loaded.special, progress)

  return (
    denoising,
    f"hidden text given the rest ({objective.name}, rows of {lengths.raw}): a pseudo-loss, no likelihood of the text",
  )


def _of_targets(loaded: LoadedModel, args: argparse.Namespace, corpus: Corpus, batch_size: int) -> tuple[Measure, str]:
  if loaded.model.batch_layout == "encoder":
    raise UserError(
      f"{type(loaded.model).__name__} is an encoder: it cannot predict the targets of {corpus.name!r}",
      try_="a corpus, or --text=FILE: it fills in hidden text",
    )
  form, eos, layout = loaded.prompt_form, loaded.special.eos, loaded.model.batch_layout
  length = args.inputs_length or default_lengths(loaded)[0]
  inputs = [form.tokens(row[: length - (form.end is not None)]) for row in corpus.inputs]
  targets = [[*row, eos] for row in corpus.texts]
  positions = learned_positions(loaded)
  longest = max(len(a) + len(b) for a, b in zip(inputs, targets, strict=True))
  if positions is not None and layout != "encoder_decoder" and longest > positions + 1:
    raise UserError(
      f"inputs and targets of {longest} tokens do not fit the model's {positions} positions",
      try_=f"--inputs_length={max(positions - max(map(len, targets)), 1)}",
    )
  scorer = evaluation.CandidateScorer(loaded.model, loaded.mesh, loaded.special.start, batch_size)

  def of_targets(params: Any, progress: Callable[[int, int], None]) -> TextLoss:
    nats = 0.0
    for first in range(0, len(inputs), 256):
      part = slice(first, first + 256)
      found = scorer(params, *split_starts(layout, inputs[part], [[target] for target in targets[part]]))
      nats -= sum(row[0].log_likelihood for row in found)
      progress(min(first + 256, len(inputs)), len(inputs))
    return TextLoss(nats, sum(map(len, targets)), None, corpus.bytes)

  return of_targets, "targets given their inputs, end-of-sequence among them"


def _objective(loaded: LoadedModel, args: argparse.Namespace) -> tuple[Objective, Lengths]:
  """What is hidden: as asked for, as in training, or what such models are usually trained with."""
  masked = loaded.model.batch_layout == "encoder"
  if masked and not loaded.model.config.mlm_head:
    raise UserError("this encoder has no head that fills in hidden text: it was saved without", folder=loaded.folder)
  named = split_task_name(args.task.split(",")[0])[1] if args.task else None
  own = None if loaded.trained_elsewhere else loaded.experiment.objective
  if args.objective or named:
    objective = find_objective(args.objective or named)
  elif own is not None and not own.needs_others:
    objective = own
  else:
    objective = CATALOGUE["bert_mlm" if masked else "span_corruption"]
  inputs_missing = not masked and not objective.lengths(_WINDOW).inputs
  if (objective.makes == "masked") != masked or objective.needs_others or inputs_missing:
    fitting = ["bert_mlm", "spanbert", "electra"] if masked else ["span_corruption", "bert_style", "prefix_lm"]
    raise UserError(
      f"{objective.name} cannot measure {type(loaded.model).__name__}", try_=f"--objective={' or '.join(fitting)}"
    )
  inputs = args.window or (_WINDOW if loaded.trained_elsewhere else loaded.experiment.lengths["inputs"])
  inputs = min(inputs, learned_positions(loaded) or inputs)
  lengths = objective.lengths(inputs)
  objective.check(lengths, loaded.special)
  return objective, lengths
