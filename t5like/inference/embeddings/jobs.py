"""Inference jobs that embed texts: vectors, and nearest sentences."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from t5like.errors import InvalidSetting, UserError, nearest
from t5like.inference.batching import BatchPlanner, BatchShape
from t5like.inference.embeddings.sentences import Sentences
from t5like.inference.encodings import OnePassJob, TextEmbedder, nearest_rows
from t5like.inference.jobs import Answer, Limits, Prepared
from t5like.inference.memory import NotEnoughMemory, answer_in_parts
from t5like.inference.rows import RejectedRow, Row
from t5like.models.heads import EmbeddingHead

if TYPE_CHECKING:  # a model's methods run these jobs
  from t5like.inference.model import Model

_AHEAD = 4  # batches that the devices compute while the host prepares the next
DEFAULT_POOLING = "mean"


def own_head(model: Model) -> EmbeddingHead | None:
  """Returns the head of a model that was trained for embeddings."""
  head = getattr(model.module, "head", None)
  return head if isinstance(head, EmbeddingHead) else None


class Embedding(OnePassJob):
  """Computes an embedding for each row.

  pooling  one of SENTENCE_POOLINGS; None: the model's own EmbeddingHead, else mean. With its own head, texts are cut to
           the length that it was trained for, as sentence-transformers does.
  prompt   the name of one of the model's prompts; None: its default
  """

  def __init__(self, model: Model, limits: Limits, pooling: str | None = None, prompt: str | None = None):
    head = own_head(model)
    self._model, self._head = model, head if pooling is None else None
    known = dict(self._head.prompts) if self._head else {}
    if prompt is not None and prompt not in known:
      raise UserError(
        f"unknown prompt {prompt!r}", known=", ".join(known) or "none", nearest=nearest(prompt, list(known))
      )
    self._prompt = known[prompt] if prompt is not None else self._head.prompt if self._head else ""
    self.pooling = None if self._head else pooling or DEFAULT_POOLING
    self.limits = limits if self._head is None else _own_limits(model, self._head, limits)
    self._embedder = model.runner(TextEmbedder, self.pooling, model.vocabulary)
    states = getattr(getattr(model.module, "backbone", model.module), "state_width", model.config.embed_dim)
    self.width = states if self._head is None else head.width(states)

  def prepare(self, rows: Sequence[Row]) -> list[Prepared | RejectedRow]:
    read = self.limits.tokenize(self._model, [self._written(row) for row in rows])
    return [
      r if isinstance(r, RejectedRow) else Prepared(row, r[1]) for row, r in zip(rows, read, strict=True)
    ]  # fmt: skip

  def _written(self, row: Row) -> Row:
    """Returns the row with the text that the head expects."""
    lowers = self._head is not None and self._head.lower_case
    if not (self._prompt or lowers):
      return row
    text = self._prompt + row.text
    return dataclasses.replace(row, text=text.lower() if lowers else text)

  def vectors(self, batch: Sequence[Prepared], shape: BatchShape | None = None) -> np.ndarray:
    return self._embedder(self._model.params, [p.tokens for p in batch], shape)

  def answer(self, batch: Sequence[Prepared], shape: BatchShape | None = None) -> list[tuple[Answer, int]]:
    vectors = self.vectors(batch, shape)
    return [({"embedding": vector}, len(p.tokens)) for p, vector in zip(batch, vectors, strict=True)]

  def all_vectors(self, rows: Sequence[Row], batch_size: int) -> np.ndarray:
    """Returns the embeddings of all rows, [rows, width]; raises UserError if one is too long."""
    prepared, found = self.prepare(rows), np.zeros((len(rows), self.width), np.float32)
    for entry in prepared:
      if isinstance(entry, RejectedRow):
        raise UserError(f"{entry.location}: {entry.why}", try_="truncate=True" if entry.remedy else "")
    if not prepared:
      return found
    batches, pending = self.planner(batch_size), collections.deque()

    def store(numbers: np.ndarray, vectors: jax.Array) -> None:
      found[numbers] = jax.device_get(vectors)[: len(numbers)]

    for batch in batches.plan([p.length for p in prepared]):
      tokens = [prepared[i].tokens for i in batch.rows]
      try:
        pending.append((batch.rows, self._embedder.start(self._model.params, tokens, batch.shape)))
      except NotEnoughMemory:
        found[batch.rows] = self._in_parts([prepared[i] for i in batch.rows])
      if len(pending) > _AHEAD:
        store(*pending.popleft())
    for numbers, vectors in pending:
      store(numbers, vectors)
    return found

  def _in_parts(self, batch: Sequence[Prepared]) -> np.ndarray:
    answers = answer_in_parts(batch, lambda part: list(self.vectors(part)))
    if problem := next((answer for answer in answers if isinstance(answer, NotEnoughMemory)), None):
      raise UserError(f"a text does not fit into device memory ({problem})", try_="a shorter text, or truncate=True")
    return np.stack(answers)


def _own_limits(model: Model, head: EmbeddingHead, given: Limits) -> Limits:
  trained = model.experiment.lengths["inputs"] if model.has_training_config else None
  lengths = [length for length in (given.inputs, head.length or trained) if length is not None]
  return dataclasses.replace(given, inputs=min(lengths, default=None), truncate=True)


class Neighbors:
  """Finds the sentences nearest to each row, by cosine similarity of embeddings."""

  unit = "tokens read"

  def __init__(self, embedding: Embedding, sentences: Sentences, top: int):
    if top < 1:
      raise InvalidSetting(f"top={top} is invalid", expected="at least 1")
    if sentences.vectors.shape[1] != embedding.width:
      raise UserError(
        f"the vectors to search have width {sentences.vectors.shape[1]}, those of the model {embedding.width}",
        try_="vectors of the same model: t5like infer --embed --output=FILE.npy",
      )
    self._embedding, self._sentences, self._top = embedding, sentences, top
    self.limits = embedding.limits

  def prepare(self, rows: Sequence[Row]) -> list[Prepared | RejectedRow]:
    return self._embedding.prepare(rows)

  def planner(self, batch_size: int) -> BatchPlanner:
    return self._embedding.planner(batch_size)

  def answer(self, batch: Sequence[Prepared], shape: BatchShape | None = None) -> list[tuple[Answer, int]]:
    similarities, numbers = nearest_rows(self._embedding.vectors(batch, shape), self._sentences.vectors, self._top)
    answers = []
    for prepared, *near in zip(batch, similarities, numbers, strict=True):
      nearest = []
      for similarity, number in zip(*near, strict=True):
        text, line = self._sentences[int(number)]
        known = {} if text is None else {"text": text}
        nearest.append(known | {"similarity": float(similarity), "line": line})
      answers.append(({"neighbors": nearest}, len(prepared.tokens)))
    return answers
