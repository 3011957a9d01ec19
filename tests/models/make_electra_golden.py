"""Writes tests/data/golden/electra.npz: a generator and a discriminator of transformers that share their embeddings.

Not a test; needs torch and transformers:

    python tests/models/make_electra_golden.py

Weights are random and have the names of our parameters (kernels are transposed). Made with transformers 5.22.
"""

from pathlib import Path

import numpy as np
import torch
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "electra.npz"
EMBEDDINGS = {
  "token_embedder/embedding": "word_embeddings.weight",
  "token_embedder/position_embedding": "position_embeddings.weight",
  "token_embedder/token_type_embedding": "token_type_embeddings.weight",
  "token_embedder/norm": "LayerNorm",
}
LAYER = {
  "attention/query": "attention.self.query",
  "attention/key": "attention.self.key",
  "attention/value": "attention.self.value",
  "attention/out": "attention.output.dense",
  "attention_norm": "attention.output.LayerNorm",
  "mlp/wi": "intermediate.dense",
  "mlp/wo": "output.dense",
  "mlp_norm": "output.LayerNorm",
}


def renamed(state, ours, theirs):
  """Returns the arrays of one module: a table, a norm or a dense layer."""
  if theirs in state:
    return {ours: state[theirs].numpy()}
  weight, bias = state[f"{theirs}.weight"].numpy(), state[f"{theirs}.bias"].numpy()
  if weight.ndim == 1:
    return {f"{ours}/scale": weight, f"{ours}/bias": bias}
  return {f"{ours}/kernel": weight.T, f"{ours}/bias": bias}


def layers(state, prefix, count):
  return {
    name: array
    for i in range(count)
    for ours, theirs in LAYER.items()
    for name, array in renamed(
      state, f"{prefix}encoder/layers_{i}/{ours}", f"electra.encoder.layer.{i}.{theirs}"
    ).items()
  }


def main():
  torch.manual_seed(0)
  sizes = dict(vocab_size=41, embedding_size=16, num_hidden_layers=2, max_position_embeddings=12, hidden_act="gelu",
               initializer_range=0.3)  # fmt: skip
  discriminator = ElectraForPreTraining(
    ElectraConfig(hidden_size=16, num_attention_heads=2, intermediate_size=24, **sizes)
  ).eval()
  generator = ElectraForMaskedLM(
    ElectraConfig(hidden_size=8, num_attention_heads=1, intermediate_size=12, **sizes)
  ).eval()
  with torch.no_grad():
    for model in (discriminator, generator):
      for name, parameter in model.named_parameters():
        if name.endswith("bias") or "LayerNorm" in name:
          parameter.add_(0.2 * torch.randn_like(parameter))
  generator.electra.embeddings = discriminator.electra.embeddings
  generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight

  first, second = discriminator.state_dict(), generator.state_dict()
  arrays = {}
  for ours, theirs in EMBEDDINGS.items():
    arrays |= renamed(first, ours, f"electra.embeddings.{theirs}")
  arrays |= layers(first, "", 2) | layers(second, "generator/", 2)
  arrays |= renamed(first, "discriminator_head/dense", "discriminator_predictions.dense")
  arrays |= renamed(first, "discriminator_head/out", "discriminator_predictions.dense_prediction")
  arrays |= renamed(second, "generator/embedding_projection", "electra.embeddings_project")
  arrays |= renamed(second, "generator/mlm_head/transform", "generator_predictions.dense")
  arrays |= renamed(second, "generator/mlm_head/norm", "generator_predictions.LayerNorm")
  arrays["generator/mlm_head/bias"] = second["generator_lm_head.bias"].numpy()
  weights = {f"params/{name}": array for name, array in arrays.items()}

  tokens, mask = torch.randint(5, 41, (2, 9)), torch.ones(2, 9, dtype=torch.int64)
  mask[1, 6:] = 0
  tokens = tokens * mask
  labels = (torch.rand(2, 9) < 0.3).long()
  found = discriminator(tokens, attention_mask=mask, labels=labels)
  targets = torch.where(labels * mask > 0, torch.randint(5, 41, (2, 9)), -100)
  filled = generator(tokens, attention_mask=mask, labels=targets)
  np.savez_compressed(
    GOLDEN, **weights, tokens=tokens.numpy(), mask=mask.numpy(), replaced=labels.numpy(),
    replaced_logits=found.logits.detach().numpy(), discriminator_loss=found.loss.detach().numpy(),
    targets=targets.numpy(), logits=filled.logits.detach().numpy(), generator_loss=filled.loss.detach().numpy(),
  )  # fmt: skip


if __name__ == "__main__":
  main()
