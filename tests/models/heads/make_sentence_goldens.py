"""Writes tests/data/golden/sentence_losses.npz: losses of sentence-transformers and their gradients.

Not a test; needs torch and sentence-transformers:

    python tests/models/heads/make_sentence_goldens.py

Embeddings [rows, texts, width] are random; each loss has its value and the gradient of the embeddings. Made with
sentence-transformers 6.2, torch 2.13.
"""

from pathlib import Path

import numpy as np
import torch
from sentence_transformers.sentence_transformer import losses

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "sentence_losses.npz"
ROWS, TEXTS, WIDTH = 6, 3, 5


class Embeddings(torch.nn.Module):
  """Stands for a model whose embeddings are given."""

  def __init__(self):
    super().__init__()
    self.device = torch.device("cpu")
    self.model_card_data = type("Card", (), {"set_losses": lambda self, losses: None})()

  def forward(self, features):
    return {"sentence_embedding": features["embedding"]}


def main() -> None:
  rng = np.random.default_rng(0)
  vectors = rng.normal(size=(ROWS, TEXTS, WIDTH)).astype(np.float32)
  scores = np.array([0.0, 0.2, 0.2, 0.5, 0.8, 1.0], np.float32)
  classes = np.array([0, 1, 2, 2, 1, 0], np.int32)
  model = Embeddings()
  torch.manual_seed(0)
  softmax = losses.SoftmaxLoss(model, embedding_dimension=WIDTH, num_labels=3)
  arrays = dict(
    embeddings=vectors, scores=scores, classes=classes,
    kernel=softmax.classifier.weight.detach().numpy().T, bias=softmax.classifier.bias.detach().numpy(),
  )  # fmt: skip
  cases = {
    "softmax": (softmax, 2, torch.tensor(classes).long()),
    "cosine": (losses.CosineSimilarityLoss(model), 2, torch.tensor(scores)),
    "cosent": (losses.CoSENTLoss(model), 2, torch.tensor(scores)),
    "triplet": (losses.TripletLoss(model, triplet_margin=1.0), 3, torch.tensor(scores)),
    "ranking_pairs": (losses.MultipleNegativesRankingLoss(model), 2, torch.tensor(scores)),
    "ranking_triplets": (losses.MultipleNegativesRankingLoss(model), 3, torch.tensor(scores)),
  }
  for name, (loss, texts, labels) in cases.items():
    given = [torch.tensor(vectors[:, n], requires_grad=True) for n in range(texts)]
    value = loss([{"embedding": x} for x in given], labels)
    value.backward()
    arrays[f"{name}_loss"] = np.float32(value.item())
    arrays[f"{name}_gradient"] = np.stack([x.grad.numpy() for x in given], axis=1)
  np.savez_compressed(GOLDEN, **arrays)


if __name__ == "__main__":
  main()
