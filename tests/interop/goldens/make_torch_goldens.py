"""Writes tests/data/golden/torch: files of torch.save, as in older uploads, and what is in them.

Not a test; needs torch:

    python tests/interop/goldens/make_torch_goldens.py

tensors.zip.bin and tensors.old.bin hold the same tensors in the formats of torch 1.6+ and before: several dtypes,
views, shared storages, parameters. expected.npz has their values, bfloat16 as the same bits in uint16. bert/ is an
upload of 2019: the old format, gamma and beta, no model_type, its weights those of
../heads/BertForNextSentencePrediction. Made with torch 2.13.
"""

import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
NEW = GOLDEN / "heads" / "BertForNextSentencePrediction"


def tensors() -> OrderedDict:
  torch.manual_seed(0)
  table = torch.randn(7, 5)
  found = OrderedDict(
    plain=torch.randn(3, 4), half=torch.randn(2, 3).half(), brain=torch.randn(2, 3).bfloat16(), table=table,
    transposed=table.T, rows=table[2:5, 1:3], scalar=torch.tensor(2.5), empty=torch.zeros(0, 4),
    parameter=torch.nn.Parameter(torch.randn(2)), ids=torch.arange(6)[None], double=torch.randn(3).double(),
  )  # fmt: skip
  found._metadata = OrderedDict({"": {"version": 1}})  # as in every state_dict
  return found


def main() -> None:
  folder = GOLDEN / "torch"
  folder.mkdir(exist_ok=True)
  found = tensors()
  torch.save(found, folder / "tensors.zip.bin")
  torch.save(found, folder / "tensors.old.bin", _use_new_zipfile_serialization=False)
  values = {n: (t.view(torch.uint16) if t.dtype == torch.bfloat16 else t).detach().numpy() for n, t in found.items()}
  np.savez_compressed(folder / "expected.npz", **values)

  (folder / "bert").mkdir(exist_ok=True)
  old = {
    n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
    for n, t in load_file(NEW / "model.safetensors").items()
  }
  torch.save(OrderedDict(old), folder / "bert" / "pytorch_model.bin", _use_new_zipfile_serialization=False)
  fields = json.loads((NEW / "config.json").read_text())
  kept = {k: v for k, v in fields.items() if isinstance(v, (int, float, str)) and k not in ("model_type", "dtype")}
  (folder / "bert" / "config.json").write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
  main()
