"""The examples of a task as a model reads them: prompts, candidates, and what scores the answers."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from t5like import data
from t5like.data.rows import read_examples
from t5like.errors import UserError
from t5like.evaluation.answer_vocabulary import answer_vocabulary
from t5like.evaluation.answering import label_set
from t5like.evaluation.evaluated_model import EvaluatedModel
from t5like.evaluation.few_shot import PromptMaker, Template, shots_story
from t5like.evaluation.scoring import scoring_identity, takes_scores
from t5like.evaluation.settings import EvaluationSettings
from t5like.files import storage
from t5like.objectives import Lengths
from t5like.vocabularies import Vocabulary

OpenTask = Callable[[str, str], data.TokenCache]  # (task, split)
Fields = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
  """A task, ready to be answered and scored."""

  task: str
  split: str
  fields: list[Fields]  # of every example
  scoring: Mapping[str, Any]  # postprocessor and metrics, as the token cache has them
  prompts: list[list[int]]
  data: str  # tells the examples apart from others under the same name
  candidates: list[list[str]] | None = None  # None: answers are written
  candidate_tokens: list[list[list[int]]] | None = None
  targets: list[list[int]] | None = None  # their tokens, where a metric takes how likely they are
  answers: str = "text"  # or "ids", which the task itself reads
  stop: str | None = None  # the text of a template before which an answer ends
  notes: tuple[str, ...] = ()  # what was cut or left out
  vocabulary: Vocabulary | None = None  # of the answers' text; None: the model's


def data_identity(cache: data.TokenCache, modules: Sequence[str]) -> str:
  """Tells the examples of a task, and how they are scored, apart from others under the same name."""
  described = json.dumps([cache.manifest["description"], cache.manifest["examples"]], sort_keys=True)
  return f"{zlib.crc32((described + scoring_identity(cache.scoring, modules)).encode()):08x}"


def check_answerable(task: str, cache: data.TokenCache) -> None:
  """Refuses a task that asks no questions."""
  if cache.is_corpus:
    raise UserError(f"task {task!r} is a corpus: it has no answers to score", try_=f"--loss --task={task}")
  if set(cache.features) != {"inputs", "targets"}:
    raise UserError(
      f"task {task!r} is made for encoders: its examples have {', '.join(cache.features)}, not inputs and targets",
      try_=f"--task={task.removesuffix('_classification')}",
    )


class PromptBuilder:
  """Builds evaluation sets of token caches."""

  def __init__(
    self, model: EvaluatedModel, settings: EvaluationSettings, max_length: int, open_task: OpenTask | None = None
  ):
    """`max_length` tokens are written for an answer; `open_task` opens the split that solved examples come from."""
    model.check_writes()
    self._model, self._settings, self._max_length, self._open_task = model, settings, max_length, open_task
    self.template = Template.read(settings.prompt) if settings.prompted else None
    if settings.infill and (model.layout != "encoder_decoder" or not model.special.sentinels):
      raise UserError(
        "--infill puts the answer in place of a sentinel",
        expected="an encoder-decoder whose vocabulary has sentinels, such as T5",
      )

  def __call__(self, task: str, cache: data.TokenCache) -> EvaluationSet:
    settings, vocabulary = self._settings, self._answer_vocabulary(task, cache)
    count = min(settings.examples or cache.examples, cache.examples)
    fields = list(itertools.islice(cache.fields(), count))
    if not fields:
      raise UserError(f"the split {settings.split!r} of task {task!r} has no examples")
    candidates = self._candidates(task, fields, cache.scoring)
    coded = None if candidates is None else self._coded(candidates)
    longest = self._max_length if coded is None else max(len(tokens) for row in coded for tokens in row)
    build = self._templated if settings.prompted else self._plain
    prompts, note = build(task, cache, fields, self._room(longest))
    return EvaluationSet(
      task,
      settings.split,
      fields,
      cache.scoring,
      prompts,
      data_identity(cache, settings.task_modules),
      candidates,
      coded,
      self._targets(cache, count) if takes_scores(cache.scoring) else None,
      cache.manifest.get("answers", "text"),
      self._stop(),
      (note,) if note else (),
      vocabulary,
    )

  def _answer_vocabulary(self, task: str, cache: data.TokenCache) -> Vocabulary | None:
    """Of the answers, where it is not the model's; candidates and prompts are texts of the model's."""
    own = answer_vocabulary(cache, self._model.vocabulary)
    if own is self._model.vocabulary:
      return None
    if self._settings.prompted or self._settings.rank:
      raise UserError(
        f"the answers of task {task!r} are written in a vocabulary of their own",
        expected="no --rank, --shots, --prompt and --infill: they take texts in the model's vocabulary",
      )
    return own

  def _stop(self) -> str | None:
    """The end of an answer in the template, where the vocabulary can write it."""
    if self.template is None:
      return None
    vocabulary = self._model.vocabulary
    newline_lost = "\n" not in vocabulary.decode(vocabulary.encode("a\nb"))
    return None if newline_lost and self.template.stop == "\n" else self.template.stop

  def _targets(self, cache: data.TokenCache, count: int) -> list[list[int]]:
    lengths = Lengths(0, 1, max(int(cache.lengths("targets").max(initial=0)) + 1, 1))
    texts = read_examples(cache, np.arange(count), lengths, self._model.special).targets
    return [row[:n].tolist() for row, n in zip(texts.tokens, texts.lengths, strict=True)]

  def _coded(self, candidates: Sequence[Sequence[str]]) -> list[list[list[int]]]:
    known: dict[str, list[int]] = {}
    for text in itertools.chain.from_iterable(candidates):
      if text not in known:
        known[text] = self._answer_tokens(text)
    return [[known[text] for text in row] for row in candidates]

  def _answer_tokens(self, text: str) -> list[int]:
    """A candidate as the model would write it, closed by end-of-sequence where its training closed answers."""
    lead = self.template.answer("") if self.template else ""
    tokens, special = self._model.vocabulary.encode(lead + text), self._model.special
    if self._settings.infill:
      return [special.sentinels[0], *tokens, special.sentinels[1]]
    closed = self._model.layout == "encoder_decoder" or not self._settings.prompted
    return [*tokens, special.eos] if closed else tokens or [special.eos]

  def _room(self, answer: int) -> int | None:
    """Tokens of a prompt, its start and end included, next to an answer of this length; None: no limit."""
    if self._model.layout == "encoder_decoder":
      return self._settings.inputs_length
    positions, room = self._model.positions, None
    if positions is not None:
      room = positions + 1 - answer  # the last token of an answer is not read
      if room < 1:
        raise UserError(
          f"answers of {answer} tokens leave no room for a question: the model has {positions} positions",
          try_=f"--max_length={max(positions // 4, 1)}",
        )
    return min(filter(None, (room, self._settings.inputs_length)), default=None)

  def _plain(
    self, task: str, cache: data.TokenCache, fields: Sequence[Fields], room: int | None
  ) -> tuple[list[list[int]], str]:
    """Inputs as in training: cut, and closed as the model and the task have it."""
    form, closing = self._model.form, cache.eos_placement("inputs")
    start = form.start is not None
    length = self._settings.inputs_length or self._model.inputs + start
    length = length if room is None else min(length, room)
    end = form.end if closing != "none" else None
    kept = max(length - start - (end is not None and closing != "before_trim"), 0)
    if "inputs" not in cache.features:  # a decoder writes targets alone, too
      return [form.tokens([])] * len(fields), ""
    texts, cut = cache.texts("inputs", np.arange(len(fields))), 0
    prompts = []
    for row, n in zip(texts.tokens, texts.lengths.tolist(), strict=True):
      tokens, cut = row[: min(n, kept)].tolist(), cut + (n + (end is not None) + start > length)
      whole = closing != "before_trim" or n < kept  # an end that is there before trimming is cut off with the rest
      prompts.append(dataclasses.replace(form, end=end if whole else None).tokens(tokens))
    note = f"{task}: {cut:,} of {len(fields):,} inputs are longer than {length} tokens and are cut (--inputs_length)"
    return prompts, note if cut and closing != "none" else ""

  def _templated(
    self, task: str, cache: data.TokenCache, fields: Sequence[Fields], room: int | None
  ) -> tuple[list[list[int]], str]:
    settings, model = self._settings, self._model
    shots = settings.shots or 0
    pool = list(self._open_task(task, settings.shots_split).fields()) if shots else []
    hole = [model.special.sentinels[0]] if settings.infill else []

    def encode(text: str) -> list[int]:
      return model.form.tokens([*model.vocabulary.encode(text), *hole])

    same = settings.split == settings.shots_split
    maker = PromptMaker(self.template, pool, shots, settings.seed, encode, room, same)
    self.template.check(fields[0], f"task {task!r}")
    prompts = maker.all(fields)
    story = shots_story(prompts, shots)
    return [prompt.tokens for prompt in prompts], f"{task}: {story}" if story else ""

  def _candidates(self, task: str, fields: Sequence[Fields], scoring: Mapping[str, Any]) -> list[list[str]] | None:
    if not self._settings.rank:
      return None
    given = self._settings.candidates
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

  def _labels(self, task: str, fields: Sequence[Fields], scoring: Mapping[str, Any]) -> list[str]:
    """The task's labels. Where answers are withheld all targets are the same: the training split then has them."""
    if len({example["targets_pretokenized"] for example in fields}) == 1 and len(fields) > 1:
      with contextlib.suppress(UserError):
        return label_set(scoring, fields, task)
      fields = list(self._open_task(task, self._settings.shots_split).fields())
    return label_set(scoring, fields, task)
