"""The features that a token cache stores of tagged words and of questions about passages.

Classification needs only the tokens of its texts; its labels are among the raw fields.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from t5like.errors import UserError
from t5like.objectives.spans import answer_tokens, encoded_passage

Example = Mapping[str, Any]
# By the form of a task.
LABEL_FEATURES = {"tagging": ("words", "word_lengths", "tags"), "spans": ("first", "second", "answer")}
_MAX_PLACE = 2**16 - 1  # token files may have 16 bits


@dataclasses.dataclass(frozen=True)
class LabelEncoder:
  """Encodes examples of a form to the features of LABEL_FEATURES; can be sent to worker processes."""

  form: str
  vocabulary: Any  # of t5like.vocabularies

  def __call__(self, examples: Sequence[Example]) -> list[list[Sequence[int]]]:
    """Returns the ids of every example, by feature."""
    rows = self._words(examples) if self.form == "tagging" else map(self._question, examples)
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in LABEL_FEATURES[self.form]]

  def _words(self, examples: Sequence[Example]) -> list[tuple[Sequence[int], ...]]:
    """Encodes every word separately, after a space: its pieces do not depend on its neighbors."""
    encoded = iter(self.vocabulary.encode_batch([f" {word}" for example in examples for word in example["tokens"]]))
    rows = []
    for example in examples:
      words = list(itertools.islice(encoded, len(example["tokens"])))
      rows.append((list(itertools.chain.from_iterable(words)), list(map(len, words)), example["tags"]))
    return rows

  def _question(self, example: Example) -> tuple[Sequence[int], ...]:
    """Encodes a question and its passage; `answer` is the first and last token of the first answer, if there is one."""
    ids, spans = encoded_passage(self.vocabulary, example["second"])
    place = None
    if example["answers"]:
      begin = example["answer_starts"][0]
      place = answer_tokens((begin, begin + len(example["answers"][0])), spans)
    if place and place[1] > _MAX_PLACE:
      raise UserError(f"an answer is at token {place[1]:,} of its passage", expected=f"at most {_MAX_PLACE:,}")
    return self.vocabulary.encode(example["first"]), ids, place or ()
