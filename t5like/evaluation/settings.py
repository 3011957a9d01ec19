"""Settings of evaluations, and their identities."""

from __future__ import annotations

import dataclasses
import json
import numbers
import zlib
from collections.abc import Mapping
from typing import Any

from t5like.decoding.options import OPTIONS
from t5like.errors import InvalidSetting, UserError, nearest
from t5like.experiments.corpus_files import are_corpus_files, are_several

RANKINGS = ("sum", "mean")

Identity = Mapping[str, Any]  # JSON values by setting; defaults are left out


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
  """Settings of a task evaluation. Defaults are as in training: greedy decoding of all examples."""

  split: str = "validation"
  examples: int = 0  # the first N of each task; 0: all
  # Rank candidates by the "sum" or "mean" of token log-likelihoods; None: generate answers.
  rank: str | None = None
  candidates: str | None = None  # a field of each example or a file; None: the task's labels
  # Solved examples per prompt, and their split; None: inputs as in training; 0: zero-shot.
  shots: int | None = None
  shots_split: str = "train"
  prompt: str | None = None  # prompt template file
  infill: bool = False  # T5: the answer is the span of the first sentinel, as in pre-training
  inputs_length: int | None = None  # tokens; None: as in training
  average: bool = False  # use the moving average of the parameters
  # Fields of DecodeSettings, and stop texts under "stop".
  decoding: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  batch_size: int | None = None  # None: the run's, or 32
  task_modules: tuple[str, ...] = ()  # the user's modules with tasks and metrics
  cache_dir: str | None = None  # None: ~/.cache/t5like
  # Files by split of the user's own rows, which become the task; {}: a registered task, or the run's own rows.
  files: Mapping[str, str] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    if not are_corpus_files(self.files) or are_several(self.files):
      raise InvalidSetting(f"files={self.files!r} is invalid", expected="files by split: {'validation': 'new.jsonl'}")
    check_numbers(self, at_least_0=("examples", "shots"), at_least_1=("inputs_length", "batch_size"))
    if self.rank not in (None, *RANKINGS):
      raise InvalidSetting(
        f"rank={self.rank} is invalid", expected=" or ".join(RANKINGS), nearest=nearest(self.rank, RANKINGS)
      )
    if self.candidates is not None and not self.rank:
      raise InvalidSetting("candidates requires --rank", try_=f"--rank --candidates={self.candidates}")
    written = [name for name in self.decoding if name != "seed"]
    if self.rank and written:
      raise InvalidSetting("rank does not decode", expected=f"no --{written[0]}")
    if self.decoding.get("n_best", 1) > 1:
      raise InvalidSetting("n_best: only the best answer is evaluated", expected="no --n_best")

  @classmethod
  def of(cls, **given: Any) -> EvaluationSettings:
    """Returns settings by name, including those of decoding (`beams=4`)."""
    names = [field.name for field in dataclasses.fields(cls)]
    for name in given:
      if name not in (*names, *OPTIONS):
        raise UserError(f"unknown setting {name!r}", nearest=nearest(name, [*names, *OPTIONS]), known=", ".join(names))
    decoding = {name: value for name, value in given.items() if name not in names}
    own = {name: value for name, value in given.items() if name in names}
    return cls(**own | {"decoding": {**own.get("decoding", {}), **decoding}})

  @property
  def prompted(self) -> bool:
    """Whether prompts use a template instead of the training format."""
    return self.shots is not None or self.prompt is not None or self.infill

  @property
  def seed(self) -> int:
    return self.decoding.get("seed", 0)

  def identity(self, template: object = None) -> dict[str, Any]:
    """Returns the settings that determine scores: equal identities mean the same evaluation.

    template: the prompt template, if one is used.
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
  """Settings of a loss evaluation."""

  tasks: tuple[str, ...] = ()  # corpora, or tasks with targets; (): the run's own
  split: str = "validation"
  text: str | None = None  # a file instead of tasks
  text_field: str = "text"  # of JSON lines
  examples: int = 0
  window: int | None = None  # context length in tokens; None: the model's maximum
  stride: int | None = None  # tokens between windows, for language models; None: half a window
  objective: str | None = None  # denoising objective; None: as in training
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
      if value is not None and (not isinstance(value, numbers.Integral) or value < least):
        raise InvalidSetting(f"{name}={value!r} is invalid", expected=f"a whole number from {least}")


def description(identity: Identity) -> str:
  """Formats an identity for tables and file names; '' for greedy decoding of all examples."""
  get, words = identity.get, []
  words += [f"rank {identity['rank']}"] if get("rank") else []
  words += [f"{name} {value}" for name, value in get("decoding", {}).items()]
  words += [f"candidates {identity['candidates']}"] if get("candidates") else []
  if get("prompt"):
    words.append(f"shots {get('shots', 0)} prompt {identity['prompt']}" + (" infill" if get("infill") else ""))
    words += [f"from {identity['shots_split']}"] if get("shots") and get("shots_split") else []
  words += [f"inputs {identity['inputs_length']}"] if get("inputs_length") else []
  words += [f"embed {identity['embed']}"] if get("embed") else []
  words += ["average"] if get("average") else []
  words += [f"first {identity['examples']}"] if get("examples") else []
  return ", ".join(words)
