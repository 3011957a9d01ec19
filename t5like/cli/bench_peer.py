"""Hugging Face's model of the same sizes on the same device, for `t5like bench train --peer`.

float32 parameters under bfloat16 autocast (or plain float32), no dropout, the fused AdamW that is torch's fastest
optimizer. It runs in a process of its own, so that neither framework holds memory that the other needs.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from t5like.models.config import TransformerConfig

_WINDOWS = 3
_LIMIT = 900  # seconds; torch.compile of a deep model takes minutes


def measure_in_a_process(
  config: TransformerConfig, layout: str, rows: int, lengths: Mapping[str, int], dtype: str, steps: int, compiled: bool
) -> dict[str, Any]:
  """A result as bench_train.measure gives it, or {"name", "error"}."""
  task = dict(
    config=dataclasses.asdict(config), layout=layout, rows=rows, lengths=dict(lengths), dtype=dtype, steps=steps,
    compiled=compiled,
  )  # fmt: skip
  name = f"Hugging Face, {'torch.compile' if compiled else 'eager'}"
  return run_peer("t5like.cli.bench_peer", name, task, _LIMIT)


def run_peer(module: str, name: str, task: Mapping[str, Any], limit: float) -> dict[str, Any]:
  """What `python -m module` prints for a task as JSON, in a process of its own; {"name", "error"} where it fails."""
  command = [sys.executable, "-m", module]
  try:
    done = subprocess.run(command, input=json.dumps(task), capture_output=True, text=True, timeout=limit)
  except subprocess.TimeoutExpired:
    return {"name": name, "error": f"not done after {limit} s"}
  if done.returncode:
    return {"name": name, "error": (done.stderr.strip().splitlines() or ["failed without a word"])[-1]}
  return {"name": name} | json.loads(done.stdout.splitlines()[-1])


def build(config: Mapping[str, Any], layout: str) -> Any:
  """A transformers model with the sizes of a TransformerConfig (as a dict), randomly initialised, without dropout."""
  import transformers

  if layout == "encoder_decoder":
    activation = {"gelu": "gelu_new"}.get(config["activation"], config["activation"])
    made = transformers.T5ForConditionalGeneration(
      transformers.T5Config(
        vocab_size=config["vocab_size"], d_model=config["embed_dim"], d_kv=config["head_dim"], d_ff=config["mlp_dim"],
        num_layers=config["num_encoder_layers"], num_decoder_layers=config["num_decoder_layers"],
        num_heads=config["num_heads"], dropout_rate=0.0, use_cache=False, decoder_start_token_id=0,
        feed_forward_proj="gated-gelu" if config["gated_mlp"] else activation,
        tie_word_embeddings=config["tie_embeddings"],
      )
    )  # fmt: skip
  elif layout == "encoder":
    made = transformers.BertForMaskedLM(
      transformers.BertConfig(
        vocab_size=config["vocab_size"], hidden_size=config["embed_dim"], intermediate_size=config["mlp_dim"],
        num_hidden_layers=config["num_encoder_layers"], num_attention_heads=config["num_heads"],
        max_position_embeddings=config["max_positions"], hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
      )
    )  # fmt: skip
  else:
    made = transformers.GPT2LMHeadModel(
      transformers.GPT2Config(
        vocab_size=config["vocab_size"], n_embd=config["embed_dim"], n_inner=config["mlp_dim"],
        n_layer=config["num_decoder_layers"], n_head=config["num_heads"],
        n_positions=config["max_positions"] or 1024, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
      )
    )  # fmt: skip
  return made.train()


def measure(
  config: Mapping[str, Any], layout: str, rows: int, lengths: Mapping[str, int], dtype: str, steps: int, compiled: bool
) -> dict[str, Any]:
  import torch

  on_gpu = torch.cuda.is_available()
  device = "cuda" if on_gpu else "cpu"
  torch.set_float32_matmul_precision("high")
  with torch.device(device):
    model = build(config, layout)
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
  generator = torch.Generator().manual_seed(0)

  def tokens(length):
    return torch.randint(2, config["vocab_size"], (rows, length), generator=generator).to(device)

  inputs = tokens(lengths["inputs"])
  labels = tokens(lengths.get("targets", lengths["inputs"]))
  call = torch.compile(model) if compiled else model
  low = dtype != "float32"

  def step():
    with torch.autocast(device, torch.bfloat16, enabled=low):
      loss = call(input_ids=inputs, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss

  def wait():
    if on_gpu:
      torch.cuda.synchronize()

  started = time.perf_counter()
  step()
  wait()
  first = time.perf_counter() - started
  times = []
  for window in range(_WINDOWS + 1):
    count = 3 if window == 0 else max(steps // _WINDOWS, 1)
    started = time.perf_counter()
    for _ in range(count):
      step()
    wait()
    if window:
      times.append((time.perf_counter() - started) / count)
  return {
    "device": torch.cuda.get_device_name() if on_gpu else f"cpu, {torch.get_num_threads()} threads",
    "optimizer": "fused AdamW",
    "compile_seconds": first,
    "step_seconds": statistics.median(times),
    "spread": max(times) / min(times) - 1.0,
    "memory_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
  }


if __name__ == "__main__":
  print(json.dumps(measure(**json.load(sys.stdin))))
