"""The methods of a loaded model with a head: classify, choose, tag and answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from t5like.errors import UserError
from t5like.inference.heads.jobs import Labeling
from t5like.inference.heads.no_answer import with_threshold
from t5like.inference.jobs import Limits
from t5like.inference.results import Label, Labels, SpanAnswer, Tag
from t5like.inference.rows import candidate_lists, listed

_BATCH = 32
Texts = str | Sequence[str]
Pair = tuple[str, str]
# The method for each form of head.
_METHODS = {
  **dict.fromkeys(("classification", "multi_label", "regression"), "classify"), "choices": "choose", "tagging": "tag",
  "spans": "answer",
}  # fmt: skip
_KINDS = {"classification": Label, "multi_label": Labels}  # of results


class HeadMethods:
  """Labels, choices, tags and answers of a model with a head; a part of Model."""

  def classify(
    self,
    texts: str | Pair | Mapping[str, str] | Sequence[str | Pair | Mapping[str, str]],
    batch_size: int = _BATCH,
    truncate: bool = False,
    threshold: float = 0.5,
  ) -> Label | Labels | float | list[Label] | list[Labels] | list[float]:
    """Classifies texts, or pairs of texts (tuples, or dicts with text and text_pair), with the model's head.

    Reads texts up to the model's positions, also beyond the length of training, to which `evaluate` cuts them.

    Returns: a Label with the probabilities of all classes; Labels with those of at least `threshold` if a text may have
    several; a number if the head was trained on scores.
    """
    job = self._labeling(
      "classify", ("classification", "multi_label", "regression"), truncate, label_threshold=threshold
    )
    single = isinstance(texts, str | tuple | Mapping) or not isinstance(texts, Iterable)
    pairs = [_pair(entry) for entry in ([texts] if single else texts)]
    fields = [{"second": pair[1]} if len(pair) == 2 else {} for pair in pairs]
    answers = self._answers(job, [pair[0] for pair in pairs], batch_size, fields)
    found = [_KINDS[job.form](**answer) if job.form in _KINDS else answer["value"] for answer in answers]
    return found[0] if single else found

  def choose(
    self, questions: Texts, choices: Sequence[str] | Sequence[Sequence[str]], batch_size: int = _BATCH,
    truncate: bool = False,
  ) -> Label | list[Label]:  # fmt: skip
    """Chooses among the possible answers to each question: a list of texts for all questions, or one for each.

    Returns: a Label whose `label` is the best choice, with the probabilities of all.
    """
    job = self._labeling("choose", ("choices",), truncate)
    asked = listed(questions)
    each = candidate_lists(asked, choices)
    if len(each) != len(asked):
      raise UserError(f"{len(asked)} questions but {len(each)} lists of choices", expected="one each, or one for all")
    answers = self._answers(job, asked, batch_size, [{"choices": own} for own in each])
    found = [
      Label(answer["label"], answer["probability"], dict(zip(own, answer["probabilities"], strict=True)))
      for own, answer in zip(each, answers, strict=True)
    ]
    return found[0] if isinstance(questions, str) else found

  def tag(
    self, texts: Texts | Sequence[Sequence[str]], batch_size: int = _BATCH, truncate: bool = False
  ) -> list[Tag] | list[list[Tag]]:
    """Tags the words of texts, which are split at white space, or lists of words.

    Returns: a list of Tags for one text; a list of them for a list of texts or of lists of words.
    """
    job = self._labeling("tag", ("tagging",), truncate)
    given = list(texts) if isinstance(texts, Iterable) and not isinstance(texts, str | bytes) else [texts]
    fields = [{"words": text.split() if isinstance(text, str) else _words(text)} for text in given]
    found = []
    for answer in self._answers(job, [""] * len(given), batch_size, fields):
      found.append([Tag(*one) for one in zip(answer["words"], answer["tags"], answer["probabilities"], strict=True)])
    return found[0] if isinstance(texts, str) else found

  def answer(
    self,
    questions: Texts,
    passages: Texts,
    unanswerable: bool | None = None,
    threshold: float | None = None,
    batch_size: int = _BATCH,
  ) -> SpanAnswer | list[SpanAnswer]:
    """Finds the answers to questions in passages, one each, or one for all questions.

    unanswerable: whether there may be no answer (SQuAD 2.0): '' if its score exceeds the best span's by `threshold`.
    None: if training has tuned a threshold, which is the default, or if one is given.
    """
    if unanswerable is False:
      threshold = math.inf
    elif unanswerable and threshold is None and self.no_answer_threshold is None:
      threshold = 0.0
    job = self._labeling("answer", ("spans",), False, no_answer_threshold=threshold)
    asked = listed(questions)
    each = [passages] * len(asked) if isinstance(passages, str) else listed(passages)
    if len(each) != len(asked):
      raise UserError(f"{len(asked)} questions but {len(each)} passages", expected="one each, or one for all questions")
    answers = self._answers(job, asked, batch_size, [{"passage": passage} for passage in each])
    found = [SpanAnswer(**answer) for answer in answers]
    return found[0] if isinstance(questions, str) else found

  @property
  def no_answer_threshold(self) -> float | None:
    """The head's threshold for questions without an answer, or the one found in training; None: there is none."""
    head = getattr(with_threshold(self.module, self.folder, self.step()), "head", None)
    return getattr(head, "no_answer_threshold", None)

  def _labeling(self, method: str, forms: Sequence[str], truncate: bool, **settings: Any) -> Labeling:
    job = Labeling(self, Limits(truncate=truncate), **settings)
    if job.form not in forms:
      head = type(self.module.head).__name__
      raise UserError(f"{method} does not support {head}", try_=_METHODS.get(job.form, "embed"))
    return job


def _words(entry: Any) -> list[str]:
  """Returns the words of an entry of `tag`."""
  if not isinstance(entry, list | tuple) or not all(isinstance(word, str) for word in entry):
    raise UserError(f"not a text or a list of words: {entry!r}", expected="a string, or a list of strings")
  return list(entry)


def _pair(entry: Any) -> tuple[str, ...]:
  """Returns the one or two texts of an entry of `classify`."""
  if isinstance(entry, Mapping) and set(entry) <= {"text", "text_pair"} and "text" in entry:
    entry = [entry["text"], *([entry["text_pair"]] if entry.get("text_pair") is not None else [])]
  texts = (entry,) if isinstance(entry, str) else tuple(entry) if isinstance(entry, list | tuple) else ()
  if len(texts) not in (1, 2) or not all(isinstance(text, str) for text in texts):
    raise UserError(f"not a text or a pair of texts: {entry!r}", expected="a string, or a tuple of two")
  return texts
