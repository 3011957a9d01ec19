"""Decoding speed in tokens/s, compared with Hugging Face's `generate` and the memory bandwidth limit.

Weights and prompts are random; no row ends early. Times are those of a complete call: transfer of prompts, encoder or
prefill, all steps, transfer of outputs. A step reads the decoder's weights and the filled part of all KV caches once:
the limit is their size over the bandwidth of a copy on this machine.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from t5like.bench.kernels import profile, table
from t5like.bench.step import model_settings
from t5like.errors import UserError

if TYPE_CHECKING:  # help must not wait for jax
  import flax.linen as nn

  from t5like.decoding import DecodeSettings

_REPEATS = 3


@dataclasses.dataclass(frozen=True)
class DecodeBench:
  """Settings of the benchmark: a model of gin/models and the sizes of a call."""

  model: str  # a file of gin/models, such as t5_1_1/base
  batch_size: int = 64
  inputs: int = 512  # tokens of each prompt
  outputs: int = 128  # tokens to generate for each prompt
  beams: int = 1  # 1: greedy
  dtype: str = "bfloat16"
  backend: str = "auto"  # of attention
  peer: bool = True  # measure Hugging Face too, if installed
  peer_python: str | None = None  # an interpreter that has torch; None: this one
  profiled: bool = False  # profile the kernels of a call


def measure_decode(settings: DecodeBench) -> list[dict[str, Any]]:
  """Returns a result per subject, ours last: {"name", "tokens_per_second", ...}, or {"name", "error"} of a peer."""
  model = load_model(settings.model, settings.dtype, settings.backend)
  sizes = settings.batch_size, settings.inputs, settings.outputs, settings.beams
  results = []
  if settings.peer and (settings.peer_python or all(map(importlib.util.find_spec, ("torch", "transformers")))):
    from t5like.bench.peer_decode import measure_in_subprocess

    # Peers run first, in subprocesses: jax keeps the memory that it has allocated.
    results = [measure_in_subprocess(model, *sizes, static, settings.peer_python) for static in (False, True)]
  return [*results, measure(model, *sizes, profiled=settings.profiled)]


def load_model(name: str, dtype: str, backend: str) -> nn.Module:
  from t5like.experiments.reading import read_model

  files = [f"models/{name.removesuffix('.gin')}.gin", "runs/finetune.gin"]
  model = read_model(files, model_settings(dtype, backend)).model
  kind = "an encoder" if model.batch_layout == "encoder" else "recurrent" if hasattr(model, "initial_carry") else ""
  if kind:
    raise UserError(
      f"{name} is {kind}: this measures Transformers that generate", try_="--model=t5_1_1/base or --model=gpt2/medium"
    )
  return model


def measure(
  model: nn.Module, rows: int, inputs: int, outputs: int, beams: int = 1, profiled: bool = False
) -> dict[str, Any]:
  """Times complete calls of the generator that `t5like infer` and `t5like eval` use."""
  import jax

  from t5like import decoding, parallel
  from t5like.inference.generation import Generator

  mesh = parallel.make_mesh(parallel.MeshAxes())
  parallel.check_batch(rows, mesh, "--batch_size")
  prompts = _prompts(model, rows, inputs)
  params = _random_params(model, mesh)
  generator = Generator(model, mesh, eos_id=None)

  def call(length: int) -> Callable[[], object]:
    return lambda: generator(params, prompts, _settings(length, beams))

  started = time.perf_counter()
  call(outputs)()
  first = time.perf_counter() - started
  times = _time_calls(call(outputs))
  # Fewer tokens with the same compiled function: the difference is due to the steps alone.
  fewer = next(n for n in range(1, outputs + 1) if decoding.bucket(n) == decoding.bucket(outputs))
  step = None
  if fewer < outputs:
    step = (statistics.median(times) - statistics.median(_time_calls(call(fewer)))) / (outputs - fewer)
    step = step if step > 0.0 else None  # within noise
  bandwidth = copy_bandwidth()
  step_bytes = bytes_per_step(model, params, prompts, outputs, beams)
  seconds = statistics.median(times)
  limit = rows * bandwidth / step_bytes
  return {
    "name": "t5like",
    "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
    "first_call_seconds": first,
    "seconds": seconds,
    "spread": max(times) / min(times) - 1.0,
    "tokens_per_second": rows * outputs / seconds,
    "step_seconds": step,
    "step_bytes": step_bytes,
    "bandwidth": bandwidth,
    "limit_tokens_per_second": limit,
    "share_of_limit": rows * outputs / seconds / limit,
    "step_share_of_limit": None if step is None else rows / step / limit,
    **({"kernels": profile(lambda _: call(outputs)(), steps=1)} if profiled else {}),
  }


def _settings(length: int, beams: int) -> DecodeSettings:
  from t5like.decoding import DecodeSettings

  return DecodeSettings(max_length=length, **({"method": "beam", "beams": beams} if beams > 1 else {}))


def _prompts(model: nn.Module, rows: int, length: int) -> dict[str, np.ndarray]:
  name = "encoder_input_tokens" if model.batch_layout == "encoder_decoder" else "decoder_input_tokens"
  tokens = np.random.default_rng(0).integers(2, model.config.vocab_size, (rows, length), dtype=np.int32)
  return {name: tokens}


def _random_params(model: nn.Module, mesh: Any) -> Any:
  """Returns weights of realistic magnitude; repeated values do not make matrix products faster."""
  import flax.linen as nn
  import jax

  from t5like import parallel

  one = {name: np.ones((1, 2), np.int32) for name in ("encoder_input_tokens", "decoder_input_tokens")}
  boxed = jax.eval_shape(lambda: model.init(jax.random.key(0), one)["params"])
  numbers = 0.02 * np.random.default_rng(0).standard_normal(1_000_003, dtype=np.float32)
  shardings = parallel.parameter_shardings(boxed, mesh)
  params = jax.tree.map(lambda x: np.resize(numbers, x.shape).astype(x.dtype), nn.meta.unbox(boxed))
  return jax.tree.map(jax.device_put, params, nn.meta.unbox(shardings))


def _time_calls(function: Callable[[], object]) -> list[float]:
  times = []
  for _ in range(_REPEATS):
    started = time.perf_counter()
    function()
    times.append(time.perf_counter() - started)
  return times


def copy_bandwidth() -> float:
  """Returns the bytes per second that a copy of a large array reads and writes, over all devices."""
  import jax
  import jax.numpy as jnp

  count = 2**24 if jax.default_backend() == "cpu" else 2**29
  x = jnp.arange(count, dtype=jnp.float32)
  copy = jax.jit(lambda x, out: -x, donate_argnums=1, keep_unused=True)  # into memory that has been written before
  x, y = copy(x, jnp.zeros_like(x)), x
  times = []
  for _ in range(_REPEATS):
    started = time.perf_counter()
    for _ in range(10):
      x, y = copy(x, y), x
    x.block_until_ready()
    times.append((time.perf_counter() - started) / 10)
  devices = 1 if jax.default_backend() == "cpu" else jax.device_count()
  return devices * 2 * x.nbytes / min(times)


def bytes_per_step(model: nn.Module, params: Any, prompts: Mapping[str, np.ndarray], outputs: int, beams: int) -> float:
  """Returns the bytes of decoder weights and KV caches (at their average fill), each read once."""
  import jax

  from t5like.models.stepping import prepare

  variables = jax.eval_shape(lambda p: prepare(model, p)[1], params)["params"]
  read = {name: variables[name] for name in ("decoder", "shared", "logits_dense") if name in variables}
  if model.config.tie_embeddings:
    read["embedding"] = variables["token_embedder"]["embedding"]
  weights = sum(
    _bytes(leaf)
    for path, leaf in jax.tree.leaves_with_path(read)
    # Keys and values of the encoder's outputs are computed once.
    if not any(f"['cross_attention']['{part}']" in jax.tree_util.keystr(path) for part in ("key", "value"))
  )
  layers = jax.eval_shape(lambda p: _started(model, p, prompts, outputs, beams), params)["layers"]
  fixed = sum(_bytes(layer[part]) for layer in layers for part in ("prompt", "cross") if part in layer)
  generated = sum(_bytes(layer["generated"]) for layer in layers)
  return weights + fixed + generated * (outputs + 1) / 2 / outputs


def _started(model: nn.Module, params: Any, prompts: Mapping[str, np.ndarray], outputs: int, beams: int) -> dict:
  from t5like.models.stepping import prepare

  model, variables = prepare(model, params)
  return model.apply(variables, prompts, outputs, beams, method="start_decoding")


def _bytes(array: Any) -> int:
  return array.size * array.dtype.itemsize


def describe(result: Mapping[str, Any], kernels: int = 0) -> str:
  """Formats a result, with the `kernels` most expensive kernels of a call if it was profiled."""
  if "error" in result:
    return f"{result['name']}: {result['error']}"
  lines = [
    f"{result['name']}: {result['tokens_per_second']:,.0f} tokens/s ({result['seconds']:.3f} s per batch, "
    f"spread {result['spread']:.1%})",
    f"  {result['device']}, first call {result['first_call_seconds']:.1f} s",
  ]
  if "limit_tokens_per_second" in result:
    lines.append(
      f"  limit {result['limit_tokens_per_second']:,.0f} tokens/s: {result['step_bytes'] / 1e9:.3g} GB per step at "
      f"{result['bandwidth'] / 1e12:.3g} TB/s; {result['share_of_limit']:.1%} of it"
    )
  if result.get("step_seconds"):
    lines.append(f"  {1e3 * result['step_seconds']:.3f} ms per step, {result['step_share_of_limit']:.1%} of the limit")
  if "kernels" in result:
    lines.append(table(result["kernels"], kernels))
  return "\n".join(lines)


def compare(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
  """Yields a sentence for each peer that was measured."""
  *peers, ours = results
  for peer in peers:
    if "tokens_per_second" in peer:
      yield f"t5like is {ours['tokens_per_second'] / peer['tokens_per_second']:.2f} times {peer['name']}"
