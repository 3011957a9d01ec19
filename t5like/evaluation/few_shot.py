"""Zero-, one- and few-shot prompts, with solved examples before the question (Brown et al. 2020, section 2.4).

A template is a text file with placeholders: `{inputs}`, `{targets}`, and names of other fields. The text after
`{targets}` separates examples and ends an answer. Lines above a line of dashes appear once, at the top:

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
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_SEPARATOR = re.compile(r"^-{3,}[ \t]*\n", re.MULTILINE)

Fields = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Template:
  """A prompt template."""

  instruction: str  # once, at the top
  before: str  # an example up to its answer
  after: str  # from the answer to the next example

  @classmethod
  def read(cls, path: Path | str | None = None) -> Template:
    path = storage.as_path(path) if path else DEFAULT
    try:
      text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
      raise UserError(f"cannot read the prompt template {path}", because=error) from None
    return cls.parse(text, str(path))

  @classmethod
  def parse(cls, text: str, name: str = "the template") -> Template:
    parts = _SEPARATOR.split(text, maxsplit=1)
    instruction, example = ("", text) if len(parts) == 1 else parts
    pieces = example.split("{targets}")
    if len(pieces) != 2 or "{targets}" in instruction:
      raise UserError(
        f"{name} has {text.count('{targets}')} {{targets}} placeholders",
        expected="one {targets}, after the question, such as 'Q: {inputs}\\nA: {targets}\\n'",
      )
    if _PLACEHOLDER.search(pieces[1]) or not _PLACEHOLDER.search(pieces[0]):
      raise UserError(f"{name} has no placeholder before {{targets}}", expected="'{inputs}' before '{targets}'")
    return cls(instruction, pieces[0], pieces[1] if pieces[1].strip(" ") else "\n")

  @property
  def stop(self) -> str:
    """The text that ends an answer: the separator of examples, or a newline if that is white space."""
    return self.after.strip() or "\n"

  def check(self, example: Fields, name: str) -> None:
    """Raises UserError if a placeholder has no field in the example."""
    for placeholder in _PLACEHOLDER.findall(self.instruction + self.before):
      if placeholder not in _template_fields(example):
        known = _template_fields(example)
        raise UserError(
          f"the prompt template uses {{{placeholder}}}, which is not a field of {name}",
          nearest=nearest(placeholder, known), known=", ".join(f"{{{k}}}" for k in known),
        )  # fmt: skip

  def question(self, example: Fields) -> str:
    """Returns the text before the answer; spaces belong to the answer, as in byte-level vocabularies."""
    return _fill(self.before, example).rstrip(" ")

  def answer(self, text: str) -> str:
    """Returns the answer with the spaces that precede it in a prompt."""
    spaces = len(self.before) - len(self.before.rstrip(" "))
    return " " * spaces + text

  def solved(self, example: Fields) -> str:
    return self.question(example) + self.answer(example["targets_pretokenized"]) + self.after


def _template_fields(example: Fields) -> dict[str, Any]:
  named = {name.removesuffix("_pretokenized"): value for name, value in example.items()}
  return {name: value for name, value in named.items() if name != "targets" and isinstance(value, str | int | float)}


def _fill(text: str, example: Fields) -> str:
  known = _template_fields(example)
  return _PLACEHOLDER.sub(lambda placeholder: str(known[placeholder[1]]), text)


@dataclasses.dataclass(frozen=True)
class FewShotPrompt:
  text: str
  tokens: list[int]
  shots: int  # solved examples that fit


def draw_shots(seed: int, number: int, shots: int, pool: int, exclude: int | None = None) -> list[int]:
  """Draws the solved examples for question `number`, without `exclude`; deterministic for a seed.

  As in GPT-3, every question gets its own draw.
  """
  drawn = np.random.default_rng([seed, number]).choice(pool, size=min(shots + 1, pool), replace=False)
  return [i for i in drawn.tolist() if i != exclude][:shots]


class FewShotPromptBuilder:
  """Builds few-shot prompts that leave room for an answer."""

  def __init__(
    self,
    template: Template,
    pool: Sequence[Fields],  # examples of the training split
    shots: int,
    seed: int,
    encode: Callable[[str], list[int]],  # adds special tokens
    max_tokens: int | None = None,  # maximum tokens; None: no limit
    pool_is_evaluated: bool = False,  # questions come from the pool: exclude each from its own shots
  ):
    if shots > len(pool) - pool_is_evaluated:
      raise UserError(f"invalid --shots={shots}: the training split has only {len(pool)} examples")
    self._template, self._pool, self._shots, self._seed = template, pool, shots, seed
    self._encode, self._max_tokens, self._pool_is_evaluated = encode, max_tokens, pool_is_evaluated

  def __call__(self, number: int, example: Fields) -> FewShotPrompt:
    """Returns the prompt of one example; drops shots that do not fit, starting with the first."""
    exclude = number if self._pool_is_evaluated else None
    chosen = [self._pool[i] for i in draw_shots(self._seed, number, self._shots, len(self._pool), exclude)]
    question = self._template.question(example)
    solved = [self._template.solved(shot) for shot in chosen]
    for dropped in range(len(solved) + 1):
      text = _fill(self._template.instruction, example) + "".join(solved[dropped:]) + question
      tokens = self._encode(text)
      if self._max_tokens is None or len(tokens) <= self._max_tokens:
        return FewShotPrompt(text, tokens, len(solved) - dropped)
    raise UserError(
      f"the prompt of example {number} is too long even without shots: {len(tokens)} tokens (limit {self._max_tokens})",
      begins=repr(text[:80]),
      try_="a shorter template, a smaller --max_length, or a larger --inputs_length",
    )

  def all(self, examples: Sequence[Fields]) -> list[FewShotPrompt]:
    if examples:
      self._template.check(examples[0], "this task")
    return [self(number, example) for number, example in enumerate(examples)]


def describe_dropped_shots(prompts: Sequence[FewShotPrompt], shots: int) -> str:
  """Describes how many prompts lost shots; '' if none did."""
  short = [prompt.shots for prompt in prompts if prompt.shots < shots]
  if not short:
    return ""
  return (
    f"{len(short):,} of {len(prompts):,} prompts cannot fit {shots} shots: "
    f"they have {np.mean(short):.1f} on average, at least {min(short)}"
  )
