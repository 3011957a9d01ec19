"""Prompt tuning: learned vectors before the input (Lester et al. 2021)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t5like.errors import UserError
from t5like.files import storage
from t5like.finetuning.methods.base import Arrays, Method, Sites, positive
from t5like.finetuning.variables import BACKBONE, Variables
from t5like.models.config import TransformerConfig
from t5like.models.heads import WithHead

INITS = ("vocabulary", "random", "labels", "text", "file")
_COMMON = 5000  # the first ids of a vocabulary, which are the most frequent
_RANDOM = 0.5


def _width(config: TransformerConfig) -> int:
  """Returns the width at which a prompt is put before the embedded tokens."""
  return config.embed_dim if config.embedding_projection == "tokens" else config.embedding_width


@dataclasses.dataclass(frozen=True)
class Prompt:
  """Vectors [tokens, embed] before the embedded tokens of the encoder, or of a decoder without one."""

  tokens: int
  width: int

  def __call__(self, embedder: nn.Module) -> jax.Array:
    init = nn.with_logical_partitioning(_uniform, (None, None))  # on all devices
    return embedder.param("prompt", init, (self.tokens, self.width), jnp.float32)


@dataclasses.dataclass(frozen=True)
class PromptTuning(Method):
  """Trains `length` vectors that precede the input; T5's relative positions count them as tokens.

  init    "vocabulary": rows of the embedding, drawn from the 5,000 most common tokens
          "labels": the mean embedding of each label's pieces, then as "vocabulary"; the paper's best
          "text": the embeddings of the tokens of `text`, repeated to the length
          "random": uniform in [-0.5, 0.5]
          "file": [length, embed] in a file of numpy (.npy)
  labels  names of classes; () takes those of the head
  """

  length: int = 100
  init: str = "vocabulary"
  labels: Sequence[str] = ()
  text: str = ""
  file: str = ""
  seed: int = 0

  OWN = "prompt"

  def __post_init__(self):
    super().__post_init__()
    positive("PromptTuning.length", self.length)
    if self.init not in INITS:
      raise UserError(f"invalid PromptTuning.init: {self.init!r}", expected=", ".join(INITS))
    for name in ("text", "file"):
      if (self.init == name) != bool(getattr(self, name)):
        raise UserError(f"PromptTuning.{name} belongs to init = {name!r}", given=f"init = {self.init!r}")

  def sites(self, model: nn.Module) -> Sites:
    prefix = f"{BACKBONE}/" if isinstance(model, WithHead) else ""
    return {f"{prefix}token_embedder/prompt": (Prompt(self.length, _width(model.config)),)}

  def check_rows(self, model: nn.Module, lengths: Mapping[str, int], packed: bool) -> None:
    config, tokens = model.config, next(n for n in lengths.values() if n)
    if packed:
      raise UserError(
        "a prompt belongs to one example, and packed rows have several", try_="--gin.PACK=False, as in the paper"
      )
    if self.length > tokens:
      raise UserError(
        f"a prompt of {self.length} vectors is longer than a row of {tokens} tokens", try_="a shorter one"
      )
    if config.position_limit is not None and self.length + tokens > config.position_limit:
      raise UserError(
        f"a prompt of {self.length} vectors and {tokens} tokens exceed the model's {config.max_positions} positions",
        try_=f"--gin.LENGTHS with at most {config.max_positions - self.length} tokens",
      )

  def title(self, variables: Variables) -> str:
    return f"a prompt of {self.length} vectors"

  def initial(self, base: Arrays, model: nn.Module, vocabulary: Any) -> dict[str, np.ndarray]:
    (site,) = self.sites(model)
    if self.init == "random":
      return {}
    table = np.asarray(base[f"{site.removesuffix('prompt')}embedding"], np.float32)
    if model.config.scale_embeddings:
      table = table * model.config.embed_dim**0.5
    return {site: self._rows(table, model, vocabulary).astype(np.float32)}

  def _rows(self, table: np.ndarray, model: nn.Module, vocabulary: Any) -> np.ndarray:
    if self.init == "file":
      return self._read(table.shape[1])
    if self.init == "text":
      ids = list(vocabulary.encode(self.text))
      return table[np.resize(np.asarray(ids), self.length)]
    rows = []
    if self.init == "labels":
      labels = self.labels or getattr(getattr(model, "head", None), "labels", ())
      if not labels:
        raise UserError("PromptTuning.init = 'labels' needs labels", try_="--gin.PromptTuning.labels=\"['yes', 'no']\"")
      rows = [table[np.asarray(list(vocabulary.encode(label)))].mean(axis=0) for label in labels][: self.length]
    common = min(_COMMON, len(table))
    rng, missing = np.random.default_rng(self.seed), self.length - len(rows)
    drawn = rng.choice(common, missing, replace=missing > common)
    return np.concatenate([np.reshape(rows, (len(rows), table.shape[1])), table[drawn]])

  def _read(self, width: int) -> np.ndarray:
    try:
      values = np.load(storage.local_path(self.file, "the prompt"))
    except (OSError, ValueError) as error:
      raise UserError(f"the prompt {self.file} cannot be read", because=str(error), expected="a .npy file") from None
    if values.shape != (self.length, width):
      raise UserError(f"the prompt {self.file} is {list(values.shape)}", expected=f"[{self.length}, {width}]")
    return values


def _uniform(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
  return jax.random.uniform(key, shape, dtype, -_RANDOM, _RANDOM)
