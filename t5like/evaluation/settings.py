"""How tasks and texts are evaluated, as data: what a caller sets, and what tells one evaluation from another."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Mapping
from typing import Any

from t5like.decoding import DecodeSettings
from t5like.decoding.options import STOP
from t5like.errors import InvalidSetting, UserError, nearest

RANKINGS = ("sum", "mean")
_DECODING = (*(field.name for field in dataclasses.fields(DecodeSettings) if field.name != "stop_sequences"), STOP)

Identity = Mapping[str, Any]  # JSON values, by the names of settings; those at their defaults are left out


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
  """How a task is evaluated. The defaults are those of the training loop: greedy decoding of all examples."""

  split: str = "validation"
  examples: int = 0  # the first N of each task; 0: all
  # Rank candidates by the likelihood of all their tokens ("sum") or of one ("mean"); None: write answers.
  rank: str | None = None
  candidates: str | None = None  # a field of each example or a file; None: the task's labels
  # Solved examples before each question, and their split; None: inputs as in training, 0: the prompt alone.
  shots: int | None = None
  shots_split: str = "train"
  prompt: str | None = None  # the file of a prompt template
  infill: bool = False  # T5: the answer fills the first sentinel, as in pre-training
  inputs_length: int | None = None  # tokens; None: as in training
  average: bool = False  # the moving average of the parameters, where the run kept one
  # Fields of DecodeSettings, and texts that end an answer under "stop".
  decoding: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  batch_size: int | None = None  # None: the run's, or 32
  task_modules: tuple[str, ...] = ()  # the user's modules in which tasks and metrics are looked up
  cache_dir: str | None = None  # None: ~/.cache/t5like

  def __post_init__(self):
    check_numbers(self, at_least_0=("examples", "shots"), at_least_1=("inputs_length", "batch_size"))
    if self.rank not in (None, *RANKINGS):
      raise InvalidSetting(
        f"rank={self.rank} cannot work", expected=" or ".join(RANKINGS), nearest=nearest(self.rank, RANKINGS)
      )
    if self.candidates is not None and not self.rank:
      raise InvalidSetting("candidates belongs to --rank", try_=f"--rank --candidates={self.candidates}")
    written = [name for name in self.decoding if name != "seed"]
    if self.rank and written:
      raise InvalidSetting("rank writes nothing", expected=f"no --{written[0]} beside it")
    if self.decoding.get("n_best", 1) > 1:
      raise InvalidSetting("n_best: an evaluation looks at the best answer only", expected="no --n_best")

  @classmethod
  def of(cls, **given: Any) -> EvaluationSettings:
    """Settings by name; those of decoding (`beams=4`) may be given next to the others."""
    names = [field.name for field in dataclasses.fields(cls)]
    for name in given:
      if name not in (*names, *_DECODING):
        raise UserError(f"no setting {name!r}", nearest=nearest(name, [*names, *_DECODING]), known=", ".join(names))
    decoding = {name: value for name, value in given.items() if name not in names}
    own = {name: value for name, value in given.items() if name in names}
    return cls(**own | {"decoding": {**own.get("decoding", {}), **decoding}})

  @property
  def prompted(self) -> bool:
    """Whether questions are put by a template, and not as in training."""
    return self.shots is not None or self.prompt is not None or self.infill

  @property
  def seed(self) -> int:
    return self.decoding.get("seed", 0)

  def identity(self, template: object = None) -> dict[str, Any]:
    """The settings that decide scores: two evaluations of a checkpoint with the same are the same evaluation.

    template: the prompt template that was read, where questions are put by one.
    """
    seeded = self.shots or not self.rank
    found = {
      "rank": self.rank,
      "decoding": {name: value for name, value in sorted(self.decoding.items()) if name != "seed" or seeded},
      "candidates": self.candidates,
      "inputs_length": self.inputs_length,
      "average": self.average,
      "examples": self.examples,
    }
    if self.prompted:
      found |= {"prompt": f"{zlib.crc32(repr(template).encode()):08x}", "infill": self.infill}
      found |= {"shots": self.shots, "shots_split": self.shots_split if self.shots_split != "train" else None}
    return json.loads(json.dumps({name: value for name, value in found.items() if value}))


@dataclasses.dataclass(frozen=True)
class TextLossSettings:
  """What text a model has to predict, and how it is read."""

  tasks: tuple[str, ...] = ()  # corpora, or tasks whose targets count; (): the run's own
  split: str = "validation"
  text: str | None = None  # a file in place of tasks
  text_field: str = "text"  # of a JSON line
  examples: int = 0
  window: int | None = None  # tokens read together; None: as many as the model takes
  stride: int | None = None  # of a language model's windows; None: half a window
  objective: str | None = None  # what a denoiser fills in; None: as in training
  inputs_length: int | None = None
  average: bool = False
  batch_size: int = 16
  task_modules: tuple[str, ...] = ()
  cache_dir: str | None = None

  def __post_init__(self):
    check_numbers(self, at_least_0=("examples",), at_least_1=("inputs_length", "batch_size", "window", "stride"))


def check_numbers(settings: object, at_least_0: tuple[str, ...] = (), at_least_1: tuple[str, ...] = ()) -> None:
  for least, names in ((0, at_least_0), (1, at_least_1)):
    for name in names:
      value = getattr(settings, name)
      if value is not None and value < least:
        raise InvalidSetting(f"{name}={value} cannot work", expected=f"{least} or more")


def description(identity: Identity) -> str:
  """An identity as text, for tables and the names of files; '' for greedy decoding of all examples."""
  has, words = identity.get, []
  words += [f"rank {identity['rank']}"] if has("rank") else []
  words += [f"{name} {value}" for name, value in has("decoding", {}).items()]
  words += [f"candidates {identity['candidates']}"] if has("candidates") else []
  if has("prompt"):
    words.append(f"shots {has('shots', 0)} prompt {identity['prompt']}" + (" infill" if has("infill") else ""))
    words += [f"from {identity['shots_split']}"] if has("shots") and has("shots_split") else []
  words += [f"inputs {identity['inputs_length']}"] if has("inputs_length") else []
  words += ["average"] if has("average") else []
  words += [f"first {identity['examples']}"] if has("examples") else []
  return ", ".join(words)
