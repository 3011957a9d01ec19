"""Probes: linear heads on the states of one layer, or on a mix of all, to see what a layer knows."""

import dataclasses
from typing import ClassVar

import flax.linen as nn

from t5like.errors import UserError, is_integer
from t5like.models.heads.with_head import WithHead, attach_head

MIX = "mix"


@dataclasses.dataclass(frozen=True)
class Probe:
  """A linear head for a task's labels without dropout. Train it alone (HeadOnly), or it is not a probe.

  layer    whose states it reads: 0 are the embeddings, 1 is the first layer, -1 the last; "mix": a learned mix of all
  pooling  of a row's states, for heads with an answer per row
  """

  layer: int | str = MIX
  pooling: str = "mean"

  form: ClassVar[str] = "task"  # the labels of the task determine the head

  def __post_init__(self):
    if self.layer != MIX and not is_integer(self.layer):
      raise UserError(f"invalid Probe.layer: {self.layer!r}", expected="the number of a layer from 0, or mix")

  def attach(self, model: nn.Module, head: nn.Module) -> WithHead:
    """Returns the model with a head, such as ClassificationHead(labels=...), as a probe."""
    settings = {"mix_layers": self.layer == MIX, "pooling": self.pooling, "dropout_rate": 0.0, "hidden": None}
    known = {field.name for field in dataclasses.fields(head)}
    if "mix_layers" not in known:
      raise UserError(f"a {type(head).__name__} cannot be a probe", expected="a task with labels")
    head = head.clone(**{name: value for name, value in settings.items() if name in known})
    model = attach_head(model, head).clone(layer=None if self.layer == MIX else self.layer)
    model.check()
    return model
