"""Inference jobs that fill masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from t5like.errors import UserError
from t5like.inference.batching import BatchShape
from t5like.inference.encodings import MaskFiller, OnePassJob
from t5like.inference.jobs import Answer, Generation, Limits, Prepared
from t5like.inference.rows import RejectedRow, Row, reject
from t5like.vocabularies.sentencepiece import WORD_MARK

if TYPE_CHECKING:  # a model's methods run these jobs
  from t5like.inference.model import Model


class FillMask(OnePassJob):
  """Predicts the most likely tokens for each mask of a row."""

  def __init__(self, model: Model, limits: Limits, top: int):
    vocabulary = model.vocabulary
    if vocabulary.mask_id is None:
      remedy = "another vocabulary" if model.module.batch_layout == "encoder" else "a model like BERT"
      raise UserError(f"the vocabulary {model.vocabulary_name!r} has no mask token", try_=remedy)
    self._model, self.limits = model, limits
    self._filler = model.runner(MaskFiller, vocabulary.mask_id, top)

  def prepare(self, rows: Sequence[Row]) -> list[Prepared | RejectedRow]:
    vocabulary = self._model.vocabulary
    prepared: list[Prepared | RejectedRow] = []
    for read in self.limits.tokenize(self._model, rows):
      if isinstance(read, RejectedRow):
        prepared.append(read)
      elif vocabulary.mask_id not in read[1]:
        prepared.append(reject(read[0], f"no {vocabulary.piece(vocabulary.mask_id)} in the text", self.limits.field))
      else:
        prepared.append(Prepared(*read))
    return prepared

  def answer(self, batch: Sequence[Prepared], shape: BatchShape | None = None) -> list[tuple[Answer, int]]:
    found = self._filler(self._model.params, [p.tokens for p in batch], shape)
    return [(self._fill(p, *f), len(p.tokens)) for p, f in zip(batch, found, strict=True)]

  def _fill(self, prepared: Prepared, probabilities: np.ndarray, ids: np.ndarray) -> Answer:
    vocabulary = self._model.vocabulary
    masks = [
      [{"token": vocabulary.piece(i), "probability": float(p)} for p, i in zip(*mask, strict=True)]
      for mask in zip(probabilities, ids, strict=True)
    ]
    best = iter(ids[:, 0].tolist())
    filled = [next(best) if token == vocabulary.mask_id else token for token in prepared.tokens]
    form = self._model.prompt_form
    inside = filled[form.start is not None : len(filled) - (form.end is not None)]
    return {"masks": masks, "filled": vocabulary.decode(inside)}


class FillSpans(Generation):
  """Predicts spans for the sentinels of a row, as T5 generates them: <extra_id_0> span <extra_id_1> span ...

  Each beam search output holds a span for every sentinel, so a probability is that of the complete output.
  """

  def prepare(self, rows: Sequence[Row]) -> list[Prepared | RejectedRow]:
    sentinels = self._model.vocabulary.sentinel_ids
    first = self._model.vocabulary.piece(sentinels[0]).removeprefix(WORD_MARK)
    return [
      reject(p.row, f"no {first} in the text", self.limits.field)
      if isinstance(p, Prepared) and not set(sentinels) & set(p.tokens)
      else p
      for p in super().prepare(rows)
    ]

  def answer(self, batch: Sequence[Prepared], shape: BatchShape | None = None) -> list[tuple[Answer, int]]:
    decoded = self._decode(batch, shape)
    answers = []
    for prepared, tokens, lengths, scores in zip(
      batch, decoded.tokens, decoded.lengths, np.exp(decoded.scores), strict=True
    ):
      spans = [self._spans(output[:length].tolist()) for output, length in zip(tokens, lengths, strict=True)]
      answers.append((self._fill(prepared, spans, scores.tolist()), int(lengths.sum())))
    return answers

  def _spans(self, output: Sequence[int]) -> dict[int, list[int]]:
    """Returns the tokens that follow each sentinel."""
    spans: dict[int, list[int]] = {}
    current: list[int] = []
    for token in output:
      if token in self._model.vocabulary.sentinel_ids:
        current = spans.setdefault(token, [])
      else:
        current.append(token)
    return spans

  def _fill(self, prepared: Prepared, spans: Sequence[dict[int, list[int]]], probabilities: Sequence[float]) -> Answer:
    vocabulary = self._model.vocabulary
    sentinels = [token for token in prepared.tokens if token in vocabulary.sentinel_ids]
    masks = [
      [
        {"token": vocabulary.decode(own.get(sentinel, [])), "probability": p}
        for own, p in zip(spans, probabilities, strict=True)
      ]
      for sentinel in sentinels
    ]
    form = self._model.prompt_form
    inside = prepared.tokens[form.start is not None : len(prepared.tokens) - (form.end is not None)]
    filled = [token for t in inside for token in (spans[0].get(t, []) if t in sentinels else [t])]
    return {"masks": masks, "filled": vocabulary.decode(filled)}
