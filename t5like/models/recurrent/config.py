"""Configurations of recurrent models. They also answer what shared parts ask of a model's configuration."""

import dataclasses
import math
from typing import ClassVar

import jax.numpy as jnp

from t5like.errors import UserError

_DTYPES = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class RecurrentConfig:
  """Sizes and numerics of a stack of LSTMs.

  embed_dim    width of the inputs and outputs of the stack
  hidden_dim   width of an LSTM's cell
  """

  vocab_size: int
  embed_dim: int
  hidden_dim: int
  num_layers: int
  param_dtype: str = "float32"
  compute_dtype: str = "float32"
  logits_dtype: str = "float32"

  # Facts that embeddings, dense layers, data and plans read from the configuration of any model.
  num_encoder_layers: ClassVar[int] = 0
  tie_embeddings: ClassVar[bool] = True
  embedding_dim: ClassVar[int | None] = None
  embedding_norm: ClassVar[bool] = False
  max_positions: ClassVar[int | None] = None
  position_limit: ClassVar[int | None] = None
  num_token_types: ClassVar[int] = 0
  opening_id: ClassVar[int | None] = None
  padding_id: ClassVar[int] = 0
  pooler: ClassVar[bool] = False
  positions: ClassVar[str] = "none"
  positions_per_stack: ClassVar[bool] = False
  remat: ClassVar[str] = "none"
  residual: ClassVar[str] = "plain"
  scale_embeddings: ClassVar[bool] = False
  scale_logits: ClassVar[bool] = False
  scan_layers: ClassVar[bool] = False
  start_id: ClassVar[int | None] = None
  embedding_projection: ClassVar[str] = "sum"
  use_bias: ClassVar[bool] = True
  initializer: ClassVar[str] = "normal"
  initializer_stddev: ClassVar[float] = 0.05

  def __post_init__(self):
    for field in ("vocab_size", "embed_dim", "hidden_dim", "num_layers"):
      value = getattr(self, field)
      if type(value) is not int or not 1 <= value < 2**31:
        raise self._invalid(field, "a positive number")
    for field in ("param_dtype", "compute_dtype", "logits_dtype"):
      if getattr(self, field) not in _DTYPES:
        raise self._invalid(field, f"one of {', '.join(_DTYPES)}")
    for field in self._rates:
      value = getattr(self, field)
      if type(value) not in (int, float) or not 0 <= value < 1:
        raise self._invalid(field, "0 <= rate < 1")

  def _invalid(self, field: str, expected: str) -> UserError:
    name = type(self).__name__
    return UserError(
      f"invalid {name}.{field}: {getattr(self, field)!r}", expected=expected, try_=f"--gin.{name}.{field}=VALUE"
    )

  @property
  def _rates(self) -> tuple[str, ...]:
    """The fields that are dropout rates."""
    return tuple(field.name for field in dataclasses.fields(self) if field.name.endswith("dropout"))

  @property
  def num_decoder_layers(self) -> int:
    return self.num_layers

  @property
  def embedding_width(self) -> int:
    return self.embed_dim

  @property
  def dtype(self) -> jnp.dtype:
    """The dtype of activations; cells are float32."""
    return jnp.dtype(self.compute_dtype)


@dataclasses.dataclass(frozen=True)
class AWDLSTMConfig(RecurrentConfig):
  """AWD-LSTM (Merity et al. 2018). Defaults are fastai's; dropout rates are those of its language models.

  All but the last layer are `hidden_dim` wide, the last `embed_dim`. Dropout draws one mask for all positions of a row.
  """

  embedding_dropout: float = 0.02  # drops words: all their occurrences in a batch
  input_dropout: float = 0.25
  hidden_dropout: float = 0.15  # between layers
  weight_dropout: float = 0.2  # of recurrent weights: one mask for all rows and positions
  output_dropout: float = 0.1
  activation_penalty: float = 2.0  # AR: weight of the mean square of the dropped outputs
  temporal_penalty: float = 1.0  # TAR: weight of the mean squared difference of successive outputs

  def __post_init__(self):
    super().__post_init__()
    for field in ("activation_penalty", "temporal_penalty"):
      value = getattr(self, field)
      if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise self._invalid(field, "0 or more")

  @property
  def dropout_rate(self) -> float:
    """The rate of a head that has none of its own."""
    return self.output_dropout


@dataclasses.dataclass(frozen=True)
class ELMoConfig(RecurrentConfig):
  """ELMo (Peters et al. 2018): characters -> convolutions -> highway layers -> LSTMs in both directions.

  embed_dim    width of token vectors and of the projections of the LSTMs, in each direction
  vocab_size   words of the output softmax; 1 for a model without one
  filters      (width, number) of the convolutions over the characters of a word
  """

  initializer: ClassVar[str] = "fan_in"

  char_dim: int = 16
  num_chars: int = 262
  chars_per_word: int = 50
  filters: tuple[tuple[int, int], ...] = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
  num_highways: int = 2
  activation: str = "relu"
  clip: float = 3.0  # of cells and projections
  skip_connections: bool = True
  has_output: bool = True
  dropout: float = 0.1

  def __post_init__(self):
    super().__post_init__()
    object.__setattr__(self, "filters", tuple(tuple(pair) for pair in self.filters))
    sizes = [n for pair in self.filters for n in pair]
    if not sizes or any(len(pair) != 2 for pair in self.filters) or not all(type(n) is int and n > 0 for n in sizes):
      raise self._invalid("filters", "pairs of width and number, such as ((1, 32), (2, 64))")
    if max(width for width, _ in self.filters) > self.chars_per_word:
      raise self._invalid("filters", f"widths of at most chars_per_word = {self.chars_per_word}")
    if self.activation not in ("relu", "tanh"):
      raise self._invalid("activation", "relu or tanh")
    if not self.clip > 0:
      raise self._invalid("clip", "a positive number")

  @property
  def num_filters(self) -> int:
    return sum(number for _, number in self.filters)

  @property
  def dropout_rate(self) -> float:
    return self.dropout
