"""What a training run is made of: the parameters that gin files bind as `train.NAME`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import flax.linen as nn
import gin

from t5like.errors import UserError
from t5like.files import storage
from t5like.files.storage import DEFAULT_ROOT
from t5like.objectives import CATALOGUE, Objective, split_task_name
from t5like.parallel import MeshAxes
from t5like.training.checkpoints import CheckpointRetention, Restore
from t5like.training.guards.early_stopping import EarlyStopping
from t5like.training.guards.finiteness import POLICIES
from t5like.training.optimizers import Optimizer

_COUNTS = ("batch_size", "steps", "log_period", "loader_threads", "microbatches", "eval_loss_batches")
_NUMBERS = (
  "checkpoint_period", "eval_period", "eval_loss_period", "norms_period", "eval_examples", "seed", "loader_processes",
)  # fmt: skip
# Far beyond what anybody trains, and below what arrays and counters can hold.
_MOST = {"batch_size": 2**22, "steps": 2**31 - 1, "loader_threads": 1024, "loader_processes": 1024}
_LONGEST_ROW = 2**20


@dataclasses.dataclass(frozen=True)
class Experiment:
  """One `t5like train` run."""

  # Where everything is written; a run that was stopped goes on from there.
  model_dir: str
  model: nn.Module
  # A vocabulary's name or file; must fit the model's embedding.
  vocabulary: str
  # A registered seqio task, and the modules to import so that it is registered.
  task: str
  # Tokens of a row: {"inputs": 512} for an objective, which knows its targets' length,
  # {"inputs": 512, "targets": 32} for labeled examples.
  lengths: Mapping[str, int]
  # Rows of a step, over all devices.
  batch_size: int
  steps: int
  optimizer: Optimizer
  # What to hide and predict in a corpus; None for labeled examples; "task" for what the task's name says:
  # c4_span_corruption is span corruption of the corpus c4, a name without an objective is a labeled task.
  objective: Objective | Literal["task"] | None = "task"
  seed: int = 0
  task_modules: Sequence[str] = ()
  # Makes `task` a corpus of files: {"train": "news/*.jsonl.gz"}.
  corpus_files: Mapping[str, str] = dataclasses.field(default_factory=dict)
  # Only the first so many tokens of the corpus are used, again and again; None: all.
  unique_tokens: int | None = None
  # Tasks that are trained together with `task`, which is one of them, and how often each is drawn (only the ratios
  # count). A corpus among labeled tasks is hidden and predicted as `objective` says.
  mix: Mapping[str, float] = dataclasses.field(default_factory=dict)
  # Labeled examples share rows, as many as fit; False: one a row; None: they do where a run has labeled tasks alone.
  pack: bool | None = None
  # Other lengths or batch sizes for the first steps: [{"steps": 900_000, "lengths": {"inputs": 128}}] is BERT's
  # first phase, [{"steps": 1000, "batch_size": 32}] a batch that grows. What a phase leaves out is as above.
  phases: Sequence[Mapping[str, Any]] = ()
  split: str = "train"
  # Read the task through seqio at every run, in place of a token cache; the run card says what is lost.
  stream: bool = False
  mesh: MeshAxes = MeshAxes()
  z_loss: float = 1e-4
  label_smoothing: float = 0.0
  # The loss of a step is its sum over target tokens divided by their number, or by this fixed factor.
  loss_normalizer: float | None = None
  # A batch is done in so many parts, one after the other: memory for time, with the same result.
  microbatches: int = 1
  # The same bits at every run and resume on a kind of GPU; False: the fastest kernels, which differ in their rounding.
  deterministic: bool = True
  # What follows when loss or gradients are not finite: "stop", "skip" or "rollback" (see training/finiteness.py).
  nonfinite: str = "stop"
  # Where a run that has no checkpoint of its own begins: with the whole state of another (optimizer and step too),
  # or with another's parameters (of t5like, T5X or Hugging Face), and what may be missing there.
  restore_from: str | None = None
  init_from: str | None = None
  restore: Restore = Restore()
  # Periods in steps, independent of each other; 0 switches one off.
  log_period: int = 100
  checkpoint_period: int = 5_000
  eval_period: int = 0
  eval_loss_period: int = 0
  norms_period: int = 0
  # Checkpoints by the clock as well, and which of them are kept.
  checkpoint_minutes: float = 10.0
  keep: CheckpointRetention = CheckpointRetention()
  # Evaluation, at the end too: the split ('' for none); by decoding at most so many examples (0: all), and by the
  # loss of the true answers, over so many batches where a corpus has no end of them.
  eval_split: str = ""
  # Labeled tasks to evaluate on, where they are others than those trained on.
  eval_tasks: Sequence[str] = ()
  eval_examples: int = 0
  eval_loss_batches: int = 16
  early_stopping: EarlyStopping = dataclasses.field(default_factory=EarlyStopping)
  # A run in which no step ends for so long is ended with status 124, to be started again; 0: never.
  watchdog_minutes: float = 30.0
  # Steps to write a profile of, the first and the last.
  profile_steps: Sequence[int] = (0, 0)
  # A project of Weights & Biases to write to as well.
  wandb_project: str = ""
  # The folder of token caches, and how many threads make batches.
  cache_dir: str = DEFAULT_ROOT
  loader_threads: int = 1
  # Processes that make batches, each with that many threads; 0: the threads of this one.
  loader_processes: int = 0
  # The step to train with, `(model, optimizer, settings, state, batch) -> (state, metrics)`; None: training.train_step.
  step: Callable[..., Any] | None = None
  # The complete gin text of an experiment that was read from gin; '' for one built, or changed, in Python.
  config_text: str = dataclasses.field(default="", init=False, repr=False, compare=False)

  @property
  def packs(self) -> bool:
    return self.objective is None if self.pack is None else self.pack

  def __post_init__(self):
    self._check_types()
    self._resolve_objective()
    for name in _COUNTS:
      if getattr(self, name) < 1:
        raise _bad(name, getattr(self, name), "a whole number of at least 1")
    for name in (*_NUMBERS, "checkpoint_minutes", "watchdog_minutes"):
      if getattr(self, name) < 0:
        raise _bad(name, getattr(self, name), "0 or more")
    for name, most in _MOST.items():
      if getattr(self, name) > most:
        raise _bad(name, getattr(self, name), f"at most {most:,}")
    if self.nonfinite not in POLICIES:
      raise _bad("nonfinite", self.nonfinite, f"one of {', '.join(POLICIES)}")
    if self.seed >= 2**32:
      raise _bad("seed", self.seed, "a number below 2^32: the seed of a train state has 32 bits")
    self._check_loss()
    self._check_profile_steps()
    for name in ("model_dir", "restore_from", "init_from"):  # where Orbax writes and reads
      given = str(getattr(self, name))
      if storage.is_remote(given) and not given.startswith("gs://"):
        raise _bad(name, given, "a local path or gs://BUCKET/...")
    for name in ("eval_tasks", "eval_loss_period"):
      if getattr(self, name) and not self.eval_split:
        raise UserError(
          f"{name.upper()} = {getattr(self, name)!r} evaluates nothing: EVAL_SPLIT is empty",
          try_="--gin.EVAL_SPLIT=validation",
        )
    self._check_data()
    for phase in self.phases:
      self._check_phase(phase)
    if self.stream and self.phases:
      raise UserError("a stream has no PHASES: its rows are of one kind", try_="--gin.STREAM=False, or --gin.PHASES=[]")
    for lengths in (self.lengths, *(phase["lengths"] for phase in self.phases if "lengths" in phase)):
      self._check_lengths(lengths)

  def _check_loss(self) -> None:
    if not _is_number(self.z_loss) or not self.z_loss >= 0:
      raise _bad("z_loss", self.z_loss, "a number of at least 0")
    if not _is_number(self.label_smoothing) or not 0 <= self.label_smoothing < 1:
      raise UserError(f"label_smoothing = {self.label_smoothing!r} cannot work", expected="a share from 0 to below 1")
    if self.loss_normalizer is not None and not (_is_number(self.loss_normalizer) and self.loss_normalizer > 0):
      raise _bad("loss_normalizer", self.loss_normalizer, "a number above 0, or None: real target tokens")

  def _check_profile_steps(self) -> None:
    steps = self.profile_steps
    pair = isinstance(steps, list | tuple) and len(steps) == 2 and all(map(_is_whole, steps))
    if not pair or not (1 <= steps[0] <= steps[1] or tuple(steps) == (0, 0)):
      raise _bad("profile_steps", steps, "the first and the last step to profile, such as (10, 14), or (0, 0) for none")

  def _check_lengths(self, lengths: Mapping[str, int]) -> None:
    expected = {"inputs"} if self.objective is not None else {"inputs", "targets"}
    if set(lengths) == {"inputs"} and self.objective is None:
      raise UserError(
        f"LENGTHS = {dict(lengths)!r} says nothing of targets, and {self.task!r} names no objective",
        corpus=f"--gin.TASK={self.task}_span_corruption, or a file of objectives/: its targets follow from the inputs",
        labeled="--gin.LENGTHS=\"{'inputs': 512, 'targets': 62}\"",
      )
    if not expected <= set(lengths) <= {"inputs", "targets"}:
      raise _bad("lengths", dict(lengths), f"the lengths of {' and '.join(sorted(expected))}")
    for name, length in lengths.items():
      if not _is_whole(length) or not 2 <= length <= _LONGEST_ROW:
        raise _bad("lengths", dict(lengths), f"2 to {_LONGEST_ROW:,} tokens of {name}")

  def _check_data(self) -> None:
    if self.unique_tokens is not None and (not _is_whole(self.unique_tokens) or self.unique_tokens < 1):
      raise _bad("unique_tokens", self.unique_tokens, "a number of tokens, or None: all of the corpus")
    if self.unique_tokens is not None and self.objective is None:
      raise UserError("UNIQUE_TOKENS is for a corpus, and this run has no objective", try_="--gin.UNIQUE_TOKENS=None")
    rates = self.mix.values() if isinstance(self.mix, Mapping) else [None]
    if not all(isinstance(rate, int | float) and rate > 0 for rate in rates):
      raise _bad("mix", self.mix, "rates above 0 by task, such as {'glue_cola': 8551, 'glue_sst2': 67349}")
    if self.mix and self.task not in self.mix:
      raise UserError(
        f"MIX has no rate for TASK = {self.task!r}",
        known=", ".join(self.mix),
        try_=f"--gin.TASK={next(iter(self.mix))}",
      )
    if self.mix and self.stream:
      raise UserError("a stream has no MIX: register a seqio mixture", try_="--gin.STREAM=False")

  def _check_phase(self, phase: Any) -> None:
    if not isinstance(phase, Mapping) or not {"steps"} < set(phase) <= {"steps", "lengths", "batch_size"}:
      raise _bad("phases", self.phases, _PHASES)
    for name in ("steps", "batch_size"):
      if not _is_whole(phase.get(name, 1)) or not 1 <= phase.get(name, 1) <= _MOST[name]:
        raise _bad("phases", self.phases, f"{name} from 1 to {_MOST[name]:,}")
    if not isinstance(phase.get("lengths", {}), Mapping):
      raise _bad("phases", self.phases, _PHASES)

  def _resolve_objective(self) -> None:
    corpus, named = split_task_name(self.task)
    if self.objective == "task":
      object.__setattr__(self, "objective", CATALOGUE[named] if named else None)
    elif self.objective is None or named is None:
      return
    elif self.objective != CATALOGUE[named]:
      raise UserError(
        f"the task {self.task!r} names the objective {named}, OBJECTIVE is another: {self.objective}",
        try_=f"--gin.TASK={corpus}",
      )
    object.__setattr__(self, "task", corpus)

  def _check_types(self) -> None:
    for name in ("model_dir", "vocabulary", "task", "split", "eval_split", "cache_dir", "wandb_project"):
      if not isinstance(getattr(self, name), str):
        raise _bad(name, getattr(self, name), "a string")
    for name in (*_COUNTS, *_NUMBERS):
      if not _is_whole(getattr(self, name)):
        raise _bad(name, getattr(self, name), "a whole number")
    for name in ("model_dir", "split", "cache_dir"):  # TASK is empty where a model was trained elsewhere
      if not getattr(self, name):
        raise _bad(name, "", "something: it is empty")
    for name in ("restore_from", "init_from"):
      if not isinstance(getattr(self, name), str | None):
        raise _bad(name, getattr(self, name), "a folder with checkpoints, or None")
    for name in ("task_modules", "eval_tasks"):
      given = getattr(self, name)
      if not isinstance(given, list | tuple) or not all(isinstance(entry, str) for entry in given):
        raise _bad(name, given, "a list of names, such as ['my.tasks']")
    if not isinstance(self.phases, list | tuple):
      raise _bad("phases", self.phases, _PHASES)
    for name in ("checkpoint_minutes", "watchdog_minutes"):
      if not _is_number(getattr(self, name)):
        raise _bad(name, getattr(self, name), "a number of minutes")
    for name in ("stream", "deterministic"):
      if not isinstance(getattr(self, name), bool):
        raise _bad(name, getattr(self, name), "True or False")
    if not isinstance(self.pack, bool | None):
      raise _bad("pack", self.pack, "True, False or None")
    if self.step is not None and not callable(self.step):
      raise _bad("step", self.step, "a function: without parentheses, as in @my_step")
    if not isinstance(self.corpus_files, Mapping) or not all(isinstance(v, str) for v in self.corpus_files.values()):
      raise _bad("corpus_files", self.corpus_files, "a dict such as {'train': 'news/*.jsonl.gz'}")
    if not isinstance(self.lengths, Mapping):
      raise _bad("lengths", self.lengths, "a dict such as {'inputs': 512}")
    for name, kind in (
      ("model", nn.Module), ("optimizer", Optimizer), ("mesh", MeshAxes), ("keep", CheckpointRetention),
      ("restore", Restore), ("early_stopping", EarlyStopping),
    ):  # fmt: skip
      if not isinstance(getattr(self, name), kind):
        raise _bad(name, getattr(self, name), f"a {kind.__name__}: with parentheses, as in @adafactor()")
    if self.objective not in (None, "task") and not isinstance(self.objective, Objective):
      raise _bad("objective", self.objective, "an objective: with parentheses, as in @span_corruption()")


def _is_whole(value: Any) -> bool:
  return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool)


_PHASES = "a list such as [{'steps': 1000, 'lengths': {'inputs': 128}, 'batch_size': 64}]"
# The macro that users set for a parameter, where it is not simply its name in capitals.
_MACROS = {"steps": "TRAIN_STEPS"}


def _bad(name: str, value: Any, expected: str) -> UserError:
  macro = _MACROS.get(name, name.upper())
  return UserError(f"{macro} = {value!r} cannot work", expected=expected, try_=f"--gin.{macro}=...")


def python_only(what: str) -> Any:
  """Stands in a configuration for what was built in Python, and no gin file can build."""
  raise UserError(
    f"this run was built in Python, with {what}",
    try_="build it in Python again, or register the class with gin and name its module: --task_modules=MODULE",
  )


gin.external_configurable(Experiment, "train")
gin.external_configurable(python_only)
