"""The evaluator used by training, `t5like eval` and `t5like.evaluate`."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from t5like import data
from t5like.decoding import DecodeSettings
from t5like.decoding.options import decode_settings, with_defaults
from t5like.evaluation.answering import GeneratedAnswer, generate_answers, rank_answers
from t5like.evaluation.evaluated_model import EvaluatedModel
from t5like.evaluation.evaluation_set import EvaluationSet, OpenTask, PromptBuilder
from t5like.evaluation.heads.evaluator import HeadEvaluator
from t5like.evaluation.scoring import Evaluation, score_answers, takes_predictions
from t5like.evaluation.settings import EvaluationSettings
from t5like.inference.generation import Generator
from t5like.inference.ranking import CandidateScorer
from t5like.models.heads import WithHead

Progress = Callable[[int], None]  # receives the number of examples done


@dataclasses.dataclass(frozen=True)
class _Answers:
  """The answers to all examples of a set, by example number."""

  texts: dict[int, Any]
  out_of_memory: list[int]  # examples that did not fit into device memory
  more: dict[int, dict[str, Any]] | None = None  # extra fields of the prediction rows
  log_likelihoods: dict[int, float] | None = None


def make_evaluator(
  model: EvaluatedModel, settings: EvaluationSettings, open_task: OpenTask | None = None
) -> Evaluator | HeadEvaluator:
  """Returns the evaluator of a model: of its head if it has one, else of the text that it generates."""
  if isinstance(model.module, WithHead):
    return HeadEvaluator(model, settings)
  return Evaluator(model, settings, open_task)


class Evaluator:
  """Answers and scores the examples of tasks; decoding is compiled once per batch shape.

  All hosts must call it with the same arguments; all get all answers.
  """

  def __init__(self, model: EvaluatedModel, settings: EvaluationSettings, open_task: OpenTask | None = None):
    """`open_task` opens other splits of a task, for solved examples and labels."""
    given = with_defaults(settings.decoding, {"max_length": model.targets} | dict(model.decoding))
    self._decode, self._stops = decode_settings(given, model.vocabulary)
    self._model, self._settings = model, settings
    self._builder = PromptBuilder(model, settings, self._decode.max_length, open_task)
    self._batch_size = settings.batch_size or model.batch_size
    self._generator = Generator(model.module, model.mesh, model.special.eos, start_id=model.special.start)
    self._scorer = CandidateScorer(model.module, model.mesh, model.special.start, self._batch_size)
    self.identity = settings.identity(self._builder.template)

  def read(self, task: str, cache: data.TokenCache) -> EvaluationSet:
    """Builds the evaluation set of a token cache."""
    return self._builder(task, cache)

  def __call__(self, params: Any, evaluation_set: EvaluationSet, progress: Progress = lambda done: None) -> Evaluation:
    """Answers every example and scores the answers."""
    if evaluation_set.candidates is not None:
      answers = self._rank(params, evaluation_set, progress)
    elif evaluation_set.targets is None or takes_predictions(evaluation_set.scoring):
      answers = self._generate(params, evaluation_set, progress)
    else:
      answers = _Answers(dict.fromkeys(range(len(evaluation_set.prompts))), [])
    target_scores = None if evaluation_set.targets is None else self._likelihoods(params, evaluation_set, progress)
    result = score_answers(
      answers.texts,
      evaluation_set.examples or evaluation_set.fields,
      evaluation_set.scoring,
      answers.more,
      self._settings.task_modules,
      answers.log_likelihoods,
      target_scores,
    )
    notes = tuple(
      f"{evaluation_set.task}: example {n} ({len(evaluation_set.prompts[n]):,} tokens) does not fit into device memory "
      "and is scored as an empty answer (--inputs_length=N truncates it)"
      for n in answers.out_of_memory
    )
    return dataclasses.replace(result, notes=notes)

  def _rank(self, params: Any, evaluation_set: EvaluationSet, progress: Progress) -> _Answers:
    best, scores = rank_answers(
      self._scorer, params, evaluation_set.prompts, evaluation_set.candidate_tokens, self._settings.rank, progress
    )
    return _Answers(
      {n: row[c] if c >= 0 else "" for n, (row, c) in enumerate(zip(evaluation_set.candidates, best, strict=True))},
      [n for n, chosen in enumerate(best) if chosen < 0],
      {
        n: {"log_likelihoods": dict(zip(row, values, strict=False))}
        for n, (row, values) in enumerate(zip(evaluation_set.candidates, scores, strict=True))
      },
    )

  def _generate(self, params: Any, evaluation_set: EvaluationSet, progress: Progress) -> _Answers:
    settings = self._settings_for(evaluation_set)
    written = generate_answers(self._generator, params, evaluation_set.prompts, settings, self._batch_size, progress)
    found = {n: answer for n, answer in enumerate(written) if isinstance(answer, GeneratedAnswer)}
    return _Answers(
      {n: self._text(found[n].tokens, evaluation_set) if n in found else "" for n in range(len(written))},
      [n for n in range(len(written)) if n not in found],
      log_likelihoods={n: answer.log_likelihood for n, answer in found.items()},
    )

  def _likelihoods(self, params: Any, evaluation_set: EvaluationSet, progress: Progress) -> list[float]:
    """Returns the log-likelihood of every target; NaN if it does not fit into memory."""
    targets = [[tokens] for tokens in evaluation_set.targets]
    _, scores = rank_answers(self._scorer, params, evaluation_set.prompts, targets, progress=progress)
    return [row[0] if row else math.nan for row in scores]

  def _settings_for(self, evaluation_set: EvaluationSet) -> DecodeSettings:
    """Adds the template's stop text to the stop sequences, if the vocabulary can encode it."""
    if evaluation_set.stop is None:
      return self._decode
    vocabulary = self._model.vocabulary
    tokens = tuple(vocabulary.encode(evaluation_set.stop))
    known = tokens and vocabulary.unk_id not in tokens
    more = (*self._decode.stop_sequences, tokens) if known else self._decode.stop_sequences
    return dataclasses.replace(self._decode, stop_sequences=tuple(dict.fromkeys(more)))

  def _text(self, tokens: list[int], evaluation_set: EvaluationSet) -> str | list[int]:
    if evaluation_set.answers == "ids":
      target, eos = evaluation_set.fields[0]["targets_pretokenized"], self._model.special.eos
      return like_targets(tokens, target, eos, self._decode.max_length)
    if self._settings.infill:
      tokens = first_span(tokens, self._model.special.sentinels)
    text = (evaluation_set.vocabulary or self._model.vocabulary).decode(tokens)
    for stop in (*self._stops, *([] if evaluation_set.stop is None else [evaluation_set.stop])):
      text = text.partition(stop)[0]
    return text.strip() if self._settings.prompted else text


def first_span(tokens: list[int], sentinels: Sequence[int]) -> list[int]:
  """Returns the tokens up to the next sentinel; the first sentinel before them, which may be missing, is left out."""
  span = tokens[1:] if tokens[:1] == [sentinels[0]] else tokens
  return list(itertools.takewhile(lambda token: token not in sentinels, span))


def like_targets(tokens: list[int], target: Sequence[int], eos: int, max_length: int) -> list[int]:
  """Returns the ids of an answer, with the end of sequence, which decoding leaves out, if targets have it."""
  ended = len(tokens) < max_length
  return [*tokens, eos] if ended and list(target[-1:]) == [eos] else tokens
