"""Hugging Face folders made of the golden files."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

GOLDEN = Path(__file__).parent / "data" / "golden"


def hugging_face_t5(folder: Path) -> Path:
  """The golden T5 1.1 with rows added to its embedding, so that the embedded `tiny` vocabulary fits it."""
  tensors = load_file(GOLDEN / "t5_1_1" / "model.safetensors")
  rng = np.random.default_rng(0)
  for name in ("shared.weight", "lm_head.weight"):
    tensors[name] = rng.normal(size=(4224, 16)).astype(np.float32)
  save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
  config = json.loads((GOLDEN / "t5_1_1" / "config.json").read_text())
  (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 4224}))
  return folder
