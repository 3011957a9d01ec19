"""What `t5like infer` does with rows and an encoder: fill in masks, embed, find the nearest sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from t5like.errors import UserError
from t5like.inference.batching import BatchPlanner, Shape
from t5like.inference.encodings import Embedder, MaskFiller, nearest_rows, planner
from t5like.inference.jobs import Answer, Limits, Prepared
from t5like.inference.model import LoadedModel
from t5like.inference.rows import Refused, Row, refuse


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

  def planner(self, batch_size: int) -> BatchPlanner:
    return planner(self._loaded.model, self._loaded.mesh, batch_size)

  def answer(self, batch: Sequence[Prepared], shape: Shape | None = None) -> list[tuple[Answer, int]]:
    with self._loaded.sharding():
      found = self._filler(self._params, [p.tokens for p in batch], shape)
    return [(self._fill(p, *f), len(p.tokens)) for p, f in zip(batch, found, strict=True)]

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

  def planner(self, batch_size: int) -> BatchPlanner:
    return planner(self._loaded.model, self._loaded.mesh, batch_size)

  def vectors(self, batch: Sequence[Prepared], shape: Shape | None = None) -> np.ndarray:
    with self._loaded.sharding():
      return self._embedder(self._params, [p.tokens for p in batch], shape)

  def answer(self, batch: Sequence[Prepared], shape: Shape | None = None) -> list[tuple[Answer, int]]:
    vectors = self.vectors(batch, shape)
    return [({"embedding": vector.tolist()}, len(p.tokens)) for p, vector in zip(batch, vectors, strict=True)]


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

  def planner(self, batch_size: int) -> BatchPlanner:
    return self._embedding.planner(batch_size)

  def answer(self, batch: Sequence[Prepared], shape: Shape | None = None) -> list[tuple[Answer, int]]:
    similarities, numbers = nearest_rows(self._embedding.vectors(batch, shape), self._vectors, self._top)
    answers = []
    for prepared, *near in zip(batch, similarities, numbers, strict=True):
      found = [(float(similarity), self._sentences[n]) for similarity, n in zip(*near, strict=True)]
      nearest = [{"text": s.text, "similarity": similarity, "line": s.number + 1} for similarity, s in found]
      answers.append(({"neighbours": nearest}, len(prepared.tokens)))
    return answers
