"""Evaluation sets: the examples of a task as prompts and candidates, with their scoring functions."""

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
from t5like.evaluation.few_shot import FewShotPromptBuilder, Template, describe_dropped_shots
from t5like.evaluation.scoring import scoring_identity, takes_scores, with_ids
from t5like.evaluation.settings import EvaluationSettings
from t5like.files import storage
from t5like.objectives import Lengths
from t5like.vocabularies import Vocabulary

OpenTask = Callable[[str, str], data.TokenCache]  # (task, split)
Fields = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
  """A task, ready to be evaluated."""

  task: str
  split: str
  fields: list[Fields]  # per example
  scoring: Mapping[str, Any]  # postprocessor and metrics, from the token cache
  prompts: list[list[int]]
  data: str  # identifies the examples and their scoring
  candidates: list[list[str]] | None = None  # None: answers are generated
  candidate_tokens: list[list[list[int]]] | None = None
  targets: list[list[int]] | None = None  # target tokens, if a metric needs their likelihood
  answers: str = "text"  # or "ids", decoded by the task
  stop: str | None = None  # text that ends an answer, from the template
  notes: tuple[str, ...] = ()  # about truncated inputs and dropped shots
  vocabulary: Vocabulary | None = None  # of the answers; None: the model's
  examples: list[Fields] | None = None  # what the postprocessor reads; None: `fields`
  source: data.LabeledRows | None = None  # rows for a head, which needs no prompts


def data_identity(cache: data.TokenCache, modules: Sequence[str]) -> str:
  """Returns an identity of a task's examples and scoring, as different data may share a task name."""
  described = json.dumps([cache.manifest["description"], cache.manifest["examples"]], sort_keys=True)
  return f"{zlib.crc32((described + scoring_identity(cache.scoring, modules)).encode()):08x}"


def check_answerable(task: str, cache: data.TokenCache) -> None:
  """Raises UserError for a corpus, or for a task with labels for a head, which this model does not have."""
  if cache.is_corpus:
    raise UserError(f"task {task!r} is a corpus without targets to score", try_=f"--loss --task={task}")
  if set(cache.features) != {"inputs", "targets"}:
    raise UserError(
      f"task {task!r} has labels for a head, which this model does not have",
      features=f"{', '.join(cache.features)}, not inputs and targets",
      try_=f"--task={task.removesuffix('_classification')} (text to text), or fine-tune it with a head: t5like train "
      f"--gin.TASK={task} --gin.INIT_FROM=MODEL",
    )


class PromptBuilder:
  """Builds evaluation sets from token caches."""

  def __init__(
    self, model: EvaluatedModel, settings: EvaluationSettings, max_length: int, open_task: OpenTask | None = None
  ):
    """Initializes the builder.

    Args:
      model: the model under evaluation.
      settings: how to evaluate.
      max_length: the maximum number of answer tokens.
      open_task: opens other splits of a task, for solved examples and labels.
    """
    model.check_has_decoder()
    self._model, self._settings, self._max_length, self._open_task = model, settings, max_length, open_task
    self.template = Template.read(settings.prompt) if settings.prompted else None
    if settings.infill and (model.layout != "encoder_decoder" or not model.special.sentinels):
      raise UserError(
        "--infill needs sentinels",
        expected="an encoder-decoder whose vocabulary has sentinels, such as T5",
      )

  def __call__(self, task: str, cache: data.TokenCache) -> EvaluationSet:
    settings, vocabulary = self._settings, self._answer_vocabulary(task, cache)
    count = min(settings.examples or cache.examples, cache.examples)
    fields = list(itertools.islice(cache.fields(), count))
    if not fields:
      raise UserError(f"the split {settings.split!r} of task {task!r} has no examples")
    candidates = self._candidates(task, fields, cache.scoring)
    encoded = None if candidates is None else self._encode_candidates(candidates)
    longest = self._max_length if encoded is None else max(len(tokens) for row in encoded for tokens in row)
    build = self._template_prompts if settings.prompted else self._training_prompts
    prompts, note = build(task, cache, fields, self._max_prompt_length(longest))
    return EvaluationSet(
      task,
      settings.split,
      fields,
      cache.scoring,
      prompts,
      data_identity(cache, settings.task_modules),
      candidates,
      encoded,
      self._targets(cache, count) if takes_scores(cache.scoring) else None,
      cache.manifest.get("answers", "text"),
      self._stop(),
      (note,) if note else (),
      vocabulary,
      with_ids(fields, cache, self._model.special.eos),
    )

  def _answer_vocabulary(self, task: str, cache: data.TokenCache) -> Vocabulary | None:
    """Returns the vocabulary of the answers; None: the model's. Candidates and prompts always use the model's."""
    own = answer_vocabulary(cache, self._model.vocabulary)
    if own is self._model.vocabulary:
      return None
    if self._settings.prompted or self._settings.rank:
      raise UserError(
        f"the targets of task {task!r} have their own vocabulary",
        expected="no --rank, --shots, --prompt or --infill, which use the model's vocabulary",
      )
    return own

  def _stop(self) -> str | None:
    """Returns the template's end of an answer, if the vocabulary can encode it."""
    if self.template is None:
      return None
    vocabulary = self._model.vocabulary
    newline_lost = "\n" not in vocabulary.decode(vocabulary.encode("a\nb"))
    return None if newline_lost and self.template.stop == "\n" else self.template.stop

  def _targets(self, cache: data.TokenCache, count: int) -> list[list[int]]:
    lengths = Lengths(0, 1, max(int(cache.lengths("targets").max(initial=0)) + 1, 1))
    texts = read_examples(cache, np.arange(count), lengths, self._model.special).targets
    return [row[:n].tolist() for row, n in zip(texts.tokens, texts.lengths, strict=True)]

  def _encode_candidates(self, candidates: Sequence[Sequence[str]]) -> list[list[list[int]]]:
    known: dict[str, list[int]] = {}
    for text in itertools.chain.from_iterable(candidates):
      if text not in known:
        known[text] = self._answer_tokens(text)
    return [[known[text] for text in row] for row in candidates]

  def _answer_tokens(self, text: str) -> list[int]:
    """Encodes a candidate as the model would generate it, with EOS if its training appended it."""
    lead = self.template.answer("") if self.template else ""
    tokens, special = self._model.vocabulary.encode(lead + text), self._model.special
    if self._settings.infill:
      return [special.sentinels[0], *tokens, special.sentinels[1]]
    closed = self._model.layout == "encoder_decoder" or not self._settings.prompted
    return [*special.before_targets, *tokens, special.eos] if closed else tokens or [special.eos]

  def _max_prompt_length(self, answer: int) -> int | None:
    """Returns the maximum prompt tokens, special tokens included, given the answer's length; None: no limit."""
    if self._model.layout == "encoder_decoder":
      return self._settings.inputs_length
    positions, max_prompt = self._model.positions, None
    if positions is not None:
      max_prompt = positions + 1 - answer  # the last token of an answer is not read
      if max_prompt < 1:
        raise UserError(
          f"answers of {answer} tokens leave no room for a prompt: the model has {positions} positions",
          try_=f"--max_length={max(positions // 4, 1)}",
        )
    return min(filter(None, (max_prompt, self._settings.inputs_length)), default=None)

  def _training_prompts(
    self, task: str, cache: data.TokenCache, fields: Sequence[Fields], max_prompt: int | None
  ) -> tuple[list[list[int]], str]:
    """Returns prompts as in training (truncated, with EOS as configured) and a note on truncation."""
    form, closing = self._model.form, cache.eos_placement("inputs")
    end = form.end if closing != "none" else None
    special = (form.start is not None) + (form.code is not None)  # EOS is counted separately
    # The rows of training include an encoder's first token, but not the start token of a decoder.
    has_start_token = form.start is not None and self._model.layout != "encoder_decoder"
    length = self._settings.inputs_length or self._model.inputs + has_start_token
    length = length if max_prompt is None else min(length, max_prompt)
    max_tokens = max(length - special - (end is not None and closing != "before_trim"), 0)
    if "inputs" not in cache.features:  # a decoder can generate targets without inputs
      return [form.tokens([])] * len(fields), ""
    texts, truncated = cache.texts("inputs", np.arange(len(fields))), 0
    prompts = []
    for row, n in zip(texts.tokens, texts.lengths.tolist(), strict=True):
      tokens = row[: min(n, max_tokens)].tolist()
      truncated += n + special + (end is not None) > length
      has_end = closing != "before_trim" or n < max_tokens  # EOS added before trimming is cut off as well
      prompts.append(dataclasses.replace(form, end=end if has_end else None).tokens(tokens))
    note = f"{task}: {truncated:,} of {len(fields):,} inputs exceed {length} tokens and are truncated (--inputs_length)"
    return prompts, note if truncated and closing != "none" else ""

  def _template_prompts(
    self, task: str, cache: data.TokenCache, fields: Sequence[Fields], max_prompt: int | None
  ) -> tuple[list[list[int]], str]:
    settings, model = self._settings, self._model
    shots = settings.shots or 0
    pool = list(self._open_task(task, settings.shots_split).fields()) if shots else []
    sentinel = [model.special.sentinels[0]] if settings.infill else []

    def encode(text: str) -> list[int]:
      return model.form.tokens([*model.vocabulary.encode(text), *sentinel])

    same = settings.split == settings.shots_split
    builder = FewShotPromptBuilder(self.template, pool, shots, settings.seed, encode, max_prompt, same)
    self.template.check(fields[0], f"task {task!r}")
    prompts = builder.all(fields)
    dropped = describe_dropped_shots(prompts, shots)
    return [prompt.tokens for prompt in prompts], f"{task}: {dropped}" if dropped else ""

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
          raise UserError(f"field {given!r} of example {number} is not a list of candidates", found=repr(row)[:100])
      return rows
    path = storage.as_path(given)
    if not path.is_file():
      raise UserError(
        f"--candidates={given} is neither a field of task {task!r} nor a file", fields=", ".join(fields[0])
      )
    lines = [line for line in storage.read_lines(path) if line.strip()]
    if len(lines) < 2:
      raise UserError(f"{path} has {len(lines)} candidates", expected="at least 2, one per line")
    return [lines] * len(fields)

  def _labels(self, task: str, fields: Sequence[Fields], scoring: Mapping[str, Any]) -> list[str]:
    """Returns the task's labels; from the training split if targets are withheld (all the same)."""
    if len({example["targets_pretokenized"] for example in fields}) == 1 and len(fields) > 1:
      with contextlib.suppress(UserError):
        return label_set(scoring, fields, task)
      fields = list(self._open_task(task, self._settings.shots_split).fields())
    return label_set(scoring, fields, task)
