"""Embeddings by sentence-transformers, for `t5like bench embed`; by plain transformers where it is not installed.

It runs in a subprocess, so that neither framework holds memory that the other needs.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from t5like.bench.embed import summary

_REPEATS = 3


def measure(folder: str, texts: str, batch_size: int, dtype: str) -> dict[str, Any]:
  import torch

  device = "cuda" if torch.cuda.is_available() else "cpu"
  given = json.loads(Path(texts).read_text(encoding="utf-8"))
  has_library = importlib.util.find_spec("sentence_transformers") is not None
  make = _sentence_transformers if has_library else _transformers
  encode, count = make(folder, batch_size, device, getattr(torch, dtype))

  def call() -> float:
    started = time.perf_counter()
    encode(given)
    return time.perf_counter() - started

  first, times = call(), [call() for _ in range(_REPEATS)]
  kind = torch.cuda.get_device_name() if device == "cuda" else "cpu"
  name = "sentence-transformers" if has_library else "transformers, sorted by length, mean"
  return summary(name, kind, count(given), len(given), first, times)


def _sentence_transformers(folder: str, batch_size: int, device: str, dtype: Any) -> tuple[Callable, Callable]:
  from sentence_transformers import SentenceTransformer

  model = SentenceTransformer(folder, device=device, model_kwargs={"torch_dtype": dtype})
  length = model.max_seq_length

  def count(texts: list[str]) -> int:
    return sum(map(len, model.tokenizer(texts, truncation=True, max_length=length)["input_ids"]))

  return (lambda texts: model.encode(texts, batch_size=batch_size, show_progress_bar=False)), count


def _transformers(folder: str, batch_size: int, device: str, dtype: Any) -> tuple[Callable, Callable]:
  """Embeds as SentenceTransformer.encode does: sorts texts by length, pads batches to their longest, takes the mean."""
  import torch
  from transformers import AutoModel, AutoTokenizer

  tokenizer = AutoTokenizer.from_pretrained(folder)
  model = AutoModel.from_pretrained(folder).eval().to(device, dtype)
  settings = Path(folder) / "sentence_bert_config.json"
  own = json.loads(settings.read_text()).get("max_seq_length") if settings.is_file() else None
  length = own or min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", 512))
  if tokenizer.pad_token is None:
    tokenizer.pad_token = tokenizer.eos_token

  def encode(texts: list[str]) -> Any:
    order = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
    found = []
    with torch.inference_mode():
      for first in range(0, len(texts), batch_size):
        part = [texts[number] for number in order[first : first + batch_size]]
        batch = tokenizer(part, padding=True, truncation=True, max_length=length, return_tensors="pt").to(device)
        states = model(**batch).last_hidden_state
        mask = batch["attention_mask"][:, :, None].to(states.dtype)
        found.append(torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1)))
      return torch.cat(found).float().cpu().numpy()[torch.argsort(torch.tensor(order)).numpy()]

  def count(texts: list[str]) -> int:
    return sum(map(len, tokenizer(texts, truncation=True, max_length=length)["input_ids"]))

  return encode, count


if __name__ == "__main__":
  print(json.dumps(measure(**json.load(sys.stdin))))
