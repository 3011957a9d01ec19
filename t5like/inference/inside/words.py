"""Words in context: their vectors, and the nearest ones in a corpus."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from t5like.errors import InvalidSetting, UserError
from t5like.inference.batching import BatchPlanner, BatchShape
from t5like.inference.encodings import nearest_rows
from t5like.inference.inside.layers import STATES, LookInside, PreparedPair
from t5like.inference.jobs import Answer, Limits, Prepared
from t5like.inference.results import WordNeighbor
from t5like.inference.rows import RejectedRow, Row, reject
from t5like.inference.running import answer_all

if TYPE_CHECKING:  # a model's methods run these jobs
  from t5like.inference.model import Model

_WORD = re.compile(r"\w+(?:['’\-]\w+)*")
WORD_FIELD = "word"
_CHUNK = 256  # texts whose vectors are held at a time
Span = tuple[int, int]  # of characters


@dataclasses.dataclass(frozen=True)
class PreparedWords(PreparedPair):
  """A tokenized row and its words."""

  spans: Sequence[Span] = ()
  offsets: np.ndarray | None = None  # [pieces, 2]: the characters of the text's pieces


class WordVectors:
  """The words of each row: their spans, and the mean of the states of their pieces at a layer.

  word  only this one, at its first occurrence; "": the one in the row's field `word`; None: all words
  """

  unit = "tokens read"

  def __init__(self, model: Model, limits: Limits, layer: int = -1, word: str | None = None):
    self._model, self.limits, self._word = model, limits, word
    self._reading = LookInside(model, limits, STATES)
    config = model.config
    layers = config.num_decoder_layers if model.is_decoder else config.num_encoder_layers
    layers = layers or config.num_decoder_layers  # a head on a decoder
    if not -layers - 1 <= layer <= layers:
      expected = f"0 (the embeddings) to {layers}, or -1 (the last) to {-layers - 1}"
      raise InvalidSetting(f"layer={layer} is invalid", expected=expected)
    self._layer = layer

  def prepare(self, rows: Sequence[Row]) -> list[Prepared | RejectedRow]:
    prepared: list[Prepared | RejectedRow] = []
    for row in rows:
      spans = self._spans(row)
      if isinstance(spans, str):
        prepared.append(reject(row, spans, self.limits.field))
        continue
      ids, offsets = self._model.vocabulary.encode_with_offsets(row.text)
      (read,) = self._reading.prepare([dataclasses.replace(row, tokens=ids, targets=None, fields={})])
      if isinstance(read, Prepared):
        read = PreparedWords(row, read.tokens, spans=spans, offsets=np.array(offsets, np.int64).reshape(-1, 2))
      prepared.append(read)
    return prepared

  def _spans(self, row: Row) -> list[Span] | str:
    """Returns the words to read, or why there are none."""
    if self._word is None:
      return [match.span() for match in _WORD.finditer(row.text)]
    word = self._word or row.fields.get(WORD_FIELD)
    if not isinstance(word, str) or not word.strip():
      return f"no word in field {WORD_FIELD!r}"
    inside = re.search(rf"(?<!\w){re.escape(word.strip())}(?!\w)", row.text)
    return [inside.span()] if inside else f"{word!r} is not a word of the text"

  def planner(self, batch_size: int) -> BatchPlanner:
    return self._reading.planner(batch_size)

  def answer(self, batch: Sequence[Prepared], shape: BatchShape | None = None) -> list[tuple[Answer, int]]:
    """Returns {"spans", "vectors" [spans, embed]}; words that were cut off with the rest of a text are left out."""
    answers = []
    for prepared, (found, tokens) in zip(batch, self._reading.answer(batch, shape), strict=True):
      states = (found["decoder"] if found.get("encoder") is None else found["encoder"])[self._layer]  # [tokens, embed]
      means = {span: states[at].mean(axis=0) for span, at in self._places(prepared).items() if len(at)}
      vectors = np.stack(list(means.values())) if means else np.zeros((0, states.shape[1]), np.float32)
      answers.append(({"spans": list(means), "vectors": vectors}, tokens))
    return answers

  def _places(self, prepared: PreparedWords) -> dict[Span, np.ndarray]:
    """Returns the positions of the pieces of each word among the model's tokens."""
    form, (begins, ends) = self._model.prompt_form, prepared.offsets.T
    kept = len(prepared.tokens) - (len(form.tokens([0])) - 1)
    cut = len(begins) - kept if self._model.is_decoder else 0  # a decoder keeps the end of a text
    places = np.arange(len(begins)) - cut
    is_kept = (places >= 0) & (places < kept)
    at = places + (form.start is not None)
    return {(b, e): at[is_kept & (begins < e) & (ends > b)] for b, e in prepared.spans}


class Words:
  """Words of a corpus with their vectors, which are in a temporary file."""

  def __init__(self) -> None:
    self._file, self._width = tempfile.TemporaryFile(), 0
    self._texts: list[tuple[str, int]] = []  # with its line, from 0
    self._places = (array("Q"), array("Q"), array("Q"))  # the text's number, first and last character of each word

  def add(self, row: Row, answer: Mapping[str, Any]) -> None:
    for (begin, end), vector in zip(answer["spans"], answer["vectors"], strict=True):
      for places, value in zip(self._places, (len(self._texts), begin, end), strict=True):
        places.append(value)
      self._file.write(np.asarray(vector, "<f4").tobytes())
      self._width = len(vector)
    self._texts.append((row.text, row.number))

  def __len__(self) -> int:
    return len(self._places[0])

  def nearest(self, vector: np.ndarray, top: int) -> list[WordNeighbor]:
    self._file.flush()
    vectors = np.memmap(self._file, "<f4", "r", shape=(len(self), self._width))
    similarities, numbers = nearest_rows(vector[None], vectors, top)
    found = []
    for similarity, number in zip(similarities[0], numbers[0], strict=True):
      text, begin, end = (places[int(number)] for places in self._places)
      written, line = self._texts[text]
      found.append(WordNeighbor(written[begin:end], written, line, begin, float(similarity)))
    return found


class WordNeighbors:
  """Finds the words of a corpus nearest to a word of each row."""

  unit = "tokens read"

  def __init__(self, vectors: WordVectors, words: Words, top: int):
    if top < 1:
      raise InvalidSetting(f"top={top} is invalid", expected="at least 1")
    self._vectors, self._words, self._top = vectors, words, top
    self.limits = vectors.limits

  def prepare(self, rows: Sequence[Row]) -> list[Prepared | RejectedRow]:
    return self._vectors.prepare(rows)

  def planner(self, batch_size: int) -> BatchPlanner:
    return self._vectors.planner(batch_size)

  def answer(self, batch: Sequence[Prepared], shape: BatchShape | None = None) -> list[tuple[Answer, int]]:
    answers = []
    for found, tokens in self._vectors.answer(batch, shape):
      near = self._words.nearest(found["vectors"][0], self._top) if len(found["vectors"]) else []
      answers.append(({"neighbors": [_described(one) for one in near]}, tokens))
    return answers


def _described(neighbor: WordNeighbor) -> dict[str, Any]:
  named = dataclasses.asdict(neighbor)
  return {"line": named.pop("number") + 1, **named}


def neighbors_of_word(
  model: Model, word: str, texts: Sequence[str], in_text: str, layer: int, top: int, batch_size: int, limits: Limits
) -> list[WordNeighbor]:
  """See Model.word_neighbors."""
  if top < 1:
    raise InvalidSetting(f"top={top} is invalid", expected="at least 1")
  if isinstance(texts, str):
    raise UserError("word_neighbors searches a list of texts, not one text", try_="[text]")
  (own,) = answer_all(WordVectors(model, limits, layer, word), [Row(0, "in_text", in_text, {})], batch_size)
  if not len(own["vectors"]):
    raise UserError(f"{word!r} is not among the tokens that are left of in_text", try_="a shorter text")
  reading, words = WordVectors(model, limits, layer), Words()
  for first in range(0, len(texts), _CHUNK):
    rows = [Row(n, f"texts[{n}]", text, {}) for n, text in enumerate(texts[first : first + _CHUNK], first)]
    for row, answer in zip(rows, answer_all(reading, rows, batch_size), strict=True):
      words.add(row, answer)
  return words.nearest(own["vectors"][0], top) if len(words) else []
