"""The evaluator of the training loop, of `t5like eval` and of `t5like.evaluate`: from parameters to scores."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from t5like import data
from t5like.decoding import DecodeSettings
from t5like.decoding.options import decode_settings
from t5like.evaluation.answering import WrittenAnswer, rank_answers, write_answers
from t5like.evaluation.evaluated_model import EvaluatedModel
from t5like.evaluation.evaluation_set import EvaluationSet, OpenTask, PromptBuilder
from t5like.evaluation.scoring import Evaluation, score_answers
from t5like.evaluation.settings import EvaluationSettings
from t5like.inference.generation import Generator
from t5like.inference.ranking import CandidateScorer

Progress = Callable[[int], None]  # receives the number of examples done


@dataclasses.dataclass(frozen=True)
class _Answered:
  """The answers to all examples of a set, by number."""

  texts: dict[int, Any]
  without_room: list[int]  # examples that the devices had no memory for
  more: dict[int, dict[str, Any]] | None = None  # for the rows of predictions
  log_likelihoods: dict[int, float] | None = None


class Evaluator:
  """Answers and scores the examples of tasks; decoding is compiled once for every shape of a batch.

  On several hosts all call it alike, and all have all answers.
  """

  def __init__(self, model: EvaluatedModel, settings: EvaluationSettings, open_task: OpenTask | None = None):
    """`open_task` opens other splits of a task, for solved examples and labels."""
    given = {"max_length": model.targets} | dict(settings.decoding)
    self._decode, self._stops = decode_settings(given, model.vocabulary)
    self._model, self._settings = model, settings
    self._builder = PromptBuilder(model, settings, self._decode.max_length, open_task)
    self._batch_size = settings.batch_size or model.batch_size
    self._generator = Generator(model.module, model.mesh, model.special.eos)
    self._scorer = CandidateScorer(model.module, model.mesh, model.special.start, self._batch_size)
    self.identity = settings.identity(self._builder.template)

  def read(self, task: str, cache: data.TokenCache) -> EvaluationSet:
    """The examples of a token cache as the model is asked them."""
    return self._builder(task, cache)

  def __call__(self, params: Any, evaluation_set: EvaluationSet, progress: Progress = lambda done: None) -> Evaluation:
    """Answers every example once, and scores all answers."""
    asked = evaluation_set
    answered = (self._write if asked.candidates is None else self._rank)(params, asked, progress)
    target_scores = None if asked.targets is None else self._likelihoods(params, asked.prompts, asked.targets)
    result = score_answers(
      answered.texts,
      asked.fields,
      asked.scoring,
      answered.more,
      self._settings.task_modules,
      answered.log_likelihoods,
      target_scores,
    )
    notes = tuple(
      f"{asked.task}: the devices have no room for example {n} of {len(asked.prompts[n]):,} tokens, "
      "which counts as answered with nothing (--inputs_length=N cuts it)"
      for n in answered.without_room
    )
    return dataclasses.replace(result, notes=notes)

  def _rank(self, params: Any, asked: EvaluationSet, progress: Progress) -> _Answered:
    best, scores = rank_answers(
      self._scorer, params, asked.prompts, asked.candidate_tokens, self._settings.rank, progress
    )
    return _Answered(
      {n: row[c] if c >= 0 else "" for n, (row, c) in enumerate(zip(asked.candidates, best, strict=True))},
      [n for n, chosen in enumerate(best) if chosen < 0],
      {
        n: {"log_likelihoods": dict(zip(row, values, strict=False))}
        for n, (row, values) in enumerate(zip(asked.candidates, scores, strict=True))
      },
    )

  def _write(self, params: Any, asked: EvaluationSet, progress: Progress) -> _Answered:
    settings = self._settings_for(asked)
    written = write_answers(self._generator, params, asked.prompts, settings, self._batch_size, progress)
    found = {n: answer for n, answer in enumerate(written) if isinstance(answer, WrittenAnswer)}
    return _Answered(
      {n: self._text(found[n].tokens, asked) if n in found else "" for n in range(len(written))},
      [n for n in range(len(written)) if n not in found],
      log_likelihoods={n: answer.log_likelihood for n, answer in found.items()},
    )

  def _likelihoods(
    self, params: Any, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
  ) -> list[float]:
    """Of one answer to each prompt; NaN where the devices had no room for it."""
    _, scores = rank_answers(self._scorer, params, prompts, [[tokens] for tokens in answers])
    return [row[0] if row else math.nan for row in scores]

  def _settings_for(self, asked: EvaluationSet) -> DecodeSettings:
    """With the template's own end of an answer among the stop sequences, where the vocabulary can write it."""
    if asked.stop is None:
      return self._decode
    vocabulary = self._model.vocabulary
    tokens = tuple(vocabulary.encode(asked.stop))
    known = tokens and vocabulary.unk_id not in tokens
    more = (*self._decode.stop_sequences, tokens) if known else self._decode.stop_sequences
    return dataclasses.replace(self._decode, stop_sequences=tuple(dict.fromkeys(more)))

  def _text(self, tokens: list[int], asked: EvaluationSet) -> str | list[int]:
    if asked.answers == "ids":
      return tokens
    if self._settings.infill:
      sentinels = self._model.special.sentinels
      tokens = tokens[1:] if tokens and tokens[0] == sentinels[0] else tokens
      tokens = tokens[: next((i for i, token in enumerate(tokens) if token in set(sentinels)), len(tokens))]
    text = (asked.vocabulary or self._model.vocabulary).decode(tokens)
    for stop in (*self._stops, *([] if asked.stop is None else [asked.stop])):
      text = text.partition(stop)[0]
    return text.strip() if self._settings.prompted else text
