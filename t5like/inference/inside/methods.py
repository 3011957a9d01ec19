"""The methods of a loaded model that look inside it."""

from __future__ import annotations

from collections.abc import Sequence

from t5like.decoding.options import decode_settings, with_defaults
from t5like.inference.inside.layers import STATES, TARGETS, WEIGHTS, LookInside
from t5like.inference.inside.words import neighbors_of_word
from t5like.inference.jobs import Limits
from t5like.inference.results import Attention, HiddenStates, WordNeighbor

_BATCH = 8  # attention weights grow with length^2
_LENGTH = 64
Texts = str | Sequence[str]


class InsideMethods:
  """Methods of Model."""

  def attention(
    self, texts: Texts, targets: Texts | None = None, batch_size: int = _BATCH, truncate: bool = False
  ) -> Attention | list[Attention]:
    """Returns the attention weights of every layer and head, with the tokens, for each text.

    Args:
      texts: the inputs.
      targets: of an encoder-decoder, what its decoder reads; by default the answer that it generates.
      batch_size: maximum number of texts per batch.
      truncate: cut texts that are too long.
    """
    length = min(_LENGTH, max((self.positions or 2 * _LENGTH) // 2, 1))
    own = with_defaults({}, {"max_length": length} | dict(self.decoding))
    decoding, _ = decode_settings(own, self.vocabulary, self.positions)
    job = LookInside(self, Limits(truncate=truncate), WEIGHTS, decoding=decoding)
    return self._inside(job, Attention, texts, targets, batch_size)

  def hidden_states(
    self, texts: Texts, targets: Texts | None = None, batch_size: int = _BATCH, truncate: bool = False
  ) -> HiddenStates | list[HiddenStates]:
    """Returns the states of every layer for each text; see `attention`.

    Without targets, only the encoder of an encoder-decoder runs.
    """
    job = LookInside(self, Limits(truncate=truncate), STATES)
    return self._inside(job, HiddenStates, texts, targets, batch_size)

  def word_neighbors(
    self,
    word: str,
    texts: Sequence[str],
    in_text: str | None = None,
    layer: int = -1,
    top: int = 5,
    batch_size: int = 32,
    truncate: bool = False,
  ) -> list[WordNeighbor]:
    """Finds the words of texts that are nearest to a word in its context, by cosine similarity.

    The vector of a word is the mean of the states of its pieces; an encoder-decoder reads with its encoder.

    Args:
      word: the word, or words in a row.
      texts: where to search: every word of them is a candidate.
      in_text: the text in which `word` is read, at its first occurrence; None: the word alone.
      layer: of the states: 0 are the embeddings, -1 is the last layer.
      top: number of neighbors.
      batch_size: maximum number of texts per batch.
      truncate: cut texts that are too long.
    """
    limits = Limits(truncate=truncate)
    return neighbors_of_word(self, word, texts, word if in_text is None else in_text, layer, top, batch_size, limits)

  def _inside(
    self, job: LookInside, result: type, texts: Texts, targets: Texts | None, batch_size: int
  ) -> object | list[object]:
    given = [targets] if isinstance(targets, str) else targets
    fields = None if given is None else [{TARGETS: target} for target in given]
    found = [result(**answer) for answer in self._answers(job, texts, batch_size, fields)]
    return found[0] if isinstance(texts, str) else found
