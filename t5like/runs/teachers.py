"""The teacher of a run that distills: read, checked against the student, and identified."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import flax.linen as nn

from t5like.errors import UserError
from t5like.experiments.compatibility import model_fingerprint, stack_lengths
from t5like.experiments.experiment import Experiment
from t5like.finetuning.distillation import TEACHER, WithTeacher
from t5like.finetuning.methods import parameter_digest
from t5like.inference.parameters import TunedBase
from t5like.inference.sources import Source, open_source
from t5like.inference.vocabulary import find_vocabulary
from t5like.interop.layouts import flatten
from t5like.models.embedder import check_length
from t5like.objectives import Lengths
from t5like.training.checkpoints.given_parameters import GivenParameters
from t5like.training.state import parameter_count
from t5like.vocabularies import Vocabulary


@dataclasses.dataclass(frozen=True)
class Teacher:
  """A teacher: where it is, its model, and its parameters as a student's run stores them, under `teacher/`."""

  source: str
  step: int | None  # None: a Hugging Face folder
  model: nn.Module
  parameters: TunedBase
  size: int

  def describe(self) -> str:
    """Returns the line of the run card."""
    config, where = self.model.config, self.source + (f", step {self.step:,}" if self.step is not None else "")
    return (
      f"{where}: {type(self.model).__name__}, {self.size:,} parameters, {config.num_encoder_layers}+"
      f"{config.num_decoder_layers} layers, {config.embed_dim} wide, digest {self.parameters.digest}\n"
      "frozen, not in the checkpoints of this run"
    )

  def facts(self) -> dict[str, object]:
    return {"source": self.source, "step": self.step, "digest": self.parameters.digest, "parameters": self.size}


def train_model(experiment: Experiment, teacher: nn.Module | None) -> nn.Module:
  """Returns the model of a train step: that of the experiment, with its teacher if it has one."""
  return WithTeacher(experiment.model, teacher, experiment.distillation) if teacher else experiment.model


def open_teacher(experiment: Experiment) -> tuple[Source, nn.Module]:
  """Opens a run's teacher and returns its model; raises UserError for one that does not fit the student."""
  distillation, student = experiment.distillation, experiment.model
  if experiment.method:
    raise UserError(
      f"{type(experiment.method).__name__} and distillation cannot be combined",
      try_="--gin.DISTILLATION=None, or --gin.TRAINABLE=@Everything()",
    )
  source = open_source(distillation.teacher, student.config.compute_dtype, experiment.task_modules)
  distillation.check(student, source.module)
  return source, source.module


def read_teacher(experiment: Experiment, vocabulary: Vocabulary, lengths: Iterable[Lengths]) -> Teacher:
  """Reads the teacher of a run whose rows have `lengths`."""
  source, model = open_teacher(experiment)
  name, theirs = find_vocabulary(source.folder, model.config, None, source.vocabulary)
  if theirs.fingerprint != vocabulary.fingerprint:
    raise UserError(
      f"the teacher has another vocabulary: {name}, the run {experiment.vocabulary}",
      teacher=source.folder,
      try_=f"--gin.VOCABULARY={name}",
    )
  for each in lengths:
    for length in stack_lengths(model, each).values():
      check_length(model.config, length)

  def read():
    params = source.read(None, False, None)
    return {f"{TEACHER}/{path}": array for path, array in flatten(params).items()}

  arrays, step, where = read(), source.step(None), experiment.distillation.teacher
  digest = parameter_digest({path.removeprefix(f"{TEACHER}/"): array for path, array in arrays.items()})
  parameters = GivenParameters(
    f"the teacher {where}", model_fingerprint(model.config, theirs), arrays, read,
    "another teacher",
  )  # fmt: skip
  return Teacher(where, step, model, TunedBase(digest, parameters), parameter_count(arrays))
