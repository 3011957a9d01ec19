"""Hugging Face's model of the same sizes on the same device, for `t5like bench train --peer`.

float32 parameters under bfloat16 autocast (or plain float32), the same dropout as ours, fused AdamW (torch's fastest
optimizer). It runs in a subprocess, so that neither framework holds memory that the other needs, and with another
interpreter if torch is not installed alongside jax (--peer_python).
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from t5like.errors import RunError

_TIMEOUT = 900  # seconds; torch.compile of a deep model takes minutes


class PeerStep:
  """A train step of Hugging Face's model, as step.Subject. The subprocess receives numbers of steps and answers with
  the seconds they took."""

  def __init__(
    self, fields: Mapping[str, Any], layout: str, rows: int, lengths: Mapping[str, int], dtype: str, compiled: bool,
    python: str | None = None, method: Mapping[str, Any] | None = None,
  ):  # fmt: skip
    """fields: of config.json. method: settings of peft."""
    with_peft = f" with peft's {method['kind']}" if method else ""
    self.name = f"Hugging Face{with_peft}, {'torch.compile' if compiled else 'eager'}"
    self._python = python
    self._task = dict(
      fields=dict(fields),
      layout=layout,
      rows=rows,
      lengths=dict(lengths),
      dtype=dtype,
      compiled=compiled,
      method=dict(method) if method else None,
    )
    self._process: subprocess.Popen | None = None

  def start(self) -> dict[str, Any]:
    self._errors = tempfile.TemporaryFile("w+")
    self._process = subprocess.Popen(
      [self._python or sys.executable, "-m", "t5like.bench.peer"],
      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=child_environment(),
    )  # fmt: skip
    return self._request(self._task)

  def run(self, steps: int) -> float:
    return self._request(steps)

  def close(self) -> dict[str, Any]:
    if self._process is None:
      return {}
    try:
      return self._request(None) if self._process.poll() is None else {}
    finally:
      self._process.kill()
      self._process.wait()
      self._errors.close()

  def _request(self, message: Any) -> Any:
    """Sends a line of JSON and returns the answer."""
    timer = threading.Timer(_TIMEOUT, self._process.kill)
    timer.start()
    try:
      self._process.stdin.write(json.dumps(message) + "\n")
      self._process.stdin.flush()
      answer = self._process.stdout.readline()
    except BrokenPipeError:
      answer = ""
    finally:
      in_time = timer.is_alive()
      timer.cancel()
    if answer:
      return json.loads(answer)
    if not in_time:
      raise RunError(f"timed out after {_TIMEOUT} s")
    self._process.wait()
    self._errors.seek(0)
    raise RunError(_last_line(self._errors.read()))


def run_peer(
  module: str, name: str, task: Mapping[str, Any], limit: float, python: str | None = None
) -> dict[str, Any]:
  """Returns the JSON that `python -m module` prints for a task; {"name", "error"} if it fails."""
  command = [python or sys.executable, "-m", module]
  try:
    done = subprocess.run(
      command, input=json.dumps(task), capture_output=True, text=True, timeout=limit, env=child_environment()
    )
  except subprocess.TimeoutExpired:
    return {"name": name, "error": f"timed out after {limit} s"}
  if done.returncode:
    return {"name": name, "error": _last_line(done.stderr)}
  return {"name": name} | json.loads(done.stdout.splitlines()[-1])


def child_environment() -> dict[str, str]:
  """Returns this process's environment with this package on the path, for interpreters without it."""
  package = str(Path(__file__).resolve().parents[2])
  return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))}


def _last_line(errors: str) -> str:
  return (errors.strip().splitlines() or ["exited without an error message"])[-1]


def build(fields: Mapping[str, Any], layout: str) -> Any:
  """Builds a transformers model from the fields of its config.json."""
  import transformers

  classes = {"encoder_decoder": transformers.AutoModelForSeq2SeqLM, "encoder": transformers.AutoModelForMaskedLM}
  config = transformers.AutoConfig.for_model(**fields, use_cache=False)
  return classes.get(layout, transformers.AutoModelForCausalLM).from_config(config).train()


def peer_fields(model: Any) -> dict[str, Any]:
  """Returns config.json of the Hugging Face model with the same sizes and dropout."""
  from t5like.interop.huggingface import config_fields

  if model.config.prefix_lm:  # transformers has causal attention only; the products are the same
    model = model.clone(config=dataclasses.replace(model.config, prefix_lm=False))
  return config_fields(model)


def prepare(
  fields: Mapping[str, Any],
  layout: str,
  rows: int,
  lengths: Mapping[str, int],
  dtype: str,
  compiled: bool,
  method: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], Callable[[int], float], Callable[[], dict[str, Any]]]:
  """Returns facts known after the first step, a function that times steps, and one that returns facts at the end."""
  import torch

  on_gpu = torch.cuda.is_available()
  device = "cuda" if on_gpu else "cpu"
  torch.set_float32_matmul_precision("high")
  with torch.device(device):
    model = build(fields, layout)
    if method:
      model = _with_peft(model, layout, dtype, **method)
  trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
  optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
  generator = torch.Generator().manual_seed(0)

  def tokens(length):
    return torch.randint(2, fields["vocab_size"], (rows, length), generator=generator).to(device)

  inputs = tokens(lengths["inputs"])
  labels = tokens(lengths.get("targets", lengths["inputs"]))
  call = torch.compile(model) if compiled else model
  low = dtype != "float32"

  def run(steps: int) -> float:
    started = time.perf_counter()
    for _ in range(steps):
      with torch.autocast(device, torch.bfloat16, enabled=low):
        loss = call(input_ids=inputs, labels=labels).loss
      loss.backward()
      optimizer.step()
      optimizer.zero_grad(set_to_none=True)
    if on_gpu:
      torch.cuda.synchronize()
    return time.perf_counter() - started

  first = {
    "device": torch.cuda.get_device_name() if on_gpu else f"cpu, {torch.get_num_threads()} threads",
    "optimizer": "fused AdamW",
    "compile_seconds": run(1),
  }
  return first, run, lambda: {"memory_bytes": torch.cuda.max_memory_allocated() if on_gpu else None}


def _with_peft(model: Any, layout: str, dtype: str, kind: str, **settings: Any) -> Any:
  """Returns peft's model on a frozen base in the dtype of computations, as its users load it."""
  import peft
  import torch

  task = {"encoder_decoder": "SEQ_2_SEQ_LM", "encoder": "FEATURE_EXTRACTION"}.get(layout, "CAUSAL_LM")
  return peft.get_peft_model(model.to(getattr(torch, dtype)), getattr(peft, kind)(task_type=task, **settings)).train()


def serve() -> None:
  """Reads a task from the first line of stdin, then numbers of steps; null ends it."""
  answers = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)  # compilers print to stdout
  known, run, at_end = prepare(**json.loads(sys.stdin.readline()))
  print(json.dumps(known), file=answers, flush=True)
  for line in sys.stdin:
    steps = json.loads(line)
    print(json.dumps(at_end() if steps is None else run(steps)), file=answers, flush=True)


if __name__ == "__main__":
  serve()
