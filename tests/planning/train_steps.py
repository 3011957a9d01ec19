"""Small models of every family, their compiled train steps, and their plans."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax

from t5like import parallel, planning
from t5like.data.layouts import blank
from t5like.models import BERT, GPT, T5
from t5like.models.config import TransformerConfig
from t5like.objectives import Lengths
from t5like.training import optimizers
from t5like.training.state import state_spec
from t5like.training.step import LossSettings, compile_train_step

SIZES = dict(vocab_size=1024, embed_dim=256, mlp_dim=1024, num_heads=4, head_dim=64)
AS_GPT_2 = dict(
  activation="gelu", norm="layer", use_bias=True, scale_attention=True, positions="learned", max_positions=1024,
  scale_logits=False, final_dropout=False,
)  # fmt: skip
AS_BERT = dict(
  **AS_GPT_2, norm_position="post", num_token_types=2, embedding_norm=True, pooler=True, mlm_head=True
)  # fmt: skip
AS_T5_1_1 = dict(activation="gelu", gated_mlp=True, tie_embeddings=False, scale_logits=False)


def t5(layers: int = 2, **fields: Any) -> nn.Module:
  depth = dict(num_encoder_layers=layers, num_decoder_layers=layers)
  return T5(TransformerConfig(**{**SIZES, **depth, **fields}))


def gpt(layers: int = 2, **fields: Any) -> nn.Module:
  return GPT(TransformerConfig(**{**SIZES, **AS_GPT_2, "num_decoder_layers": layers, **fields}))


def bert(layers: int = 2, **fields: Any) -> nn.Module:
  return BERT(TransformerConfig(**{**SIZES, **AS_BERT, "num_encoder_layers": layers, **fields}))


@dataclasses.dataclass(frozen=True)
class Step:
  """A train step of a model: rows of 128 tokens, and 32 targets for an encoder-decoder."""

  model: nn.Module
  rows: int
  mesh: tuple[int, int, int] = (1, 1, 1)
  optimizer: str = "adafactor"
  microbatches: int = 1
  preset: str | None = None

  @property
  def lengths(self) -> dict[str, int]:
    decoder = {"encoder_decoder": 32, "encoder": 0}.get(self.model.batch_layout, 128)
    return {"encoder_length": 0 if self.model.batch_layout == "decoder" else 128, "decoder_length": decoder}

  def batch(self) -> dict[str, Any]:
    layout = self.model.batch_layout
    lengths = {"encoder_decoder": Lengths(0, 128, 32), "encoder": Lengths(0, 128, 0)}.get(layout, Lengths(0, 96, 32))
    batch = blank(layout, lengths, self.rows, packed=False, shifted=False)
    batch.pop("labels", None)
    return batch

  def compiled_and_planned(self) -> tuple[jax.stages.Compiled, planning.StateBytes, planning.MemoryEstimate]:
    devices = self.mesh[0] * self.mesh[1] * self.mesh[2]
    batch, optimizer = self.batch(), getattr(optimizers, self.optimizer)(1e-3)
    with parallel.use_preset(self.preset):
      mesh = parallel.make_mesh(parallel.MeshAxes(*self.mesh, preset=self.preset), jax.devices()[:devices])
      spec = state_spec(self.model, optimizer, batch, mesh)
      settings = LossSettings(microbatches=self.microbatches)
      compiled = compile_train_step(self.model, optimizer, settings, spec, batch, mesh)
    state = planning.state_bytes(
      spec.shapes.params, spec.shardings.params, spec.shapes.opt_state, spec.shardings.opt_state, "float32"
    )
    by_position = self.preset == "sequence"
    memory = planning.estimate_memory(
      self.model, batch, state, mesh.shape, self.microbatches, by_position, platform="cpu"
    )  # fmt: skip
    return compiled, state, memory
