"""Writes tests/data/golden/inside.npz: attention weights and hidden states of transformers, with eager attention.

Not a test; needs torch and transformers:

    PYTHONPATH=tests python tests/interop/goldens/make_inside_goldens.py

The models are those of tests/data/golden: T5, BERT, GPT-2 and BART, a Llama with grouped heads, an ALBERT whose layers
share parameters and a DeBERTa. Arrays are named CASE/ROW/NAME; rows have no padding. Made with transformers 5.22.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from inside_cases import CASES, GOLDEN, make_folder

SHOWS = dict(output_attentions=True, output_hidden_states=True)


def arrays_of(case: str, folder: Path) -> dict[str, np.ndarray]:
  """Returns the arrays of each row of a case."""
  model = (
    getattr(transformers, CASES[case].kind.partition("-")[0])
    .from_pretrained(folder, attn_implementation="eager")
    .eval()
  )
  found = {}
  for number, (inputs, targets) in enumerate(CASES[case].rows):
    ids = {"input_ids": torch.tensor([inputs])}
    if targets:
      ids["decoder_input_ids"] = torch.tensor([targets])
    out = model(**ids, **SHOWS)
    names = {"attentions": "self", "hidden_states": "states"}
    if targets:
      names = {"cross_attentions": "cross", "encoder_attentions": "encoder_self", "decoder_attentions": "decoder_self",
               "encoder_hidden_states": "encoder_states", "decoder_hidden_states": "decoder_states"}  # fmt: skip
    for theirs, ours in names.items():
      found[f"{case}/{number}/{ours}"] = torch.stack(out[theirs])[:, 0].numpy()
  return found


def main() -> None:
  arrays: dict[str, np.ndarray] = {}
  for case in CASES:
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
      found = make_folder(case, Path(folder) / "model")
      config = json.loads((found / "config.json").read_text())
      arrays |= arrays_of(case, found)
      print(case, config["model_type"])
  np.savez_compressed(GOLDEN / "inside.npz", **arrays)


if __name__ == "__main__":
  main()
