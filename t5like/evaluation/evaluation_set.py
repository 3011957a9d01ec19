"""The examples of tasks as a model is asked them: prompts, candidates, and what scores the answers."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t5like import data
from t5like.cli.options import task_modules
from t5like.console import say
from t5like.data.rows import read_examples
from t5like.errors import UserError
from t5like.evaluation.answer_scoring import answer_vocabulary, data_identity
from t5like.evaluation.answering import label_set
from t5like.evaluation.few_shot import PromptMaker, Template, shots_story
from t5like.evaluation.scoring import takes_scores
from t5like.experiments import seqio_process as task_process
from t5like.experiments.token_caches import TokenCaches
from t5like.files import storage
from t5like.files.storage import DEFAULT_ROOT
from t5like.inference.model import LoadedModel
from t5like.objectives import Lengths
from t5like.vocabularies import Vocabulary

_TARGETS = 62  # a pre-training run has no target length of its own for labelled tasks: T5's serves them all
_INPUTS = 512


@dataclasses.dataclass(frozen=True)
class Questions:
  """A task as it is asked."""

  task: str
  split: str
  fields: list[Mapping[str, Any]]  # of every example
  scoring: Mapping[str, Any]
  prompts: list[list[int]]
  candidates: list[list[str]] | None  # None: answers are written freely
  stop: str | None  # the text before which an answer ends
  data: str  # tells the examples apart from others under the same name
  lead: str = ""  # stands before an answer, as in the prompt
  targets: list[list[int]] | None = None  # their tokens, where a metric takes how likely they are
  answers: str = "text"  # or "ids", which the task itself reads
  vocabulary: Vocabulary | None = None  # of the answers' text; None: the model's


def default_lengths(loaded: LoadedModel) -> tuple[int, int]:
  """Tokens of inputs and targets: as in training, or what suits a model whose training is not known."""
  if not loaded.trained_elsewhere:
    lengths = loaded.experiment.lengths
    return lengths["inputs"], lengths.get("targets", _TARGETS)
  positions = learned_positions(loaded)
  return (_INPUTS if positions is None else max(positions - _TARGETS, positions // 2)), _TARGETS


def learned_positions(loaded: LoadedModel) -> int | None:
  config = loaded.model.config
  return config.max_positions if config.positions == "learned" else None


def caches_of(loaded: LoadedModel, args: argparse.Namespace) -> TokenCaches:
  """Those that the command names. What a model directory says of caches, task modules and files is not followed."""
  root, (inputs, targets) = args.cache_dir or DEFAULT_ROOT, default_lengths(loaded)
  return TokenCaches(
    root,
    loaded.vocabulary_name,
    loaded.vocabulary,
    task_modules(args),
    hint=loaded.task_hint(),
    lengths={"inputs": getattr(args, "inputs_length", None) or inputs, "targets": targets},
    evaluation=True,
  )


def open_tasks(
  loaded: LoadedModel, args: argparse.Namespace, names: Sequence[str], split: str
) -> dict[str, data.TokenCache]:
  """The token caches of tasks and of the tasks of mixtures, by task; built where they are missing."""
  caches, found = caches_of(loaded, args), {}
  for name in names:
    if _is_single(caches, name, split):
      tasks = [name]
    else:  # a mixture is drawn from some of its tasks in training, and evaluated on all
      tasks = _members(name, split, task_modules(args), loaded.task_hint())
    for task in tasks:
      (member,) = caches.open_or_build(task, split)
      found[task] = member.cache
  return found


def _members(name: str, split: str, modules: Sequence[str], hint: str) -> list[str]:
  try:
    return task_process.members(name, split, modules)
  except UserError as error:
    raise UserError(error.what, **error.lines, hint=hint) from None


def is_cached(loaded: LoadedModel, args: argparse.Namespace, task: str, split: str) -> bool:
  """Whether labelled examples of a task are there already: then seqio need not be asked."""
  caches = caches_of(loaded, args)
  return _is_single(caches, task, split) and not caches.open_or_build(task, split)[0].cache.is_corpus


def _is_single(caches: TokenCaches, name: str, split: str) -> bool:
  folder = caches.folder(name, split)
  return folder.is_dir() and data.read_mixture(folder, mend="") is None


def check_answerable(task: str, cache: data.TokenCache) -> None:
  """Refuses a task that asks no questions."""
  if cache.is_corpus:
    raise UserError(f"task {task!r} is a corpus: it has no answers to score", try_=f"--loss --task={task}")
  if set(cache.features) != {"inputs", "targets"}:
    raise UserError(
      f"task {task!r} is made for encoders: its examples have {', '.join(cache.features)}, not inputs and targets",
      try_=f"--task={task.removesuffix('_classification')}",
    )


def check_writes(loaded: LoadedModel) -> None:
  """An encoder has no answers to be scored."""
  if loaded.model.batch_layout == "encoder":
    raise UserError(
      f"{type(loaded.model).__name__} is an encoder: it writes no answers",
      expected="a model with a decoder (T5, GPT)",
      try_="--loss, which scores how well it fills in hidden text",
    )


class Asker:
  """Makes questions of the examples of tasks, as the options of the command say."""

  def __init__(self, loaded: LoadedModel, args: argparse.Namespace, max_length: int):
    check_writes(loaded)
    self._loaded, self._args, self._max_length = loaded, args, max_length
    self.prompted = args.shots is not None or args.prompt is not None or args.infill
    self.template = Template.read(args.prompt) if self.prompted else None
    self._form = loaded.prompt_form
    self._sentinels = loaded.special.sentinels
    if args.infill and (loaded.model.batch_layout != "encoder_decoder" or not self._sentinels):
      raise UserError(
        "--infill puts the answer in place of a sentinel",
        expected="an encoder-decoder whose vocabulary has sentinels, such as T5",
      )

  def __call__(self, task: str, split: str, cache: data.TokenCache) -> Questions:
    check_answerable(task, cache)
    vocabulary = self._answer_vocabulary(task, cache)
    count = min(self._args.examples or cache.examples, cache.examples)
    fields = list(itertools.islice(cache.fields(), count))
    if not fields:
      raise UserError(f"the split {split!r} of task {task!r} has no examples")
    scoring = cache.scoring
    candidates = self._candidates(task, fields, scoring)
    longest = max((len(self.answer_tokens(text)) for row in candidates or () for text in row), default=0)
    room = self._room(longest if candidates else self._max_length)
    prompts = self._few_shot(task, split, fields, room) if self.prompted else self._plain(task, cache, count, room)
    newline_lost = self.prompted and "\n" not in self._loaded.vocabulary.decode(self._loaded.vocabulary.encode("a\nb"))
    stop = None if not self.prompted or (newline_lost and self.template.stop == "\n") else self.template.stop
    lead = self.template.answer("") if self.prompted else ""
    identity = data_identity(cache, task_modules(self._args))
    targets = self._targets(cache, count) if takes_scores(scoring) else None
    answers = cache.manifest.get("answers", "text")
    return Questions(
      task, split, fields, scoring, prompts, candidates, stop, identity, lead, targets, answers, vocabulary
    )

  def _answer_vocabulary(self, task: str, cache: data.TokenCache) -> Vocabulary | None:
    """Of the answers, where it is not the model's; candidates and prompts are texts of the model's."""
    own = answer_vocabulary(cache, self._loaded.vocabulary)
    if own is self._loaded.vocabulary:
      return None
    if self.prompted or self._args.rank:
      raise UserError(
        f"the answers of task {task!r} are written in a vocabulary of their own",
        expected="no --rank, --shots, --prompt and --infill: they take texts in the model's vocabulary",
      )
    return own

  def _targets(self, cache: data.TokenCache, count: int) -> list[list[int]]:
    lengths = Lengths(0, 1, max(int(cache.lengths("targets").max(initial=0)) + 1, 1))
    texts = read_examples(cache, np.arange(count), lengths, self._loaded.special).targets
    return [row[:n].tolist() for row, n in zip(texts.tokens, texts.lengths, strict=True)]

  def answer_tokens(self, text: str) -> list[int]:
    """A candidate as the model would write it, closed by end-of-sequence where its training closed answers."""
    lead = self.template.answer("") if self.prompted else ""
    tokens = self._loaded.vocabulary.encode(lead + text)
    if self._args.infill:
      return [self._sentinels[0], *tokens, self._sentinels[1]]
    closed = self._loaded.model.batch_layout == "encoder_decoder" or not self.prompted
    return [*tokens, self._loaded.special.eos] if closed else tokens or [self._loaded.special.eos]

  def _room(self, answer: int) -> int | None:
    """Tokens of a prompt, what stands around it included; None: no end."""
    if self._loaded.model.batch_layout == "encoder_decoder":
      return self._args.inputs_length
    positions = learned_positions(self._loaded)
    room = None
    if positions is not None:
      room = positions + 1 - answer  # the last token of an answer is read by nobody
      if room < 1:
        raise UserError(
          f"answers of {answer} tokens leave no room for a question: the model has {positions} positions",
          try_=f"--max_length={max(positions // 4, 1)}",
        )
    return min(filter(None, (room, self._args.inputs_length)), default=None)

  def _plain(self, task: str, cache: data.TokenCache, count: int, room: int | None) -> list[list[int]]:
    """Inputs as in training: cut, and closed as the model knows it."""
    around = len(self._form.tokens([0])) - 1
    length = self._args.inputs_length or default_lengths(self._loaded)[0] + (self._form.start is not None)
    if room is not None and room < length:
      length = room
    texts = cache.texts("inputs", np.arange(count))
    if cache.closing("inputs") == "none":  # as they are: finished, or of a task that closes nothing
      form = dataclasses.replace(self._form, end=None)
      return [form.tokens(row[: min(n, length)].tolist()) for row, n in zip(texts.tokens, texts.lengths, strict=True)]
    cut = int(np.count_nonzero(texts.lengths > length - around))
    if cut:
      say(f"{task}: {cut:,} of {count:,} inputs are longer than {length} tokens and are cut (--inputs_length)")
    kept = np.minimum(texts.lengths, max(length - around, 0))
    return [self._form.tokens(row[:n].tolist()) for row, n in zip(texts.tokens, kept, strict=True)]

  def _few_shot(self, task: str, split: str, fields: Sequence[Mapping[str, Any]], room: int | None) -> list[list[int]]:
    shots, pool = self._args.shots or 0, []
    if shots:
      (cache,) = open_tasks(self._loaded, self._args, [task], self._args.shots_split).values()
      pool = list(cache.fields())
    hole = [self._sentinels[0]] if self._args.infill else []

    def encode(text: str) -> list[int]:
      return self._form.tokens([*self._loaded.vocabulary.encode(text), *hole])

    same = split == self._args.shots_split
    maker = PromptMaker(self.template, pool, shots, self._args.seed or 0, encode, room, same)
    self.template.check(fields[0], f"task {task!r}")
    prompts = maker.all(fields)
    if story := shots_story(prompts, shots):
      say(f"{task}: {story}")
    return [prompt.tokens for prompt in prompts]

  def _candidates(
    self, task: str, fields: Sequence[Mapping[str, Any]], scoring: Mapping[str, Any]
  ) -> list[list[str]] | None:
    if not self._args.rank:
      return None
    given = self._args.candidates
    if given is None:
      return [self._labels(task, fields, scoring)] * len(fields)
    if given in fields[0]:
      rows = [example[given] for example in fields]
      for number, row in enumerate(rows):
        if not isinstance(row, list) or not row or not all(isinstance(text, str) for text in row):
          raise UserError(f"the field {given!r} of example {number} lists no candidates", found=repr(row)[:100])
      return rows
    path = storage.as_path(given)
    if not path.is_file():
      raise UserError(
        f"--candidates={given} is neither a field of task {task!r} nor a file", fields=", ".join(fields[0])
      )
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if len(lines) < 2:
      raise UserError(f"{path} has {len(lines)} candidates: there is nothing to choose", expected="one a line")
    return [lines] * len(fields)

  def _labels(self, task: str, fields: Sequence[Mapping[str, Any]], scoring: Mapping[str, Any]) -> list[str]:
    """Where answers are withheld all targets are the same: the training split then tells the labels."""
    if len({example["targets_pretokenized"] for example in fields}) == 1 and len(fields) > 1:
      with contextlib.suppress(UserError):
        return label_set(scoring, fields, task)
      (cache,) = open_tasks(self._loaded, self._args, [task], self._args.shots_split).values()
      fields = list(cache.fields())
    return label_set(scoring, fields, task)
