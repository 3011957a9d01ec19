"""The characters of a vocabulary's words, as a constant of a model."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class CharacterTable:
  """ids [words, characters of a word]: see vocabularies.characters. Tables with one fingerprint are equal."""

  fingerprint: str
  ids: np.ndarray = dataclasses.field(compare=False, repr=False)
