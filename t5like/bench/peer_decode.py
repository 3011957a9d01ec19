"""Hugging Face's `generate` with a model of the same sizes on the same device, for `t5like bench decode`.

It runs in a subprocess, so that neither framework holds memory that the other needs.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from t5like.bench.peer import build, peer_fields, run_peer

if TYPE_CHECKING:
  import flax.linen as nn

_REPEATS = 3
_TIMEOUT = 600  # seconds


def measure_in_subprocess(
  model: nn.Module, rows: int, inputs: int, outputs: int, beams: int, static: bool, python: str | None = None
) -> dict[str, Any]:
  """Returns {"name", "tokens_per_second", ...}, or {"name", "error"}."""
  task = dict(
    fields=peer_fields(model), dtype=model.config.compute_dtype, layout=model.batch_layout, rows=rows, inputs=inputs,
    outputs=outputs, beams=beams, static=static,
  )  # fmt: skip
  name = f"Hugging Face, {'static cache and torch.compile' if static else 'plain'}"
  return run_peer("t5like.bench.peer_decode", name, task, _TIMEOUT, python)


def measure(
  fields: Mapping[str, Any], dtype: str, layout: str, rows: int, inputs: int, outputs: int, beams: int, static: bool
) -> dict[str, Any]:  # fmt: skip
  import torch

  device = "cuda" if torch.cuda.is_available() else "cpu"
  model = build(fields, layout).eval().to(device, getattr(torch, dtype))
  tokens = torch.randint(2, fields["vocab_size"], (rows, inputs), generator=torch.Generator().manual_seed(0)).to(device)
  options = dict(
    attention_mask=torch.ones_like(tokens), do_sample=False, num_beams=beams, max_new_tokens=outputs,
    min_new_tokens=outputs, use_cache=True, pad_token_id=0,
  )  # fmt: skip
  if static:
    options["cache_implementation"] = "static"

  def generate() -> float:
    started = time.perf_counter()
    with torch.inference_mode():
      generated = model.generate(tokens, **options)
    generated.cpu()
    return time.perf_counter() - started

  first = generate()
  generate()  # CUDA graphs are recorded on the second run
  times = [generate() for _ in range(_REPEATS)]
  seconds = statistics.median(times)
  return {
    "device": torch.cuda.get_device_name() if device == "cuda" else f"cpu, {torch.get_num_threads()} threads",
    "first_call_seconds": first,
    "seconds": seconds,
    "spread": max(times) / min(times) - 1.0,
    "tokens_per_second": rows * outputs / seconds,
  }


if __name__ == "__main__":
  print(json.dumps(measure(**json.load(sys.stdin))))
