"""Examples of what each objective does to a text, as in the paper's Table 3.

Words serve as tokens, for readability; `t5like tasks objective NAME` shows the same with a real vocabulary.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping

import numpy as np

from t5like.ablations.tables import RECIPES
from t5like.errors import UserError
from t5like.objectives import CATALOGUE, Draws, Objective, Ragged, Rows, SpecialTokens

TEXT = (
  "Thank you for inviting me to your party last week . The weather was fine , the music was loud , and everybody "
  "came , even my old neighbor , who danced until midnight and then asked for more cake . I could not stay to the "
  "end , since my train left early , but I hope that we will meet again soon ."
)
_OTHER_WORDS = "apple river seven green walks slowly under bridge".split()  # random replacements
_SENTINELS = tuple(f"<{letter}>" for letter in "XYZABCDEFGHIJKLNOPQRSTUVW")
_MASK, _CLS, _SEP = "<M>", "[CLS]", "[SEP]"
_SEED = 26  # chosen so that the noise is illustrative


@dataclasses.dataclass(frozen=True)
class Example:
  objective: str
  inputs: str
  targets: str
  recipes: list[str]


class _Words:
  """A vocabulary of words: padding, EOS, the text, other words, the mask, then sentinels in descending order."""

  def __init__(self, text: str):
    words = list(dict.fromkeys([*text.split(), *_OTHER_WORDS]))
    self.words = ["", "</s>", *words, _MASK, _CLS, _SEP, *reversed(_SENTINELS)]
    self._ids = {word: number for number, word in enumerate(self.words)}
    size = len(self.words)
    self.special = SpecialTokens(
      vocab_size=size,
      pad=0,
      eos=1,
      sentinels=tuple(range(size - 1, size - 1 - len(_SENTINELS), -1)),
      mask=self._ids[_MASK],
      cls=self._ids[_CLS],
      sep=self._ids[_SEP],
      others=frozenset({self._ids[_MASK]}),
      sentence_ends=(self._ids["."],) if "." in self._ids else (),
    )

  def rows(self, text: str) -> Ragged:
    return Ragged.full(np.array([[self._ids[word] for word in text.split()]], np.int32))

  def text(self, rows: Ragged) -> str:
    return " ".join(self.words[token] for token in rows.tokens[0, : rows.lengths[0]])


def show(objective: Objective, text: str = TEXT, seed: int = _SEED) -> tuple[str, str]:
  """Returns inputs and targets of an objective; those of an encoder are the words to predict."""
  words = _Words(text)
  row, other = words.rows(text), words.rows(" ".join(_OTHER_WORDS))
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # too few sentinels for much longer rows
    made = objective(Rows(row.tokens, row.lengths, other), Draws.of(seed, 0, np.zeros(1, int)), words.special)
  if objective.makes == "pairs":
    return words.text(made.inputs), words.text(made.targets)
  predicted = " ".join(words.words[token] for token in made.targets[0][made.weights[0] > 0])
  follows = "" if made.labels is None else f" | {'not next' if made.labels[0] else 'next'}"
  return words.text(made.inputs), predicted + follows


def examples(recipes: Iterable[str], recorded: Mapping[str, Mapping[str, str]] | None = None) -> list[Example]:
  """Returns an example of each objective of the recipes, in order, if words can illustrate it.

  recorded: by custom recipe, the example that its run recorded (see `recorded_example`).
  """
  recorded, used, texts = recorded or {}, {}, {}
  for name in recipes:
    if name in recorded:
      objective = recorded[name]["objective"]
      texts[objective] = (recorded[name]["inputs"], recorded[name]["targets"])
    else:
      objective = RECIPES[name].objective if name in RECIPES else _objective_in(name)
    if objective is not None:
      used.setdefault(objective, []).append(name)
  shown = {name: texts.get(name) or _shown(CATALOGUE.get(name)) for name in used}
  return [Example(name, *shown[name], users) for name, users in used.items() if shown[name]]


def recorded_example(objective: Objective | None) -> dict[str, str] | None:
  """Returns the example that a result stores of its pre-training objective, registered or not."""
  if (texts := _shown(objective)) is None:
    return None
  name = next((name for name, known in CATALOGUE.items() if known == objective), objective.name)
  return {"objective": name, "inputs": texts[0], "targets": texts[1]}


def _shown(objective: Objective | None) -> tuple[str, str] | None:
  if objective is None or objective.makes not in ("pairs", "masked"):
    return None
  try:
    return show(objective)
  except UserError:  # needs special tokens that this vocabulary lacks
    return None


def _objective_in(recipe: str) -> str | None:
  """Returns the objective in the name of a custom recipe: architecture/objective."""
  return next((part for part in recipe.split("/")[1:] if part in CATALOGUE), None)
