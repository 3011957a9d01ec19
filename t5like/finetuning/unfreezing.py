"""Gradual unfreezing: one more layer of every stack at a time, from the top."""

from __future__ import annotations

import dataclasses
import functools

from t5like.errors import UserError, is_integer
from t5like.finetuning.trainable import Episode, Trainable, require_head
from t5like.finetuning.variables import EMBEDDINGS, HEAD, Variable, Variables
from t5like.training.guards.early_stopping import EarlyStopping


@dataclasses.dataclass(frozen=True)
class _FromTheTop(Trainable):
  """The order of unfreezing; subclasses set when.

  layers                  of every stack that start to train in each episode: encoder and decoder in parallel
  embeddings_throughout   the embeddings, with a tied output, train from the start (T5, section 3.5.1); False: they are
                          the last to train, in an episode of their own (ULMFiT)
  head_first              the first episode trains only the head (ULMFiT)

  What follows the layers trains with the last of them: final norms, pooler, output; the head trains throughout.
  """

  layers: int = 1
  embeddings_throughout: bool = True
  head_first: bool = False

  def __post_init__(self):
    if not is_integer(self.layers) or self.layers < 1:
      raise UserError(f"invalid {type(self).__name__}.layers: {self.layers!r}", expected="an integer of at least 1")

  def episodes(self, variables: Variables, steps: int) -> list[Episode]:
    if self.head_first:
      require_head(variables, f"{type(self).__name__}.head_first")
    count = -(-variables.depth // self.layers) + int(self.head_first) + int(not self.embeddings_throughout)
    found = []
    for number, first_step in enumerate(self._first_steps(count, steps)):
      top = min((number + int(not self.head_first)) * self.layers, variables.depth)
      embeddings = self.embeddings_throughout or number == count - 1
      selection = variables.select(functools.partial(_trains, variables, top, embeddings))
      what = f"the top {top} of {variables.depth} layers" if top else "the head"
      title = "everything" if top == variables.depth and embeddings else what + " and the embeddings" * embeddings
      found.append(Episode(first_step, selection, title))
    return found

  def _first_steps(self, count: int, steps: int) -> list[int | None]:
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class GradualUnfreezing(_FromTheTop):
  """Unfreezes by schedule.

  period  steps of an episode; None: the run in equal episodes, as in T5 (2^18 steps in 12)
  """

  period: int | None = None

  def __post_init__(self):
    super().__post_init__()
    if self.period is not None and not (is_integer(self.period) and self.period >= 1):
      raise UserError(f"invalid GradualUnfreezing.period: {self.period!r}", expected="a number of steps, or None")

  def _first_steps(self, count: int, steps: int) -> list[int | None]:
    if self.period is None and steps < count:
      raise UserError(
        f"{steps} steps are too few for the {count} episodes of GradualUnfreezing",
        try_=f"--gin.TRAIN_STEPS={count} or more, or GradualUnfreezing.layers = {-(-count // max(steps, 1))}",
      )
    return [number * steps // count if self.period is None else number * self.period for number in range(count)]


@dataclasses.dataclass(frozen=True)
class UnfreezeOnPlateau(_FromTheTop):
  """Unfreezes when a score of the evaluations in the run stops improving.

  metric            full name of the score, such as 'eval/glue_rte/accuracy'
  patience          evaluations without improvement in an episode before the next one starts
  higher_is_better  whether a higher score is better; None: not for a loss or an error
  min_delta         smallest improvement that counts
  """

  metric: str = ""
  patience: int = 1
  higher_is_better: bool | None = None
  min_delta: float = 0.0

  def __post_init__(self):
    super().__post_init__()
    if not self.metric:
      raise UserError("UnfreezeOnPlateau needs a metric", try_="--gin.UnfreezeOnPlateau.metric=eval/glue_rte/accuracy")
    self.stopping()

  def stopping(self) -> EarlyStopping:
    """Returns a new detector of a plateau; raises UserError for invalid settings."""
    return EarlyStopping(self.metric, self.patience, self.higher_is_better, self.min_delta)

  def _first_steps(self, count: int, steps: int) -> list[int | None]:
    return [0, *[None] * (count - 1)]


def _trains(variables: Variables, top: int, embeddings: bool, variable: Variable) -> bool:
  """Returns whether a variable trains together with the top `top` layers; with none of them, only the head does."""
  if variable.place == EMBEDDINGS:
    return embeddings
  return variable.place == HEAD if top == 0 else variables.layers_above(variable) < top
