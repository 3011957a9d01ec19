"""Prompts with solved examples before the question: zero-, one- and few-shot (Brown et al. 2020, section 2.4).

A template is a text file. `{inputs}` and `{targets}` stand for an example's own, other braces for its other fields;
the text after `{targets}` parts the examples, and ends an answer. Lines above a line of dashes come once, at the top:

    Does the premise entail the hypothesis?
    ---
    {inputs}
    Answer: {targets}
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5like.errors import UserError, nearest
from t5like.files import storage

DEFAULT = Path(__file__).parent / "prompts" / "default.txt"
_PLACE = re.compile(r"\{(\w+)\}")
_TOP = re.compile(r"^-{3,}[ \t]*\n", re.MULTILINE)

Fields = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Template:
  """What a prompt looks like."""

  instruction: str  # once, at the top
  before: str  # of an example, up to its answer
  after: str  # from its answer to the next example

  @classmethod
  def read(cls, path: Path | str | None = None) -> Template:
    path = storage.as_path(path) if path else DEFAULT
    try:
      text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
      raise UserError(f"cannot read the prompt template {path}", because=error) from None
    return cls.parse(text, str(path))

  @classmethod
  def parse(cls, text: str, name: str = "the template") -> Template:
    parts = _TOP.split(text, maxsplit=1)
    instruction, example = ("", text) if len(parts) == 1 else parts
    pieces = example.split("{targets}")
    if len(pieces) != 2 or "{targets}" in instruction:
      raise UserError(
        f"{name} has {text.count('{targets}')} places for an answer",
        expected="{targets} once, behind the question, such as 'Q: {inputs}\\nA: {targets}\\n'",
      )
    if _PLACE.search(pieces[1]) or not _PLACE.search(pieces[0]):
      raise UserError(f"{name} asks nothing before {{targets}}", expected="'{inputs}' before '{targets}'")
    return cls(instruction, pieces[0], pieces[1] if pieces[1].strip(" ") else "\n")

  @property
  def stop(self) -> str:
    """The text that ends an answer: what parts it from the next example, a line's end where that is white space."""
    return self.after.strip() or "\n"

  def check(self, example: Fields, name: str) -> None:
    """Before work starts: every place has a field."""
    for place in _PLACE.findall(self.instruction + self.before):
      if place not in _known(example):
        known = _known(example)
        raise UserError(
          f"the prompt template wants {{{place}}}, which examples of {name} have not",
          nearest=nearest(place, known), known=", ".join(f"{{{k}}}" for k in known),
        )  # fmt: skip

  def question(self, example: Fields) -> str:
    """Up to where the answer begins; the spaces before it belong to the answer, as byte-level vocabularies have it."""
    return _filled(self.before, example).rstrip(" ")

  def answer(self, text: str) -> str:
    """As it stands in a prompt."""
    spaces = len(self.before) - len(self.before.rstrip(" "))
    return " " * spaces + text

  def solved(self, example: Fields) -> str:
    return self.question(example) + self.answer(example["targets_pretokenized"]) + self.after


def _known(example: Fields) -> dict[str, Any]:
  named = {name.removesuffix("_pretokenized"): value for name, value in example.items()}
  return {name: value for name, value in named.items() if name != "targets" and isinstance(value, str | int | float)}


def _filled(text: str, example: Fields) -> str:
  known = _known(example)
  return _PLACE.sub(lambda place: str(known[place[1]]), text)


@dataclasses.dataclass(frozen=True)
class FewShotPrompt:
  text: str
  tokens: list[int]
  shots: int  # solved examples that found room


def draw_shots(seed: int, number: int, shots: int, pool: int, but: int | None = None) -> list[int]:
  """Which examples of the training split come before question `number`: other ones for each, always the same.

  As GPT-3, whose shots are drawn anew for every question. `but` is not among them.
  """
  drawn = np.random.default_rng([seed, number]).choice(pool, size=min(shots + 1, pool), replace=False)
  return [i for i in drawn.tolist() if i != but][:shots]


class PromptMaker:
  """Makes prompts that leave room for an answer."""

  def __init__(
    self,
    template: Template,
    pool: Sequence[Fields],  # examples of the training split
    shots: int,
    seed: int,
    encode: Callable[[str], list[int]],  # what surrounds a prompt included
    room: int | None = None,  # tokens; None: no end
    pool_is_evaluated: bool = False,  # the questions are those of the pool: none may solve itself
  ):
    if shots > len(pool) - pool_is_evaluated:
      raise UserError(f"--shots={shots}: the training split has {len(pool)} examples only")
    self._template, self._pool, self._shots, self._seed = template, pool, shots, seed
    self._encode, self._room, self._pool_is_evaluated = encode, room, pool_is_evaluated

  def __call__(self, number: int, example: Fields) -> FewShotPrompt:
    """The prompt of one example: shots that do not fit are left out, from the first on."""
    but = number if self._pool_is_evaluated else None
    chosen = [self._pool[i] for i in draw_shots(self._seed, number, self._shots, len(self._pool), but)]
    question = self._template.question(example)
    solved = [self._template.solved(shot) for shot in chosen]
    for dropped in range(len(solved) + 1):
      text = _filled(self._template.instruction, example) + "".join(solved[dropped:]) + question
      tokens = self._encode(text)
      if self._room is None or len(tokens) <= self._room:
        return FewShotPrompt(text, tokens, len(solved) - dropped)
    raise UserError(
      f"the prompt of example {number} has {len(tokens)} tokens even without shots, there is room for {self._room}",
      begins=repr(text[:80]),
      try_="a shorter template, a smaller --max_length, or a larger --inputs_length where one was given",
    )

  def all(self, examples: Sequence[Fields]) -> list[FewShotPrompt]:
    if examples:
      self._template.check(examples[0], "this task")
    return [self(number, example) for number, example in enumerate(examples)]


def shots_story(prompts: Sequence[FewShotPrompt], shots: int) -> str:
  """What to tell of prompts that lost shots; '' where none did."""
  short = [prompt.shots for prompt in prompts if prompt.shots < shots]
  if not short:
    return ""
  return (
    f"{len(short):,} of {len(prompts):,} prompts have no room for {shots} examples: "
    f"they have {np.mean(short):.1f} on average, at least {min(short)}"
  )
