"""Hugging Face's decoders other than GPT-2: logits, loss, gradients and greedy outputs by golden files, and bits."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest
from head_batches import compare, head_batch
from round_trips import check_round_trip
from safetensors.numpy import load_file, save_file
from zoo_goldens import all_cases, golden, parameters, take_results

from t5like import parallel
from t5like.decoding import DecodeSettings
from t5like.errors import UserError
from t5like.finetuning.methods import LoRA
from t5like.inference.generation import Generator
from t5like.inference.parameters.peft_export import export_peft
from t5like.inference.parameters.peft_import import import_peft
from t5like.interop import huggingface
from t5like.interop.hf_fields import guess_model_type
from t5like.interop.layouts import flatten, unflatten
from t5like.interop.peft_files import read_folder
from t5like.kernels.cross_entropy import cross_entropy
from t5like.models import GPT, TransformerConfig

CASES = all_cases("decoders")
MODELS = [(name, case) for name, case in CASES if "CausalLM" in case]
# Grouped heads and Llama 3's rotary positions; QK-norm and norms of branches; projected embeddings, post-norm and a
# position offset; ALiBi and a fused tensor.
DEFAULT = {"LlamaForCausalLM", "Olmo2ForCausalLM", "OPTForCausalLM-1", "BloomForCausalLM"}


@pytest.mark.parametrize("name, case", parameters(CASES, *DEFAULT))
@pytest.mark.parametrize("scan_layers", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_logits_loss_and_gradients_equal_transformers(name, case, scan_layers, tmp_path):
  arrays = golden(name, case, tmp_path / "theirs")
  logits, loss, gradients = take_results(arrays)
  imported = huggingface.load(tmp_path / "theirs", scan_layers=scan_layers)
  if "CausalLM" not in case:
    return compare(imported, head_batch(imported.model, arrays), logits, loss, gradients, tmp_path)
  tokens, labels = arrays["input_ids"].astype(np.int32), arrays["labels"].astype(np.int32)[:, 1:]

  def results(params):
    logits = imported.model.apply({"params": params}, {"decoder_input_tokens": tokens})["logits"]
    losses = cross_entropy(logits[:, :-1], np.maximum(labels, 0), 0.0, 0.0)[0]
    weights = (labels >= 0).astype(np.float32)
    return (losses * weights).sum() / weights.sum(), logits

  (value, ours), grads = jax.jit(jax.value_and_grad(results, has_aux=True))(imported.params)
  real = arrays["attention_mask"] > 0
  np.testing.assert_allclose(np.asarray(ours)[real], logits[real], rtol=0, atol=1e-4)
  np.testing.assert_allclose(value, loss, rtol=1e-5)
  huggingface.save(tmp_path / "gradients", imported.model, jax.device_get(grads))
  found = load_file(tmp_path / "gradients" / "model.safetensors")
  assert sorted(found) == sorted(gradients)
  scale = np.sqrt(sum(np.sum(np.square(x)) for x in gradients.values()))
  for tensor, expected in gradients.items():  # those of key biases are zero but for rounding
    error = np.linalg.norm(found[tensor] - expected)
    assert error <= 1e-4 * np.linalg.norm(expected) + 1e-6 * scale, tensor


@pytest.mark.parametrize("name, case", parameters(MODELS, "Olmo2ForCausalLM", "BloomForCausalLM"))
def test_greedy_outputs_equal_transformers(name, case, tmp_path):
  """Token by token, from prompts of different lengths; the cache has the heads of keys only."""
  arrays = golden(name, case, tmp_path)
  imported = huggingface.load(tmp_path)
  lengths, prompts = arrays["prompt_lengths"], arrays["prompts"].astype(np.int32)
  segments = (np.arange(prompts.shape[1]) < lengths[:, None]).astype(np.int32)
  batch = {"decoder_input_tokens": prompts, "decoder_segment_ids": segments}
  mesh = parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:1])
  count = arrays["generated"].shape[1]
  decoded = Generator(imported.model, mesh, None)(imported.params, batch, DecodeSettings(max_length=count))
  np.testing.assert_array_equal(decoded.tokens[:, 0], arrays["generated"])
  start = functools.partial(imported.model.apply, max_decode_length=4, method="start_decoding")
  cache = jax.eval_shape(start, {"params": imported.params}, batch)
  assert cache["layers"][0]["generated"].shape[2] == imported.model.config.kv_heads


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name, case", [pytest.param(name, case, id=case) for name, case in CASES])
def test_round_trip_is_bit_exact(name, case, tmp_path):
  golden(name, case, tmp_path / "theirs")
  scanned = len(case) % 2 == 0  # each half of the classes in one layout
  check_round_trip(tmp_path / "theirs", tmp_path / "ours", scanned, changed=("classifier_dropout", "dtype"))


def test_older_files(tmp_path):
  """rope_theta and rope_scaling instead of rope_parameters, a buffer of frequencies, shards with an index."""
  golden("llama", "LlamaForCausalLM", tmp_path)
  expected = huggingface.load(tmp_path)
  path = tmp_path / "config.json"
  config = json.loads(path.read_text())
  rope = config.pop("rope_parameters")
  config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope | {"type": rope.pop("rope_type")}}
  assert guess_model_type({k: v for k, v in config.items() if k != "model_type"}) == "llama"
  path.write_text(json.dumps(config))
  tensors = load_file(tmp_path / "model.safetensors")
  (tmp_path / "model.safetensors").unlink()
  tensors |= {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(3, np.float32)}
  names = sorted(tensors)
  files = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(2)}
  for file, part in files.items():
    save_file({n: tensors[n] for n in part}, tmp_path / file)
  index = {"weight_map": {n: file for file, part in files.items() for n in part}}
  (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
  again = huggingface.load(tmp_path)
  assert again.model == expected.model and again.report.unexpected == []
  jax.tree.map(np.testing.assert_array_equal, again.params, expected.params)


def test_rope_scaling_added_to_newer_files_is_read_alone(tmp_path):
  """As in transformers 5, where it replaces rope_parameters."""
  golden("llama", "LlamaForCausalLM", tmp_path)
  path = tmp_path / "config.json"
  added = {
    "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    "rope_parameters": {"rope_theta": 7.0, "factor": 2.0},
  }
  path.write_text(json.dumps(json.loads(path.read_text()) | added))
  config = huggingface.load(tmp_path).model.config
  assert (config.rotary_scaling, config.rotary_factor, config.rotary_base) == ("linear", 4.0, 10_000.0)


@pytest.mark.parametrize(
  "name, case, fields, words",
  [
    ("llama", "LlamaForCausalLM", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "type 'dynamic'"),
    ("llama", "LlamaForCausalLM", {"rope_scaling": {"type": "yarn", "factor": 2.0}, "rope_parameters": None}, "'yarn'"),
    ("llama", "LlamaForCausalLM", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = '0.5' is not supported"),
    ("llama", "LlamaForCausalLM", {"quantization_config": {"bits": 4}}, "quantization_config"),
    ("llama", "LlamaForCausalLM", {"sliding_window": 4}, "Llama with sliding_window"),
    ("llama", "LlamaForCausalLM", {"attention_bias": True}, "attention_bias = True, mlp_bias = "),
    ("llama", "LlamaForCausalLM", {"hidden_act": None}, "unknown activation None"),
    ("llama", "LlamaForCausalLM", {"num_key_value_heads": 3}, "num_kv_heads: 3"),
    ("olmo2", "Olmo2ForCausalLM", {"attention_bias": True}, "Olmo2 with attention_bias"),
    ("opt", "OPTForCausalLM", {"_remove_final_layer_norm": True}, "_remove_final_layer_norm"),
    ("opt", "OPTForCausalLM", {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine"),
    ("bloom", "BloomForCausalLM", {"apply_residual_connection_post_layernorm": True}, "post_layernorm"),
    ("bloom", "BloomForCausalLM", {"slow_but_exact": True, "pretraining_tp": 2}, "slow_but_exact = True"),
  ],
)
def test_what_is_not_supported_is_rejected(name, case, fields, words, tmp_path):
  golden(name, case, tmp_path)
  path = tmp_path / "config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | fields))
  with pytest.raises(UserError, match=words):
    huggingface.load(tmp_path)


def test_a_missing_output_projection_is_an_error(tmp_path):
  golden("mistral", "MistralForCausalLM", tmp_path)
  tensors = load_file(tmp_path / "model.safetensors")
  tensors.pop("lm_head.weight")
  save_file(tensors, tmp_path / "model.safetensors")
  with pytest.raises(UserError, match="not tied"):
    huggingface.load(tmp_path)


@pytest.mark.parametrize(
  "name, case", [pytest.param("llama", "LlamaForCausalLM", marks=pytest.mark.slow), ("bloom", "BloomForCausalLM")]
)
def test_updates_of_low_rank_are_written_for_peft(name, case, tmp_path):
  """With peft's names; the update of each matrix, B A, is that of ours in the order of their outputs."""
  golden(name, case, tmp_path)
  imported, method = huggingface.load(tmp_path), LoRA(targets=[r".*attention/(query|value)"], rank=2, alpha=4.0)
  model, rng = method.tune(imported.model), np.random.default_rng(0)
  shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), {"decoder_input_tokens": np.ones((1, 1), np.int32)}))
  own = {path: box.unbox().shape for path, box in flatten(shapes["params"]).items() if "lora" in path}
  own = {path: rng.normal(size=shape).astype(np.float32) for path, shape in own.items()}
  export_peft(tmp_path / "peft", imported.model, unflatten(flatten(imported.params) | own), method, name)
  folder = read_folder(tmp_path / "peft")
  tensors = folder.tensors
  ours = {part: own[f"decoder/layers_1/attention/{part}/lora_a"] @ own[f"decoder/layers_1/attention/{part}/lora_b"]
          for part in ("query", "value")}  # fmt: skip
  if name == "llama":
    assert folder.config["target_modules"] == ["q_proj", "v_proj"]
    module, expected = "model.layers.1.self_attn.v_proj", ours["value"]
  else:
    zero = np.zeros_like(ours["query"])
    by_head = np.stack([x.reshape(12, 6, 2) for x in (ours["query"], zero, ours["value"])], axis=2)
    module, expected = "transformer.h.1.self_attention.query_key_value", by_head.reshape(12, -1)
  found = tensors[f"{module}.lora_B.weight"] @ tensors[f"{module}.lora_A.weight"]
  np.testing.assert_allclose(found.T, expected, rtol=1e-5, atol=1e-5)
  again = import_peft(folder, imported.model).arrays
  path = "decoder/layers_1/attention/value/lora_"
  np.testing.assert_allclose(again[f"{path}a"] @ again[f"{path}b"], ours["value"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
  "kind, fields, words",
  [("llama", {"attention_window": 4}, "attention_window = 4"), ("bloom", {"positions": "rotary"}, "'rotary'")],
)
def test_another_model_is_not_exported_as_a_family(kind, fields, words, tmp_path):
  name = {"llama": "LlamaForCausalLM", "bloom": "BloomForCausalLM"}[kind]
  golden(kind, name, tmp_path)
  imported = huggingface.load(tmp_path)
  config: TransformerConfig = dataclasses.replace(imported.model.config, **fields)
  with pytest.raises(UserError, match=words):
    huggingface.save(tmp_path / "out", GPT(config, kind), imported.params)
