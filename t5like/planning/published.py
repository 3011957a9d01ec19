"""Published TPU step times, on which forecasts of TPU steps are calibrated.

Every row was taken from its source at the given commit: MaxText's tables for v4 and v5p, and 1, 8 and 32 slices of the
one for v5e; Google's tpu-recipes for Llama, Mistral and GPT-3 in bfloat16; AXLearn's Fuji. Left out are features that
plans do not model: int8, fp8, experts, local attention (Gemma 3), `fsdp` across slices (Llama 3.1 405B on v6e), and
chips that are not in topology.py (Levanter on v3, Ironwood). So are runs whose batch, script or attention is not
stated: MaxText's 22B on eight slices of v4, Fuji 70B on two of v5e, AXLearn's Gala and Honeycrisp.

Differences between plans and runs:

  grouped heads       a plan has a key and a value for every head; its time is scaled by the ratio of model FLOPs
  kept products       a run that keeps some of a layer's products is between `remat` "dots" and "full"; offloading them
                      to the host is assumed to be free
  plain attention     materializes its scores in bfloat16; ours in float32
  AXLearn             attention is assumed to be fused from August 2024 on: earlier versions of fuji.py have no fused
                      attention, and later models would not have enough memory for scores
"""

from __future__ import annotations

from typing import NamedTuple

_MAXTEXT = "github.com/AI-Hypercomputer/maxtext at 76bd53b0, MaxText/configs/{0}/README.md and {1}.sh there"
_MAXTEXT_V4 = "github.com/AI-Hypercomputer/maxtext at 281e04bf, README.md and MaxText/configs/{}.sh"
_RECIPES = "github.com/AI-Hypercomputer/tpu-recipes at c8cfe2f6, training/{}/README.md"
_AXLEARN = "github.com/apple/axlearn, axlearn/experiments/text/gpt/fuji.py at {}"


class RunShape(NamedTuple):
  """The sizes of a decoder. `kv_heads`: of the published model; a plan has a key and a value for every head."""

  layers: int
  width: int
  heads: int
  head_dim: int
  mlp: int
  vocab: int
  gated: bool = True
  kv_heads: int | None = None

  @property
  def layer_weights(self) -> dict[str, int]:
    keys = 2 * (self.kv_heads or self.heads) * self.head_dim
    inner = self.heads * self.head_dim
    products = {"query, key, value": inner + keys, "attention's output": inner}
    products |= {"MLP's input": self.mlp * (2 if self.gated else 1), "MLP's output": self.mlp}
    return {name: self.width * size for name, size in products.items()}

  def recomputed(self, kept: str) -> float:
    """Returns the share of a layer's forward products that are recomputed; the last never is."""
    if kept == "all":
      return 0.0
    again = {name: size for name, size in self.layer_weights.items() if name != "MLP's output"}
    return 1.0 - sum(size for name, size in again.items() if name in kept) / sum(again.values())

  def flops(self, tokens: float, length: int, attention: float = 1.0) -> float:
    """Returns the model FLOPs of a step; `attention`: the share of attention's FLOPs that is counted."""
    weights = self.layers * sum(self.layer_weights.values()) + self.vocab * self.width
    return tokens * (6 * weights + attention * 12 * self.layers * self.heads * self.head_dim * length)


class Run(NamedTuple):
  """A published run.

  fsdp, tensor  devices of a slice along these axes; `data` is the rest
  rows          of the batch, per chip
  kept          products of RunShape.layer_weights that are saved for the backward pass, on the chip or its host;
                "all": like `remat` "dots"; "": like "full"
  reported      seconds per step, or TFLOP/s per chip if `attention` is given: the counted share of attention's FLOPs
  score_bytes   per attention score, if they are materialized; 0: fused attention
  """

  model: str
  topology: str
  fsdp: int
  tensor: int
  rows: int
  length: int
  kept: str
  reported: float
  source: str
  attention: float | None = None
  score_bytes: int = 0
  microbatches: int = 1
  param_dtype: str = "float32"


MODELS = {
  "MaxText 16B": RunShape(32, 5120, 32, 256, 32768, 32768, gated=False),
  "MaxText 22B": RunShape(48, 6144, 24, 256, 24576, 32768, gated=False),
  "MaxText 32B": RunShape(32, 10240, 32, 256, 32768, 32768, gated=False),
  "MaxText 52B": RunShape(32, 12288, 32, 256, 49152, 32768, gated=False),
  "MaxText 64B": RunShape(64, 10240, 32, 256, 32768, 32768, gated=False),
  "MaxText 128B": RunShape(64, 10240, 64, 256, 65536, 32768, gated=False),
  "MaxText 256B": RunShape(64, 20480, 64, 256, 65536, 32768, gated=False),
  "MaxText 512B": RunShape(128, 20480, 64, 256, 65536, 32768, gated=False),
  "MaxText 1024B": RunShape(128, 20480, 128, 256, 131072, 32768, gated=False),
  "GPT-3 175B": RunShape(96, 12288, 96, 128, 49152, 50304, gated=False),
  "Fuji 7B": RunShape(32, 4096, 32, 128, 11008, 32768),
  "Fuji 70B": RunShape(80, 8192, 64, 128, 28672, 32768, kv_heads=8),
  "Fuji 70B, August 2024": RunShape(80, 8192, 64, 128, 22016, 32768, kv_heads=8),
  "Mistral 7B": RunShape(32, 4096, 32, 128, 14336, 32000, kv_heads=8),
  "Llama 3.1 8B": RunShape(32, 4096, 32, 128, 14336, 128256, kv_heads=8),
  "Llama 2 70B": RunShape(80, 8192, 64, 128, 28672, 32000, kv_heads=8),
  "Llama 3.1 70B": RunShape(80, 8192, 64, 128, 28672, 128256, kv_heads=8),
  "Llama 3.1 405B": RunShape(126, 16384, 128, 128, 53248, 128256, kv_heads=8),
}
_QKV, _OUT = "query, key, value", "attention's output"


def _maxtext(model: str, topology: str, fsdp: int, tensor: int, rows: int, kept: str, teraflops: float) -> Run:
  chip = topology.partition("x")[2] or topology
  source = _MAXTEXT.format(chip[:3], model.split()[1].lower())
  return Run(model, topology, fsdp, tensor, rows, 2048, kept, teraflops, source, attention=0.5)


def _v4(model: str, topology: str, fsdp: int, rows: int, teraflops: float, script: str) -> Run:
  """Returns a run without fused attention, whose FLOPs are not counted."""
  source = _MAXTEXT_V4.format(script)
  return Run(model, topology, fsdp, 1, rows, 1024, "", teraflops, source, attention=0.0, score_bytes=2)


def _recipe(model: str, topology: str, rows: int, length: int, kept: str, seconds: float, folder: str, **rest) -> Run:
  fsdp = int(topology.rpartition("-")[2])
  return Run(model, topology, fsdp, 1, rows, length, kept, seconds, _RECIPES.format(folder), **rest)


_PROJECTED = f"{_QKV}; {_OUT}"
_8B, _70B = "trillium/Llama3.1-8B-MaxText/", "trillium/Llama3.1-70B-MaxText/"
RUNS = (
  _v4("MaxText 22B", "v4-128", 64, 16, 156, "1xv4-128"),
  _v4("MaxText 22B", "2xv4-128", 64, 16, 152, "2xv4-128"),
  _v4("MaxText 22B", "4xv4-128", 64, 16, 149, "4xv4-128"),
  _v4("MaxText 52B", "v4-384", 192, 10, 154, "1xv4-384"),
  _v4("MaxText 52B", "2xv4-384", 192, 10, 162, "2xv4-384"),
  _maxtext("MaxText 16B", "v5e-256", 256, 1, 6, "", 120),
  _maxtext("MaxText 16B", "8xv5e-256", 256, 1, 6, "", 115),
  _maxtext("MaxText 16B", "32xv5e-256", 256, 1, 6, "", 108),
  _maxtext("MaxText 32B", "v5e-256", 256, 1, 4, "", 132),
  _maxtext("MaxText 32B", "8xv5e-256", 256, 1, 4, "", 125),
  _maxtext("MaxText 32B", "32xv5e-256", 256, 1, 4, "", 119),
  _maxtext("MaxText 64B", "v5e-256", 256, 1, 2, "", 118),
  _maxtext("MaxText 64B", "8xv5e-256", 256, 1, 2, "", 108),
  _maxtext("MaxText 64B", "32xv5e-256", 256, 1, 2, "", 99),
  _maxtext("MaxText 128B", "v5e-256", 16, 16, 1, "", 110),
  _maxtext("MaxText 128B", "8xv5e-256", 16, 16, 1, "", 104),
  _maxtext("MaxText 128B", "32xv5e-256", 16, 16, 1, "", 91),
  _maxtext("MaxText 32B", "v5p-128", 16, 4, 8, "all", 328),
  _maxtext("MaxText 32B", "2xv5p-128", 16, 4, 8, "all", 319),
  _maxtext("MaxText 64B", "v5p-128", 16, 4, 4, "all", 323),
  _maxtext("MaxText 64B", "2xv5p-128", 16, 4, 4, "all", 309),
  _maxtext("MaxText 128B", "v5p-256", 16, 8, 2, "all", 315),
  _maxtext("MaxText 128B", "2xv5p-256", 16, 8, 2, "all", 305),
  _maxtext("MaxText 128B", "v5p-512", 32, 8, 2, "all", 316),
  _maxtext("MaxText 128B", "2xv5p-512", 32, 8, 2, "all", 274),
  _maxtext("MaxText 256B", "v5p-1024", 64, 8, 2, "all", 308),
  _maxtext("MaxText 256B", "2xv5p-1024", 64, 8, 2, "all", 289),
  _maxtext("MaxText 512B", "v5p-1024", 32, 16, 2, "", 294),
  _maxtext("MaxText 512B", "2xv5p-1024", 32, 16, 2, "", 282),
  _maxtext("MaxText 1024B", "v5p-2048", 64, 16, 2, "", 254),
  _maxtext("MaxText 1024B", "2xv5p-2048", 64, 16, 2, "", 237),
  _maxtext("MaxText 1024B", "v5p-4096", 128, 16, 2, "", 297),
  _maxtext("MaxText 1024B", "2xv5p-4096", 128, 16, 2, "", 279),
  _recipe("Llama 3.1 8B", "v6e-8", 3, 8192, _PROJECTED, 3.443, _8B + "v6e-8"),
  _recipe("Llama 3.1 8B", "v6e-16", 3, 8192, _PROJECTED, 3.393, _8B + "v6e-16"),
  _recipe("Llama 3.1 8B", "v6e-32", 3, 8192, _PROJECTED, 3.495, _8B + "v6e-32"),
  _recipe("Llama 3.1 8B", "v6e-64", 5, 8192, _PROJECTED, 5.652, _8B + "v6e-64"),
  _recipe("Llama 3.1 8B", "v6e-128", 4, 8192, _PROJECTED, 4.602, _8B + "v6e-128"),
  _recipe("Llama 3.1 8B", "v6e-256", 4, 8192, _PROJECTED, 4.546, _8B + "v6e-256"),
  _recipe("Llama 3.1 70B", "v6e-32", 2, 8192, _QKV, 17.790, _70B + "v6e-32", param_dtype="bfloat16"),
  _recipe("Llama 3.1 70B", "v6e-64", 2, 8192, _QKV, 18.688, _70B + "v6e-64"),
  _recipe("Llama 3.1 70B", "v6e-128", 4, 8192, _QKV, 34.786, _70B + "v6e-128"),
  _recipe("Llama 3.1 70B", "v6e-256", 5, 8192, _QKV, 42.656, _70B + "v6e-256"),
  _recipe("Mistral 7B", "v6e-8", 6, 8192, _PROJECTED, 6.320, "trillium/Mistral-7B-MaxText"),
  _recipe("Llama 2 70B", "v6e-256", 2, 4096, _QKV, 9.052, "trillium/Llama2-70B-MaxText"),
  _recipe("GPT-3 175B", "v6e-256", 3, 2048, "", 17.182, "trillium/GPT3-175B-MaxText/bf16"),
  Run("Llama 3.1 405B", "v5p-1024", 512, 1, 2, 8192, "", 131.474, _RECIPES.format("v5p/Llama3.1-405B-MaxText")),
  Run("Fuji 7B", "v4-1024", 16, 1, 4, 2048, _PROJECTED, 3.03, _AXLEARN.format("3c908220"), score_bytes=2),
  Run("Fuji 7B", "4xv5e-256", 16, 1, 2, 2048, _PROJECTED, 2.44, _AXLEARN.format("4dae7198"), score_bytes=2),
  Run("Fuji 7B", "v5e-32", 16, 1, 2, 2048, _PROJECTED, 1.93, _AXLEARN.format("4dae7198"), score_bytes=2),
  Run("Fuji 7B", "v5p-512", 8, 1, 8, 2048, _PROJECTED, 2.85, _AXLEARN.format("4dae7198"), score_bytes=2),
  Run("Fuji 7B", "4xv5e-256", 256, 1, 1, 4096, "all", 2.21, _AXLEARN.format("f2326c53")),
  Run("Fuji 70B, August 2024", "4xv5e-256", 256, 1, 1, 4096, _PROJECTED, 14.3736, _AXLEARN.format("a7c64ee0")),
  Run("Fuji 70B", "4xv6e-256", 256, 1, 1, 4096, _PROJECTED, 4.9, _AXLEARN.format("3f361084")),
  Run("Fuji 70B", "v6e-256", 256, 1, 4, 4096, _PROJECTED, 19.5, _AXLEARN.format("3f361084"), microbatches=4),
)
