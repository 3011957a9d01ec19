"""Scores parameters on the cached examples of a task, and shows the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax

from t5like import data, evaluation
from t5like.data.layouts import PROMPTS
from t5like.evaluation.comparison import is_right
from t5like.objectives import Lengths, SpecialTokens
from t5like.training.progress import ProgressLine
from t5like.vocabularies import Vocabulary


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

  def note(done: int) -> None:
    beat()
    progress.show(f"decoding {done:,}/{total:,}")

  def score(params: Any) -> evaluation.Evaluation:
    result = evaluation.evaluate(
      data.evaluation_batches(cache, lengths, special, batch_size, total),
      lambda inputs, lengths: predictor(params, prompts(inputs, lengths, special.start)),
      vocabulary.decode,
      fields,
      cache.scoring,
      note,
      modules,
    )
    progress.leave()
    return result

  return score


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
