"""Hugging Face's models with drawn weights, and their descriptions; needs torch and transformers."""

import json
import tempfile
from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from zoo_weights import draw


def draw_weights(model, seed: int):
  """Draws every tensor of a model, and returns it."""
  drawn = draw({n: tuple(p.shape) for n, p in model.named_parameters()}, seed)
  with torch.no_grad():
    for n, parameter in model.named_parameters():
      parameter.copy_(torch.tensor(drawn[n]))
  return model


def describe(model, seed: int, useless: Collection[str]) -> tuple[np.ndarray, list[str]]:
  """Returns JSON (config.json without its `useless` fields, and the shapes of all tensors), and the tensors' names."""
  with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    config = json.loads((Path(folder) / "config.json").read_text())
    tensors = load_file(Path(folder) / "model.safetensors")
  described = {
    "seed": seed,
    "config": {k: v for k, v in config.items() if k not in useless},
    "tensors": {n: list(tensors[n].shape) for n in sorted(tensors)},
  }
  return np.frombuffer(json.dumps(described).encode(), np.uint8), sorted(tensors)
