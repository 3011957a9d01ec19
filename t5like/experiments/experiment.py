"""The settings of a training run, which gin files bind as `train.NAME`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import flax.linen as nn
import gin

from t5like.decoding.options import OPTIONS
from t5like.errors import UserError, is_integer, is_number
from t5like.experiments.corpus_files import EXPECTED, CorpusFiles, are_corpus_files, are_several
from t5like.files import storage
from t5like.files.storage import DEFAULT_ROOT
from t5like.finetuning import Everything, LayerRates, Trainable
from t5like.finetuning.distillation import Distillation
from t5like.finetuning.methods import Method
from t5like.models.heads import WithHead
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
# Far beyond practical values, and below the limits of arrays and counters.
_MAX_VALUES = {"batch_size": 2**22, "steps": 2**31 - 1, "loader_threads": 1024, "loader_processes": 1024}
_MAX_LENGTH = 2**20
HEAD_TASKS = ("_classification", "_tagging", "_spans", "_embedding")  # names of tasks in an encoder form


@dataclasses.dataclass(frozen=True)
class Experiment:
  """One `t5like train` run."""

  # Where everything is written; a stopped run resumes from there.
  model_dir: str
  model: nn.Module
  # A vocabulary's name or file; must not exceed the model's embedding.
  vocabulary: str
  # A registered seqio task, and the modules to import so that it is registered.
  task: str
  # Tokens per row: {"inputs": 512} for an objective, which computes its targets' length,
  # {"inputs": 512, "targets": 32} for labeled examples.
  lengths: Mapping[str, int]
  # Rows per step, over all devices.
  batch_size: int
  steps: int
  optimizer: Optimizer
  # The objective for a corpus; None for labeled examples; "task" to take it from the task's name:
  # c4_span_corruption is span corruption of the corpus c4, a name without an objective is a labeled task.
  objective: Objective | Literal["task"] | None = "task"
  # The head for a task with labels: "task" chooses it by the task's labels; None: none, the task is text to text.
  head: nn.Module | Literal["task"] | None = "task"
  seed: int = 0
  task_modules: Sequence[str] = ()
  # Registers `task` as a corpus of files: {"train": "news/*.jsonl.gz"}; `NAME_text_to_text`, `NAME_classification`,
  # `NAME_tagging` and `NAME_embedding` as labeled rows. Several corpora by name are a mixture, whose rates are their
  # numbers of tokens: {"books": {"train": "books/*.txt"}, ...}.
  corpus_files: CorpusFiles = dataclasses.field(default_factory=dict)
  # Truncates the corpus to its first N tokens, which are repeated; None: all.
  unique_tokens: int | None = None
  # Mixing rates by task, including `task` (only the ratios matter). `objective` applies to a corpus among labeled
  # tasks.
  mix: Mapping[str, float] = dataclasses.field(default_factory=dict)
  # Raises the rates of a mixture, and those of `mix`, to the power 1 / temperature, so that small corpora are seen
  # more often; None: 1.
  mixing_temperature: float | None = None
  # mBART's language codes by task or corpus, for inputs and targets: {"de": "de_DE", "wmt_ro": ("en_XX", "ro_RO")}.
  languages: Mapping[str, str | Sequence[str]] = dataclasses.field(default_factory=dict)
  # Whether labeled examples are packed into rows; None: only if the run has no corpus.
  pack: bool | None = None
  # For a head: a batch is padded to the first of these lengths that holds its longest row, or to `lengths`. The step is
  # compiled once for each; they must be few.
  length_buckets: Sequence[int] = ()
  # Other lengths or batch sizes for the first steps: [{"steps": 900_000, "lengths": {"inputs": 128}}] is BERT's
  # first phase, [{"steps": 1000, "batch_size": 32}] a batch size ramp. Omitted values are as above.
  phases: Sequence[Mapping[str, Any]] = ()
  # Whether a decoder also learns to predict the inputs of an example, and not only its targets.
  loss_on_inputs: bool = False
  split: str = "train"
  # Reads the task through seqio in every run, instead of a token cache; the run card lists the drawbacks.
  stream: bool = False
  mesh: MeshAxes = MeshAxes()
  z_loss: float = 1e-4
  label_smoothing: float = 0.0
  # What trains, by step: everything, the head, all above a layer, ... (t5like.finetuning); and the rate of each layer
  # as a multiple of the optimizer's.
  trainable: Trainable = Everything()
  layer_rates: LayerRates | None = None
  # A frozen teacher that the model imitates; None: none. Checkpoints hold the model only.
  distillation: Distillation | None = None
  # The loss of a step is its sum over target tokens divided by their number, or by this fixed factor.
  loss_normalizer: float | None = None
  # Splits a batch into N sequential microbatches: less memory, more time, the same result.
  microbatches: int = 1
  # Bitwise reproducible runs and resumes on the same kind of GPU; False: the fastest kernels, with different rounding.
  deterministic: bool = True
  # If loss or gradients are not finite: "stop", "skip" or "rollback" (see training/guards/finiteness.py).
  nonfinite: str = "stop"
  # What a run without checkpoints starts from: the full state of another run (with optimizer and step), or only
  # parameters (from t5like, T5X or Hugging Face); and what may be missing there.
  restore_from: str | None = None
  init_from: str | None = None
  restore: Restore = Restore()
  # Periods in steps; 0 disables one.
  log_period: int = 100
  checkpoint_period: int = 5_000
  eval_period: int = 0
  eval_loss_period: int = 0
  norms_period: int = 0
  # Also saves a checkpoint every N minutes; and which checkpoints are kept.
  checkpoint_minutes: float = 10.0
  keep: CheckpointRetention = CheckpointRetention()
  # Evaluation, also at the end: the split ('' for none), the maximum number of examples to decode (0: all), and the
  # number of batches for the loss on a corpus.
  eval_split: str = ""
  # Labeled tasks to evaluate on, if different from those trained on.
  eval_tasks: Sequence[str] = ()
  eval_examples: int = 0
  # Decoding settings of evaluations, and of the trained model where the user gives none: {"beams": 4, "length_penalty":
  # 2.0}. Names are those of decoding.DecodeSettings, and "stop".
  decoding: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  eval_loss_batches: int = 16
  early_stopping: EarlyStopping = dataclasses.field(default_factory=EarlyStopping)
  # Exits with status 124, to be restarted, if no step finishes for this long; 0: never.
  watchdog_minutes: float = 30.0
  # The first and last step to profile.
  profile_steps: Sequence[int] = (0, 0)
  # A Weights & Biases project to log to.
  wandb_project: str = ""
  # The folder of token caches, and the number of threads that read batches.
  cache_dir: str = DEFAULT_ROOT
  # A corpus on gs:// with more gigabytes is read in place, not copied to this machine. None: half of the free disk
  # space. A given number is also the limit for a corpus on a (slow) disk.
  cache_local_gb: float | None = None
  loader_threads: int = 1
  # Processes that read batches, each with that many threads; 0: only threads.
  loader_processes: int = 0
  # A custom train step, `(model, optimizer, settings, state, batch) -> (state, metrics)`; None: training.train_step.
  step: Callable[..., Any] | None = None
  # The complete gin text of an experiment that was read from gin; '' for one built or changed in Python.
  config_text: str = dataclasses.field(default="", init=False, repr=False, compare=False)

  @property
  def packs(self) -> bool:
    if self.pack is None:
      return self.objective is None and not self.has_head
    return self.pack

  @property
  def train_layout(self) -> str:
    """The layout of training batches (data.layouts); evaluations have that of the model."""
    return "decoder_loss_on_inputs" if self.loss_on_inputs else self.model.batch_layout

  @property
  def has_head(self) -> bool:
    """Whether a head is trained on labels: an encoder, a task in an encoder form, or a HEAD that is set."""
    if isinstance(self.model, WithHead):
      return True
    if self.objective is not None or self.head is None or not self.task:
      return False
    return self.head != "task" or self.model.batch_layout == "encoder" or self.task.endswith(HEAD_TASKS)

  @property
  def carries_state(self) -> bool:
    """Whether a recurrent model is trained on running text: row b of a batch continues that of the batch before."""
    return self.objective is not None and self.objective.shifted and hasattr(self.model, "initial_carry")

  @property
  def method(self) -> Method | None:
    """The method that trains a few new parameters on a frozen base, such as LoRA; None: another kind of training."""
    return self.trainable if isinstance(self.trainable, Method) else None

  def tuned(self) -> Experiment:
    """Returns the experiment with the model that is trained: with the extensions of its method, if it has one."""
    if self.method is None:
      return self
    return self.changed(model=self.method.tune(self.model.clone(tuning=None)))

  def changed(self, gin: str = "", **changes: Any) -> Experiment:
    """Returns the experiment with other fields. `gin` sets them in its text, if that does not imply them already."""
    changed = dataclasses.replace(self, **changes)
    if self.config_text:
      object.__setattr__(changed, "config_text", f"{self.config_text}\n\n{gin}\n" if gin else self.config_text)
    return changed

  def __post_init__(self):
    for name in ("model_dir", "cache_dir", "restore_from", "init_from"):
      if isinstance(getattr(self, name), os.PathLike):
        object.__setattr__(self, name, os.fspath(getattr(self, name)))
    self._check_types()
    self._resolve_objective()
    for name in _COUNTS:
      if getattr(self, name) < 1:
        raise _invalid(name, getattr(self, name), "an integer of at least 1")
    for name in (*_NUMBERS, "checkpoint_minutes", "watchdog_minutes"):
      if getattr(self, name) < 0:
        raise _invalid(name, getattr(self, name), "0 or more")
    for name, limit in _MAX_VALUES.items():
      if getattr(self, name) > limit:
        raise _invalid(name, getattr(self, name), f"at most {limit:,}")
    if self.nonfinite not in POLICIES:
      raise _invalid("nonfinite", self.nonfinite, f"one of {', '.join(POLICIES)}")
    if self.seed >= 2**32:
      raise _invalid("seed", self.seed, "below 2^32, as seeds have 32 bits")
    self._check_loss()
    self._check_profile_steps()
    for name in ("model_dir", "restore_from", "init_from"):  # where Orbax writes and reads
      given = str(getattr(self, name))
      if storage.is_remote(given) and not given.startswith("gs://"):
        raise _invalid(name, given, "a local path or gs://BUCKET/...")
    for name in ("eval_tasks", "eval_loss_period"):
      if getattr(self, name) and not self.eval_split:
        raise UserError(
          f"{name.upper()} = {getattr(self, name)!r} has no effect: EVAL_SPLIT is empty",
          try_="--gin.EVAL_SPLIT=validation",
        )
    self._check_data()
    if self.has_head:
      self._check_head()
    for phase in self.phases:
      self._check_phase(phase)
    if self.stream and self.phases:
      raise UserError("STREAM does not support PHASES", try_="--gin.STREAM=False, or --gin.PHASES=[]")
    for lengths in (self.lengths, *(phase["lengths"] for phase in self.phases if "lengths" in phase)):
      self._check_lengths(lengths)

  def _check_head(self) -> None:
    for name, value in (("stream", self.stream), ("pack", self.pack)):
      if value:
        raise UserError(f"{name.upper()} = True does not support a head", try_=f"--gin.{name.upper()}=False")
    if self.objective is not None:
      raise UserError(
        f"the model has a head for labels and takes no objective, but OBJECTIVE is {self.objective.name}",
        try_="--gin_file=runs/finetune.gin and a task with labels, such as --gin.TASK=glue_sst2_classification",
      )

  def _check_loss(self) -> None:
    if not is_number(self.z_loss) or not 0 <= self.z_loss < float("inf"):
      raise _invalid("z_loss", self.z_loss, "a finite number of at least 0")
    if not is_number(self.label_smoothing) or not 0 <= self.label_smoothing < 1:
      raise _invalid("label_smoothing", self.label_smoothing, "at least 0 and below 1")
    if self.loss_normalizer is not None and not (is_number(self.loss_normalizer) and self.loss_normalizer > 0):
      raise _invalid(
        "loss_normalizer", self.loss_normalizer, "a number above 0, or None for the number of target tokens"
      )
    if self.loss_on_inputs and (self.has_head or self.model.batch_layout != "decoder"):
      reason = "a head does not predict tokens" if self.has_head else f"{type(self.model).__name__} sees its inputs"
      raise UserError(f"train.loss_on_inputs = True is for decoders: {reason}", try_="--gin.train.loss_on_inputs=False")

  def _check_profile_steps(self) -> None:
    steps = self.profile_steps
    pair = isinstance(steps, list | tuple) and len(steps) == 2 and all(map(is_integer, steps))
    if not pair or not (1 <= steps[0] <= steps[1] or tuple(steps) == (0, 0)):
      raise _invalid("profile_steps", steps, "the first and last step to profile, such as (10, 14), or (0, 0) for none")

  def _check_lengths(self, lengths: Mapping[str, int]) -> None:
    expected = {"inputs"} if self.objective is not None or self.has_head else {"inputs", "targets"}
    if set(lengths) == {"inputs"} != expected:
      raise UserError(
        f"LENGTHS = {dict(lengths)!r} has no targets, and task {self.task!r} has no objective",
        corpus=f"--gin.TASK={self.task}_span_corruption, or a file in objectives/, which determines the targets",
        labeled="--gin.LENGTHS=\"{'inputs': 512, 'targets': 62}\"",
        own_objective="import its module in a gin file, so that a name such as novels_mine is known",
      )
    if not expected <= set(lengths) <= {"inputs", "targets"}:
      raise _invalid("lengths", dict(lengths), f"the lengths of {' and '.join(sorted(expected))}")
    for name, length in lengths.items():
      if not is_integer(length) or not 2 <= length <= _MAX_LENGTH:
        raise _invalid("lengths", dict(lengths), f"2 to {_MAX_LENGTH:,} tokens of {name}")

  def _check_data(self) -> None:
    if self.unique_tokens is not None and (not is_integer(self.unique_tokens) or self.unique_tokens < 1):
      raise _invalid("unique_tokens", self.unique_tokens, "a number of tokens, or None for all of the corpus")
    if self.unique_tokens is not None and self.objective is None:
      raise UserError("UNIQUE_TOKENS needs a corpus, but this run has no objective", try_="--gin.UNIQUE_TOKENS=None")
    rates = self.mix.values() if isinstance(self.mix, Mapping) else [None]
    if not all(isinstance(rate, int | float) and rate > 0 for rate in rates):
      raise _invalid("mix", self.mix, "positive rates by task, such as {'glue_cola': 8551, 'glue_sst2': 67349}")
    if self.mix and self.task not in self.mix:
      raise UserError(
        f"MIX has no rate for TASK = {self.task!r}",
        known=", ".join(self.mix),
        try_=f"--gin.TASK={next(iter(self.mix))}",
      )
    if self.stream and (are_several(self.corpus_files) or self.mixing_temperature):
      raise UserError("STREAM does not support several CORPUS_FILES or MIXING_TEMPERATURE", try_="--gin.STREAM=False")
    opened = getattr(self.model.config, "opening_id", None) is not None
    if self.stream and (self.languages or opened):
      raise UserError("STREAM does not support BART and mBART, whose texts have opening tokens or language codes")
    if self.mix and self.stream:
      raise UserError("STREAM does not support MIX", try_="--gin.STREAM=False, or register a seqio mixture")

  def _check_phase(self, phase: Any) -> None:
    if not isinstance(phase, Mapping) or not {"steps"} < set(phase) <= {"steps", "lengths", "batch_size"}:
      raise _invalid("phases", self.phases, _PHASES)
    for name in ("steps", "batch_size"):
      if not is_integer(phase.get(name, 1)) or not 1 <= phase.get(name, 1) <= _MAX_VALUES[name]:
        raise _invalid("phases", self.phases, f"{name} from 1 to {_MAX_VALUES[name]:,}")
    if not isinstance(phase.get("lengths", {}), Mapping):
      raise _invalid("phases", self.phases, _PHASES)

  def _resolve_objective(self) -> None:
    corpus, named = split_task_name(self.task)
    if self.objective == "task":
      object.__setattr__(self, "objective", CATALOGUE[named] if named else None)
    elif self.objective is None or named is None:
      return
    elif self.objective != CATALOGUE[named]:
      raise UserError(
        f"task {self.task!r} implies the objective {named}, but OBJECTIVE is {self.objective}",
        try_=f"--gin.TASK={corpus}",
      )
    object.__setattr__(self, "task", corpus)

  def _check_types(self) -> None:
    for name in ("model_dir", "vocabulary", "task", "split", "eval_split", "cache_dir", "wandb_project"):
      if not isinstance(getattr(self, name), str):
        raise _invalid(name, getattr(self, name), "a string")
    for name in (*_COUNTS, *_NUMBERS):
      if not is_integer(getattr(self, name)):
        raise _invalid(name, getattr(self, name), "an integer")
    for name in ("model_dir", "split", "cache_dir"):  # TASK is empty for a converted model
      if not getattr(self, name):
        raise _invalid(name, "", "a non-empty string")
    for name in ("restore_from", "init_from"):
      if not isinstance(getattr(self, name), str | None):
        raise _invalid(name, getattr(self, name), "a folder with checkpoints, or None")
    for name, example in (("task_modules", "my.tasks"), ("eval_tasks", "glue_stsb_classification")):
      given = getattr(self, name)
      if not isinstance(given, list | tuple) or not all(isinstance(entry, str) for entry in given):
        raise _invalid(name, given, f"a list of names, such as ['{example}']")
    if not isinstance(self.phases, list | tuple):
      raise _invalid("phases", self.phases, _PHASES)
    buckets = self.length_buckets
    if not isinstance(buckets, list | tuple) or not all(is_integer(n) and n > 0 for n in buckets):
      raise _invalid("length_buckets", buckets, "a list of lengths, such as [32, 64, 128], or [] for equal lengths")
    for name in ("checkpoint_minutes", "watchdog_minutes"):
      if not is_number(getattr(self, name)):
        raise _invalid(name, getattr(self, name), "a number of minutes")
    limit = self.cache_local_gb
    if limit is not None and not (is_number(limit) and 0 < limit < float("inf")):
      raise _invalid("cache_local_gb", limit, "a number of gigabytes, or None for half of the free disk space")
    for name in ("loss_on_inputs", "stream", "deterministic"):
      if not isinstance(getattr(self, name), bool):
        raise _invalid(name, getattr(self, name), "True or False")
    if not isinstance(self.pack, bool | None):
      raise _invalid("pack", self.pack, "True, False or None")
    if self.step is not None and not callable(self.step):
      raise _invalid("step", self.step, "a function, without parentheses, as in @my_step")
    if not are_corpus_files(self.corpus_files):
      raise _invalid("corpus_files", self.corpus_files, EXPECTED)
    temperature = self.mixing_temperature
    if temperature is not None and not (is_number(temperature) and 0 < temperature < float("inf")):
      raise _invalid("mixing_temperature", temperature, "a positive number, or None")
    if not isinstance(self.decoding, Mapping) or not set(self.decoding) <= set(OPTIONS):
      raise _invalid("decoding", self.decoding, f"a dict such as {{'beams': 4}} of {', '.join(sorted(OPTIONS))}")
    if not isinstance(self.languages, Mapping) or not all(_is_language(codes) for codes in self.languages.values()):
      raise _invalid("languages", self.languages, "codes by task: {'de': 'de_DE', 'ro': ('en_XX', 'ro_RO')}")
    if not isinstance(self.lengths, Mapping):
      raise _invalid("lengths", self.lengths, "a dict such as {'inputs': 512}")
    for name, kind, example in (
      ("model", nn.Module, "T5"), ("optimizer", Optimizer, "adafactor"), ("mesh", MeshAxes, "MESH"),
      ("keep", CheckpointRetention, "KEEP"), ("restore", Restore, "RESTORE"),
      ("early_stopping", EarlyStopping, "EARLY_STOPPING"),
    ):  # fmt: skip
      if not isinstance(getattr(self, name), kind):
        named = "; in Python t5like.optimizers.adafactor(0.01)" if kind is Optimizer else ""
        raise _invalid(name, getattr(self, name), f"a {kind.__name__}, with parentheses, as in @{example}(){named}")
    if not isinstance(self.trainable, Trainable):
      raise _invalid("trainable", self.trainable, "what trains, with parentheses, as in @HeadOnly()")
    if not isinstance(self.layer_rates, LayerRates | None):
      raise _invalid("layer_rates", self.layer_rates, "None, or rates with parentheses, as in @LayerwiseDecay()")
    if self.head not in (None, "task") and not hasattr(self.head, "form"):
      raise _invalid("head", self.head, "task, None, or a head with parentheses, as in @ClassificationHead()")
    if self.objective not in (None, "task") and not isinstance(self.objective, Objective):
      raise _invalid("objective", self.objective, "an objective, with parentheses, as in @span_corruption()")


def _is_language(codes: Any) -> bool:
  pair = (codes, codes) if isinstance(codes, str) else codes
  return isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(code, str) for code in pair)


_PHASES = "a list such as [{'steps': 1000, 'lengths': {'inputs': 128}, 'batch_size': 64}]"
# Macros whose name is not the parameter's name in capitals.
_MACROS = {"steps": "TRAIN_STEPS"}


def _invalid(name: str, value: Any, expected: str) -> UserError:
  macro = _MACROS.get(name, name.upper())
  return UserError(f"invalid {macro}: {repr(value)[:200]}", expected=expected, try_=f"--gin.{macro}=...")


def python_only(what: str) -> Any:
  """A placeholder in a configuration for an object that was built in Python and that gin cannot build."""
  raise UserError(
    f"this run was built in Python, with {what}",
    try_="build it in Python again, or register the class with gin and add --task_modules=MODULE",
  )


def python_function(what: str) -> Callable[..., Any]:
  """A placeholder for a function that gin cannot name, such as a train step: a model is loaded without calling it."""
  return lambda *arguments, **named: python_only(what)


gin.external_configurable(Experiment, "train")
gin.external_configurable(python_only)
gin.external_configurable(python_function)


def check_experiment(given: Any) -> None:
  """Raises UserError for what is no experiment."""
  if not isinstance(given, Experiment):
    raise UserError(
      f"not an experiment: {given!r}", expected="t5like.Experiment(...), or t5like.read_experiment([...])"
    )
