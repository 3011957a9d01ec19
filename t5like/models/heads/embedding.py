"""A head for sentence embeddings: pooling, an optional dense layer and normalization, and the loss that trains them."""

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.errors import UserError, nearest
from t5like.models.heads.rows import class_sums
from t5like.models.heads.sentence_losses import (
  cosent_sums,
  cosine_sums,
  ranking_sums,
  text_hashes,
  triplet_sums,
  unit,
)
from t5like.models.heads.states import HIDDEN, Features, check_labels, output, pool
from t5like.models.layers import dense

SENTENCE_POOLINGS = ("cls", "mean", "max", "last", "mean_sqrt_length", "weighted_mean")
IDENTITY = "identity"
# Losses, and the labels that each needs.
LOSSES = {
  "softmax": "classification", "cosine": "regression", "cosent": "regression",
  "triplet": "", "ranking": "", "simcse": "",
}  # fmt: skip


class EmbeddingHead(nn.Module):
  """Embeds each text of a row separately.

  softmax  classes of the pair from (u, v, |u - v|): NLI as in SBERT (Reimers and Gurevych 2019)
  cosine   squared error of the cosine and a score: STS
  cosent   the order of all cosines in the batch follows that of the scores
  triplet  an anchor is nearer to its positive than to its negative, by a margin
  ranking  an anchor's positive among all texts of the batch; texts after the second are hard negatives
  simcse   ranking of a text and the same text under another dropout mask (Gao et al. 2021)
  """

  loss: str | None = None  # None: by the task: softmax (classes), cosine (scores), ranking, simcse (single texts)
  pooling: str = "mean"  # one of SENTENCE_POOLINGS, or several, concatenated: "cls+mean"
  dense_dim: int | None = None  # the width of a dense layer after the pooling; None: no layer
  dense_activation: str = "tanh"  # or identity, or another of HIDDEN
  dense_bias: bool = True
  normalize: bool = False  # embeddings of length 1
  texts: int = 0  # per row; 0: as in the task
  labels: tuple[str, ...] = ()  # the classes of softmax; (): those of the task
  scale: float = 20.0  # of cosines in ranking, simcse and cosent: 1 / temperature
  margin: float = 1.0  # of triplet
  score_range: tuple[float, float] = (0.0, 5.0)  # of the task, becomes 0 to 1 in the cosine loss
  training_mlp: bool = False  # a dense layer with tanh that only training uses (SimCSE)
  # Facts of a folder of sentence-transformers, for use: the length that texts are cut to in tokens (None: that of the
  # training run), whether they are lowercased first, a text before each, others to choose by name, the ids before and
  # after a text (None: as in training, [CLS] and [SEP] or the end-of-sequence), and the name of a similarity.
  length: int | None = None
  lower_case: bool = False
  prompt: str = ""
  prompts: tuple[tuple[str, str], ...] = ()
  similarity: str = "cosine"
  around: tuple[int | None, int | None] | None = None

  form: ClassVar[str] = "embedding"
  lm_loss_weight: ClassVar[float] = 0.0
  mix_layers: ClassVar[bool] = False

  @property
  def target(self) -> str:
    """The labels in its batches: "classification", "regression" or ''."""
    return LOSSES.get(self.loss or "", "")

  @property
  def compares_rows(self) -> bool:
    """Whether the loss of a row depends on the other rows of the batch."""
    return self.loss in ("ranking", "simcse", "cosent")

  def width(self, embed_dim: int) -> int:
    """The width of its embeddings on a backbone with this one."""
    return self.dense_dim or embed_dim * len(self.pooling.split("+"))

  def check(self) -> None:
    """Raises UserError if a setting is invalid."""
    given = [("loss", self.loss or "softmax", LOSSES)]
    given += [("dense_activation", self.dense_activation, (IDENTITY, *HIDDEN))]
    given += [("pooling", part, SENTENCE_POOLINGS) for part in self.pooling.split("+")]
    for name, value, known in given:
      if value not in known:
        raise _invalid(name, value, ", ".join(known), nearest(str(value), known))
    for name in ("scale", "margin"):
      if not getattr(self, name) > 0:
        raise _invalid(name, getattr(self, name), "above 0")
    for name in ("dense_dim", "length"):
      if getattr(self, name) is not None and getattr(self, name) < 1:
        raise _invalid(name, getattr(self, name), "1 or more, or None")
    if len(self.score_range) != 2 or not self.score_range[0] < self.score_range[1]:
      raise _invalid("score_range", self.score_range, "the lowest and the highest score, such as (0.0, 5.0)")
    least, most = _TEXTS.get(self.loss, (1, 2**31))
    if self.loss and not least <= self.texts <= most:
      raise UserError(
        f"the loss {self.loss!r} does not take {self.texts} texts per row",
        expected=f"{least}" if least == most else f"{least} or more",
      )
    if self.loss == "softmax":
      check_labels(self)

  @nn.compact
  def __call__(self, features: Features, deterministic: bool = True) -> dict[str, jax.Array]:
    """Returns {"embeddings": [rows, texts, width]}, or [rows, width] of batches [rows, length].

    With the softmax loss, rows of two or more texts also have "label_logits" [rows, classes].
    """
    config, states = features.config, features.states
    x = jnp.concatenate([pool(features, states, part) for part in self.pooling.split("+")], axis=-1)
    x = nn.with_logical_constraint(x, ("batch", None))
    if self.training_mlp:
      projected = jnp.tanh(dense(config, x.shape[-1], ("embed", "mlp"), use_bias=True, name="training_mlp")(x))
      x = x if deterministic else projected
    if self.dense_dim:
      x = dense(config, self.dense_dim, ("embed", "mlp"), use_bias=self.dense_bias, name="dense")(x)
      x = x if self.dense_activation == IDENTITY else HIDDEN[self.dense_activation](x)
      x = nn.with_logical_constraint(x, ("batch", None))
    if self.normalize:
      x = unit(x)
    texts = max(self.texts, 1) if self.is_initializing() and features.texts is None else features.texts
    if texts is None:
      return {"embeddings": x}
    embeddings = x.reshape(-1, texts, x.shape[-1])
    outputs = {"embeddings": embeddings}
    if self.loss == "softmax" and texts > 1:
      u, v = embeddings[:, 0], embeddings[:, 1]
      joined = jnp.concatenate([u, v, jnp.abs(u - v)], axis=-1)
      outputs["label_logits"] = output(config, joined.astype(jnp.dtype(config.compute_dtype)), len(self.labels))
    return outputs

  def sums(self, outputs: Any, batch: Any, weights: jax.Array, label_smoothing: float = 0.0) -> dict[str, jax.Array]:
    """Returns the summed loss of rows and, where there is one, the share of right choices."""
    embeddings = outputs["embeddings"]
    if self.loss == "softmax":
      return class_sums(outputs["label_logits"], batch["labels"], weights, label_smoothing)
    if self.loss == "cosine":
      lowest, highest = self.score_range
      return cosine_sums(embeddings, (batch["labels"] - lowest) / (highest - lowest), weights)
    if self.loss == "cosent":
      return cosent_sums(embeddings, batch["labels"], weights, self.scale)
    if self.loss == "triplet":
      return triplet_sums(embeddings, weights, self.margin)
    return ranking_sums(embeddings, text_hashes(batch), weights, self.scale)


# The least and most texts per row of a loss.
_TEXTS = {
  "softmax": (2, 2), "cosine": (2, 2), "cosent": (2, 2), "triplet": (3, 2**31), "ranking": (2, 2**31), "simcse": (2, 2),
}  # fmt: skip


def _invalid(name: str, value: Any, expected: str, near: str = "") -> UserError:
  return UserError(f"invalid EmbeddingHead.{name}: {value!r}", expected=expected, nearest=near)
