"""What `t5like infer` does with rows and an encoder: fill in masks, embed, find the nearest sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from t5like.cli.infer_jobs import Answer, Limits, Prepared
from t5like.cli.infer_rows import Refused, Row, refuse
from t5like.cli.loaded_model import LoadedModel
from t5like.errors import UserError
from t5like.evaluation.encodings import Embedder, MaskFiller, nearest_rows


class FillMask:
  """The likeliest tokens under each mask of a row."""

  counts = "tokens read"

  def __init__(self, loaded: LoadedModel, params: Any, limits: Limits, top: int):
    vocabulary = loaded.vocabulary
    if vocabulary.mask_id is None:
      raise UserError(f"the vocabulary {loaded.vocabulary_name!r} has no mask to fill in", try_="--vocabulary=...")
    self._loaded, self._params, self.limits = loaded, params, limits
    self._filler = MaskFiller(loaded.model, loaded.mesh, vocabulary.mask_id, top)

  def prepare(self, rows: Sequence[Row]) -> list[Prepared | Refused]:
    vocabulary = self._loaded.vocabulary
    prepared: list[Prepared | Refused] = []
    for read in self.limits.read(self._loaded, rows):
      if isinstance(read, Refused):
        prepared.append(read)
      elif vocabulary.mask_id not in read[1]:
        prepared.append(refuse(read[0], f"no {vocabulary.piece(vocabulary.mask_id)} in the text", self.limits.field))
      else:
        prepared.append(Prepared(*read))
    return prepared

  def answer(self, batch: Sequence[Prepared]) -> tuple[list[Answer], int]:
    with self._loaded.sharding():
      found = self._filler(self._params, [p.tokens for p in batch])
    return [self._fill(p, *f) for p, f in zip(batch, found, strict=True)], sum(len(p.tokens) for p in batch)

  def _fill(self, prepared: Prepared, probabilities: np.ndarray, ids: np.ndarray) -> Answer:
    vocabulary = self._loaded.vocabulary
    masks = [
      [{"token": vocabulary.piece(i), "probability": float(p)} for p, i in zip(*mask, strict=True)]
      for mask in zip(probabilities, ids, strict=True)
    ]
    best = iter(ids[:, 0].tolist())
    filled = [next(best) if token == vocabulary.mask_id else token for token in prepared.tokens]
    form = self._loaded.prompt_form
    inside = filled[form.start is not None : len(filled) - (form.end is not None)]
    return {"masks": masks, "filled": vocabulary.decode(inside)}


class Embedding:
  """A vector for each row."""

  counts = "tokens read"

  def __init__(self, loaded: LoadedModel, params: Any, limits: Limits, pooling: str):
    self._loaded, self._params, self.limits = loaded, params, limits
    self._embedder = Embedder(loaded.model, loaded.mesh, pooling)
    self.width = loaded.model.config.embed_dim

  def prepare(self, rows: Sequence[Row]) -> list[Prepared | Refused]:
    read = self.limits.read(self._loaded, rows)
    return [r if isinstance(r, Refused) else Prepared(*r) for r in read]

  def vectors(self, batch: Sequence[Prepared]) -> np.ndarray:
    with self._loaded.sharding():
      return self._embedder(self._params, [p.tokens for p in batch])

  def answer(self, batch: Sequence[Prepared]) -> tuple[list[Answer], int]:
    vectors = self.vectors(batch)
    return [{"embedding": vector.tolist()} for vector in vectors], sum(len(p.tokens) for p in batch)


class Neighbours:
  """The sentences of a file that are nearest to each row, by the cosine of their embeddings."""

  counts = "tokens read"

  def __init__(self, embedding: Embedding, sentences: Sequence[Row], vectors: np.ndarray, top: int):
    if top < 1:
      raise UserError(f"--top={top} cannot work", expected="1 or more")
    self._embedding, self._sentences, self._vectors, self._top = embedding, sentences, vectors, top
    self.limits = embedding.limits

  def prepare(self, rows: Sequence[Row]) -> list[Prepared | Refused]:
    return self._embedding.prepare(rows)

  def answer(self, batch: Sequence[Prepared]) -> tuple[list[Answer], int]:
    similarities, numbers = nearest_rows(self._embedding.vectors(batch), self._vectors, self._top)
    answers = []
    for near in zip(similarities, numbers, strict=True):
      found = [(float(similarity), self._sentences[n]) for similarity, n in zip(*near, strict=True)]
      answers.append({
        "neighbours": [{"text": s.text, "similarity": similarity, "line": s.number + 1} for similarity, s in found]
      })  # fmt: skip
    return answers, sum(len(p.tokens) for p in batch)
