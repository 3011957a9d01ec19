"""XLNet's permutation language modeling (Yang et al. 2019, section 2): predicts tokens in place, in a random order."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from t5like.errors import UserError
from t5like.objectives.base import Lengths, Masked, Objective, Rows, SpecialTokens, check_fraction, check_min_length
from t5like.objectives.masking import anchored_words, split_texts
from t5like.objectives.ragged import Ragged
from t5like.objectives.randomness import Draws
from t5like.objectives.segments import PairForm


@dataclasses.dataclass(frozen=True)
class PermutationLM(Objective):
  """Predicts a share of the tokens, each from the others and from those before it in a random order.

  The tokens stay as they are: the model hides them (models/xlnet.py). A row is a memory, then first <sep> second <sep>
  <cls>; both texts are of one stream, cut at a sentence end. (In half of the original's rows, the second one is from
  another document.) The predicted tokens are spans of one to `longest_span` words, of n words with odds 1/n; the last
  one is cut, so that the share is exact.

  share    of the tokens after the memory: the paper's 1/K with K = 6
  window   tokens that have an order of their own: those of a window are predicted from all of the windows before it and
           from none after it (the original's perm_size)
  memory   tokens at the start of a row that are not predicted: XLNet.memory_length
  """

  share: float = 1 / 6
  longest_span: int = 5
  window: int = 256
  memory: int = 0
  name: ClassVar[str] = "permutation_lm"
  makes: ClassVar[str] = "masked"
  separated: ClassVar[bool] = True
  orders_tokens: ClassVar[bool] = True

  def __post_init__(self):
    check_fraction("share", self.share)
    for field, least in (("longest_span", 1), ("window", 2), ("memory", 0)):
      if getattr(self, field) < least:
        raise UserError(f"invalid {self.name}.{field}: {getattr(self, field)} (expected at least {least})")

  def lengths(self, inputs: int) -> Lengths:
    check_min_length(self, inputs, self.memory + 8)
    return Lengths(inputs - 3, inputs, inputs)

  def check(self, lengths: Lengths, special: SpecialTokens) -> None:
    if special.cls is None or special.sep is None:
      raise UserError(
        f"{self.name} needs <cls> and <sep>; the vocabulary has none", try_="XLNet's vocabulary, or bert_uncased"
      )

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Masked:
    joined = self._join(rows, draws, special)
    text, memory = Ragged(joined.tokens, joined.lengths), self.memory
    after = Ragged(text.tokens[:, memory:], np.maximum(text.lengths - memory, 0))
    odds = np.array([0.0, *(1.0 / n for n in range(1, self.longest_span + 1))])
    chosen = anchored_words(after, draws, special, odds / odds.sum(), self.share)
    # <sep> and <cls> have a place in the order, too, but are not predicted.
    ordered = chosen | (after.valid & np.isin(after.tokens, (special.sep, special.cls)))
    hidden = ((0, 0), (min(memory, text.tokens.shape[1]), 0))
    return Masked(
      inputs=text,
      targets=text.tokens,
      weights=np.pad(chosen, hidden),
      token_types=joined.token_types,
      order=np.pad(self.order(ordered, draws), hidden),
    )

  def _join(self, rows: Rows, draws: Draws, special: SpecialTokens):
    """Returns rows with the memory and the first text as one."""
    width, kept = rows.tokens.shape[1], np.minimum(rows.lengths, self.memory)
    first, second = split_texts(Ragged(rows.tokens[:, self.memory :], rows.lengths - kept), draws, special)
    ends = (kept + first.lengths)[:, None]
    both = Ragged(np.where(np.arange(width)[None] < ends, rows.tokens, 0).astype(np.int32), ends[:, 0])
    form = PairForm(special.cls, special.sep, cls_last=True)
    return form.join(both, second, int(rows.lengths.max(initial=1)) + 3)

  def order(self, ordered: np.ndarray, draws: Draws) -> np.ndarray:
    """Returns the order of tokens [rows, width]: in each window, 0 for those that are given, then the `ordered` ones.

    Numbers of later windows are higher.
    """
    width, window = ordered.shape[1], self.window
    number = np.arange(width) // window
    # The place of each token in the order of its window.
    place = np.argsort(np.argsort(number[None] + draws.uniform("order of prediction", width), axis=1), axis=1)
    given = (number * (window + 1))[None]
    return np.where(ordered, given + 1 + place - (number * window)[None], given).astype(np.int32)
