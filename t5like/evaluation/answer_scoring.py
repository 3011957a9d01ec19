"""Scores parameters on the cached examples of a task, and shows the result."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from t5like import data, evaluation
from t5like.console import ProgressLine
from t5like.data.layouts import PROMPTS
from t5like.data.rows import read_examples
from t5like.errors import UserError
from t5like.evaluation.comparison import is_right
from t5like.evaluation.scoring import scoring_identity, takes_scores
from t5like.files import storage
from t5like.inference.ranking import CandidateScorer
from t5like.objectives import Lengths, SpecialTokens
from t5like.vocabularies import Vocabulary, load_vocabulary


def scorer(
  model: nn.Module,
  mesh: jax.sharding.Mesh,
  vocabulary: Vocabulary,
  cache: data.TokenCache,
  lengths: Lengths,
  batch_size: int,
  examples: int,
  beat: Callable[[], None] = lambda: None,
  modules: Sequence[str] = (),
) -> Callable[[Any], evaluation.Evaluation]:
  """A function from parameters to an evaluation; decoding is compiled once.

  `examples` 0 means all; `beat` is called after every batch, as a sign of life; `modules` are the user's own, in
  which scoring functions may be found.
  """
  predictor = evaluation.Predictor(model, mesh, lengths.targets, vocabulary.eos_id)
  prompts = PROMPTS[model.batch_layout]
  special = SpecialTokens.of(vocabulary)
  fields = list(cache.fields())
  total = min(examples or cache.examples, cache.examples)
  progress = ProgressLine()
  decode = answer_decoder(cache, vocabulary)
  scores_of_targets = (
    TargetScorer(model, mesh, cache, lengths, special, batch_size) if takes_scores(cache.scoring) else None
  )

  def note(done: int) -> None:
    beat()
    progress.show(f"decoding {done:,}/{total:,}")

  def score(params: Any) -> evaluation.Evaluation:
    result = evaluation.evaluate(
      data.evaluation_batches(cache, lengths, special, batch_size, total),
      lambda inputs, lengths: predictor.scored(params, prompts(inputs, lengths, special.start)),
      decode,
      fields,
      cache.scoring,
      note,
      modules,
      scores_of_targets(params, total) if scores_of_targets else None,
    )
    progress.leave()
    return result

  return score


def answer_decoder(cache: data.TokenCache, vocabulary: Vocabulary) -> Callable[[Sequence[int]], Any]:
  """From the ids of an answer to its text, or to the ids themselves where those are what the task means."""
  if cache.manifest.get("answers") != "ids":
    return answer_vocabulary(cache, vocabulary).decode
  end = vocabulary.eos_id

  def ids(answer: Sequence[int]) -> list[int]:
    answer = [int(token) for token in answer]
    return answer[: answer.index(end)] if end in answer else answer

  return ids


def answer_vocabulary(cache: data.TokenCache, vocabulary: Vocabulary) -> Vocabulary:
  """That of the task's targets, as seqio decodes with it; `vocabulary`, the model's, where they share it.

  Raises UserError where it cannot be loaded, or ends answers with another id than the model does.
  """
  kept = cache.manifest.get("targets_vocabulary")
  if not kept:
    return vocabulary
  what = f"the answers of task {cache.manifest['description']['task']!r} are written in a vocabulary of their own"
  name = str(kept.get("name", "")) if isinstance(kept, Mapping) else ""
  if not name or storage.is_remote(name):  # a token cache is data: no address in it is followed
    why = kept.get("why", name) if isinstance(kept, Mapping) else kept
    raise UserError(f"{what}, which cannot be loaded: {why}", expected="a SentencePiece model on disk, or bytes")
  try:
    own = load_vocabulary(name)
  except UserError as error:
    raise UserError(f"{what}, which cannot be loaded: {error.what}", vocabulary=name) from None
  if own.fingerprint != kept.get("fingerprint"):
    raise UserError(f"{what}, which has changed since its token cache was written", vocabulary=name)
  if own.eos_id != vocabulary.eos_id:
    raise UserError(
      f"{what}, which ends a text with the id {own.eos_id}, and the model's with {vocabulary.eos_id}",
      vocabulary=name,
      expected="the same id of end-of-sequence in both",
    )
  return own


class TargetScorer:
  """The log-likelihood of every true answer, as seqio's metrics of `(targets, scores)` take it."""

  def __init__(
    self,
    model: nn.Module,
    mesh: jax.sharding.Mesh,
    cache: data.TokenCache,
    lengths: Lengths,
    special: SpecialTokens,
    batch_size: int,
  ):
    self._scorer = CandidateScorer(model, mesh, special.start, batch_size)
    self._cache, self._lengths, self._special = cache, lengths, special

  def __call__(self, params: Any, count: int) -> list[float]:
    """For the first `count` examples."""
    examples = read_examples(self._cache, np.arange(count), self._lengths, self._special)
    sides = [
      [row[:n].tolist() for row, n in zip(texts.tokens, texts.lengths, strict=True)]
      for texts in (examples.inputs, examples.targets)
    ]
    found = self._scorer(params, sides[0], [[target] for target in sides[1]])
    return [likelihood.log_likelihood for (likelihood,) in found]


def data_identity(cache: data.TokenCache, modules: Sequence[str]) -> str:
  """Tells the examples of a task, and how they are scored, apart from others under the same name."""
  described = json.dumps([cache.manifest["description"], cache.manifest["examples"]], sort_keys=True)
  return f"{zlib.crc32((described + scoring_identity(cache.scoring, modules)).encode()):08x}"


def predictions_path(model_dir: Path, task: str, split: str, step: int, examples: int) -> Path:
  """Where answers are kept; those of a part of a split do not take the place of the whole's."""
  part = f"-first{examples}" if examples else ""
  return model_dir / "predictions" / f"{task}-{split}-{step}{part}.jsonl"


def show(result: evaluation.Evaluation, task: str, split: str, step: int, rows: int) -> None:
  """A handful of answers, and scores with their baseline."""
  for row in result.rows[:rows]:
    mark = "right" if is_right(row["prediction"], row["target"]) else "wrong"
    print(f"  {row['inputs']}\n    {mark}: {row['prediction']!r}, target {row['target']!r}")
  print(f"{task} ({split}, {len(result.rows):,} examples) at step {step:,}: {result.summary()}", flush=True)
