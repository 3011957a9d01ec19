"""Writes tests/data/golden/peft with Hugging Face's peft, on the small models of tests/data/golden.

    pip install peft transformers torch
    python tests/interop/goldens/make_peft_goldens.py          # or some of the cases

Each folder has adapter_config.json, adapter_model.safetensors with random values, and outputs.npz: inputs and logits.
`python tests/interop/goldens/make_peft_goldens.py FOLDER BASE` loads a folder that we wrote and prints its logits as
JSON.
"""

import json
import sys
from pathlib import Path

import numpy as np
import peft
import torch
import transformers

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
XLNET, LLAMA = "peft_bases/xlnet", "peft_bases/llama"  # written here
FUSED = {"fan_in_fan_out": True}
CASES = {
  "t5_lora": ("t5_1_1", peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, lora_alpha=4, target_modules=["q", "v"])),
  "t5_dora": ("t5_1_1", peft.LoraConfig(
    task_type="SEQ_2_SEQ_LM", r=2, use_dora=True, use_rslora=True, target_modules=["o", "wi_0", "wo"],
    rank_pattern={"wo": 1}, alpha_pattern={"encoder.block.0.layer.0.SelfAttention.o": 3},
  )),
  "t5_ia3": ("t5_1_1", peft.IA3Config(
    task_type="SEQ_2_SEQ_LM", target_modules=["k", "v", "wo"], feedforward_modules=["wo"],
  )),
  "gpt2_lora": ("gpt2", peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"], **FUSED)),
  "gpt2_ia3": ("gpt2", peft.IA3Config(
    task_type="CAUSAL_LM", target_modules=["c_attn", "mlp.c_proj"], feedforward_modules=["mlp.c_proj"], **FUSED,
  )),
  "gpt2_saved": ("gpt2", peft.LoraConfig(
    task_type="CAUSAL_LM", r=2, target_modules=["c_attn"], layers_to_transform=[1], layers_pattern="h",
    modules_to_save=["ln_f", "h.1.ln_1", "mlp.c_fc"], **FUSED,
  )),
  "t5_saved": ("t5_1_1", peft.LoraConfig(
    task_type="SEQ_2_SEQ_LM", r=2, target_modules=["q"], modules_to_save=["lm_head", "final_layer_norm"],
  )),
  "gpt2_prompt": ("gpt2", peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)),
  "t5_prompt": ("t5_1_1", peft.PromptTuningConfig(
    task_type="SEQ_2_SEQ_LM", num_virtual_tokens=3, num_transformer_submodules=1,
  )),
  "gpt2_prefix": ("gpt2", peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)),
  "llama_prefix": (LLAMA, peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)),
  "bert_lora": ("heads/BertForSequenceClassification", peft.LoraConfig(
    task_type="SEQ_CLS", r=2, target_modules=["query", "value"],
  )),
  "xlnet_lora": (XLNET, peft.LoraConfig(
    task_type="SEQ_CLS", r=2, target_modules=["layer_1", "layer_2"],
    modules_to_save=["logits_proj", "sequence_summary"],
  )),
}  # fmt: skip
CLASSES = {
  "t5_1_1": transformers.AutoModelForSeq2SeqLM,
  "gpt2": transformers.AutoModelForCausalLM,
  LLAMA: transformers.AutoModelForCausalLM,
  "heads/BertForSequenceClassification": transformers.AutoModelForSequenceClassification,
  XLNET: transformers.AutoModelForSequenceClassification,
}


def make_xlnet() -> None:
  torch.manual_seed(1)
  sizes = dict(vocab_size=30, d_model=12, n_layer=2, n_head=2, d_inner=20, num_labels=3, pad_token_id=0)
  model = transformers.XLNetForSequenceClassification(transformers.XLNetConfig(**sizes))
  for parameter in model.parameters():
    parameter.data += 0.2 * torch.randn_like(parameter)
  model.save_pretrained(GOLDEN / XLNET)


def make_llama() -> None:
  """Four heads of queries, two of keys and values."""
  torch.manual_seed(2)
  sizes = dict(vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
  model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, intermediate_size=20, pad_token_id=0))
  for parameter in model.parameters():
    parameter.data += 0.2 * torch.randn_like(parameter)
  model.save_pretrained(GOLDEN / LLAMA)


def inputs(base: str, vocab_size: int) -> dict[str, torch.Tensor]:
  tokens = torch.from_numpy(np.random.default_rng(0).integers(2, vocab_size, (2, 7)))
  return {"input_ids": tokens} | ({"decoder_input_ids": tokens[:, :5]} if base == "t5_1_1" else {})


def logits(model: torch.nn.Module, base: str) -> np.ndarray:
  model.eval()
  with torch.no_grad():
    return model(**inputs(base, model.config.vocab_size)).logits.numpy()


def make(case: str) -> None:
  base, config = CASES[case]
  torch.manual_seed(0)
  model = peft.get_peft_model(CLASSES[base].from_pretrained(GOLDEN / base), config)
  config.base_model_name_or_path = base
  for parameter in model.parameters():
    if parameter.requires_grad:
      parameter.data += 0.2 * torch.randn_like(parameter)
  folder = GOLDEN / "peft" / case
  model.save_pretrained(folder)
  (folder / "README.md").unlink(missing_ok=True)
  given = {name: x.numpy() for name, x in inputs(base, model.config.vocab_size).items()}
  np.savez_compressed(folder / "outputs.npz", base=base, logits=logits(model, base), **given)


if __name__ == "__main__":
  if len(sys.argv) == 3:
    folder, base = Path(sys.argv[1]), sys.argv[2]
    model = peft.PeftModel.from_pretrained(CLASSES[base].from_pretrained(GOLDEN / base), folder)
    print(json.dumps(logits(model, base).tolist()))
  else:
    cases = sys.argv[1:] or list(CASES)
    if "xlnet_lora" in cases:
      make_xlnet()
    if "llama_prefix" in cases:
      make_llama()
    for case in cases:
      make(case)
