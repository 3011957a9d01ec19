"""Decoded answers of a model, for scoring."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import numpy as np
from jax.sharding import Mesh

from t5like.decoding import DecodeSettings
from t5like.inference.generation import Generator


class Predictor:
  """The best answer to each prompt: greedy, or as the settings say."""

  def __init__(
    self, model: nn.Module, mesh: Mesh, max_length: int, eos_id: int, settings: DecodeSettings | None = None
  ):
    self._generator = Generator(model, mesh, eos_id)
    self._settings = settings or DecodeSettings(max_length=max_length)

  def __call__(self, params: Any, prompts: dict[str, np.ndarray], row_ids: np.ndarray | None = None) -> np.ndarray:
    """Answers [batch, max_length] to prompts as `start_decoding` takes them."""
    return self.scored(params, prompts, row_ids)[0]

  def scored(
    self, params: Any, prompts: dict[str, np.ndarray], row_ids: np.ndarray | None = None
  ) -> tuple[np.ndarray, np.ndarray]:
    """Answers [batch, max_length], and their log-likelihoods [batch]."""
    decoded = self._generator(params, prompts, self._settings, row_ids)
    return decoded.tokens[:, 0], decoded.scores[:, 0]
