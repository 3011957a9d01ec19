"""Writes tests/data/golden/gpt_nano_sort: a trained minGPT as a sharded Hugging Face checkpoint (not a test).

    python tests/interop/goldens/make_gpt_nano_golden.py CHECKPOINTS/gpt_nano_sort

The weights and every activation of one run come as base64 in JSON. minGPT's Linear kernels are
[out, in] where GPT-2's Conv1D has [in, out]; its output projection is not tied.
"""

import base64
import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "gpt_nano_sort"
LINEAR = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def arrays(path: Path) -> dict[str, np.ndarray]:
  def decode(x):
    return np.frombuffer(base64.b64decode(x["data"]), "<f4").reshape(x["shape"])

  return {name: decode(x) for name, x in json.loads(path.read_text()).items() if name != "config"}


def main(source: Path) -> None:
  GOLDEN.mkdir(parents=True, exist_ok=True)
  settings = json.loads((source / "gpt-nano-sort-model.json").read_text())["config"]
  config = {name: settings[name] for name in ("n_layer", "n_head", "n_embd", "vocab_size")} | {
    "model_type": "gpt2", "n_positions": settings["block_size"], "activation_function": "gelu_new",
    "tie_word_embeddings": False,
  }  # fmt: skip
  (GOLDEN / "config.json").write_text(json.dumps(config, indent=2) + "\n")

  weights = arrays(source / "gpt-nano-sort-model.json")
  weights = {name: np.ascontiguousarray(x.T if name.endswith(LINEAR) else x) for name, x in weights.items()}
  names = sorted(weights)
  shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
  for file, held in shards.items():
    save_file({name: weights[name] for name in held}, GOLDEN / file, metadata={"format": "pt"})
  index = {"weight_map": {name: file for file, held in shards.items() for name in held}}
  (GOLDEN / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")

  run = arrays(source / "gpt-nano-sort-t0-partials.json")
  kept = ("idx", "x", "block0", "block1", "block2", "ln_f", "lm_head")
  np.savez_compressed(GOLDEN / "outputs.npz", **{name: run[name] for name in kept})


if __name__ == "__main__":
  main(Path(sys.argv[1]))
