"""Writes tests/data/golden/decoders: the results of Hugging Face's decoders, one file per family.

Not a test; needs torch and transformers:

    python tests/interop/goldens/make_decoder_goldens.py [FAMILY ...]

FAMILY.npz has for each class: a description in JSON (config.json, and the shapes of all tensors, whose values
zoo_weights.draw gives), the inputs, logits, loss, and gradients, flattened and joined in the order of the names; of a
language model also prompts and what `generate` appends to each, greedily.
Made with transformers 5.22, torch 2.13.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from drawn_models import describe, draw_weights
from head_cases import run

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "decoders"
USELESS = ("transformers_version", "use_cache", "_name_or_path", "dtype", "is_decoder")
SIZES = dict(vocab_size=23, hidden_size=12, num_hidden_layers=2, num_attention_heads=4, attn_implementation="eager")
LLAMA = SIZES | dict(
  intermediate_size=15, num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, pad_token_id=0, head_dim=6
)
# Wavelengths from 6 to 62 positions: kept, interpolated and stretched.
ROPE = dict(
  rope_type="llama3", rope_theta=30.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=3.0,
  original_max_position_embeddings=32,
)  # fmt: skip
TIED = dict(
  tie_word_embeddings=True, num_key_value_heads=1, attention_bias=True, mlp_bias=True,
  rope_parameters=dict(rope_type="linear", rope_theta=10_000.0, factor=2.0),
)  # fmt: skip
OLMO2 = {k: v for k, v in LLAMA.items() if k != "head_dim"} | dict(hidden_size=16)
OPT = SIZES | dict(ffn_dim=17, max_position_embeddings=29)
OPT_350M = OPT | dict(word_embed_proj_dim=5, do_layer_norm_before=False)
BLOOM = dict(vocab_size=23, hidden_size=12, n_layer=2, n_head=6, pad_token_id=0, attn_implementation="eager")
# By family: the beginning of class names, the fields of config.json, and the class.
FAMILIES = {
  "llama": [
    ("Llama", LLAMA | dict(rope_parameters=ROPE), "CausalLM"),
    ("Llama", LLAMA | TIED, "CausalLM"),
    *(("Llama", LLAMA, head) for head in ("SequenceClassification", "TokenClassification", "QuestionAnswering")),
  ],
  "mistral": [
    ("Mistral", LLAMA | dict(sliding_window=5), "CausalLM"),
    *(("Mistral", LLAMA | dict(sliding_window=5), head) for head in ("TokenClassification", "QuestionAnswering")),
  ],
  "olmo2": [("Olmo2", OLMO2, "CausalLM"), ("Olmo2", OLMO2, "SequenceClassification")],
  "opt": [
    ("OPT", OPT, "CausalLM"),
    ("OPT", OPT_350M, "CausalLM"),
    *(("OPT", OPT, head) for head in ("SequenceClassification", "QuestionAnswering")),
  ],
  "bloom": [("Bloom", BLOOM, head) for head in ("CausalLM", "SequenceClassification", "TokenClassification")],
}
LABELS = {0: "negative", 1: "neutral – ±", 2: "positive"}
PROMPTS, NEW = (6, 3), 9


def make_model(name: str, fields: dict, head: str, seed: int):
  """Returns a model in which every tensor is drawn."""
  labels = {} if head == "CausalLM" else dict(id2label=LABELS, label2id={label: i for i, label in LABELS.items()})
  config = getattr(transformers, f"{name}Config")(**fields, **labels)
  return draw_weights(getattr(transformers, f"{name}For{head}")(config).eval(), seed)


def make_inputs(model, head: str, seed: int) -> dict[str, np.ndarray]:
  """Returns rows padded on the right with the model's padding id, which no text has, and labels."""
  rng, pad = np.random.default_rng(seed), model.config.pad_token_id
  # The softmax over answers includes padding, whose states no text depends on.
  lengths = np.array((13, 13) if head == "QuestionAnswering" else (13, 7))
  mask = (np.arange(13)[None] < lengths[:, None]).astype(np.int64)
  ids = np.where(mask, rng.choice([i for i in range(23) if i != pad], mask.shape), pad)
  inputs = dict(input_ids=ids, attention_mask=mask)
  if head == "QuestionAnswering":
    return inputs | dict(start_positions=np.array([2, 5]), end_positions=lengths - 1)
  if head == "SequenceClassification":
    return inputs | dict(labels=rng.integers(0, 3, 2))
  labels = ids if head == "CausalLM" else rng.integers(0, 3, mask.shape)
  return inputs | dict(labels=np.where(mask, labels, -100))


def generate(model, seed: int) -> dict[str, np.ndarray]:
  """Returns prompts, padded with 0, and the tokens after each; asserts that no choice is a matter of rounding."""
  rng = np.random.default_rng(seed)
  prompts, generated = np.zeros((len(PROMPTS), max(PROMPTS)), np.int64), []
  model.generation_config.eos_token_id = None
  for row, length in enumerate(PROMPTS):
    prompts[row, :length] = rng.integers(2, 23, length)
    out = model.generate(
      torch.tensor(prompts[row : row + 1, :length]), attention_mask=torch.ones((1, length), dtype=torch.long),
      do_sample=False, max_new_tokens=NEW, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    best = np.sort(torch.cat(out.logits).numpy(), axis=-1)
    assert np.min(best[:, -1] - best[:, -2]) > 1e-3, "nearly equal logits: another seed"
    generated.append(out.sequences[0, length:].numpy())
  return dict(prompts=prompts, prompt_lengths=np.array(PROMPTS), generated=np.stack(generated))


def main(families: list[str]) -> None:
  for family in families or FAMILIES:
    arrays: dict[str, np.ndarray] = {}
    for seed, (name, fields, head) in enumerate(FAMILIES[family]):
      model, case = make_model(name, fields, head, seed), f"{name}For{head}"
      case = case if f"{case}/loss" not in arrays else f"{case}-{seed}"
      values = make_inputs(model, head, seed)
      logits, loss, gradients = run(model, values)
      values |= generate(model, seed) if head == "CausalLM" else {}
      description, tensors = describe(model, seed, USELESS)
      assert tensors == sorted(gradients)
      values = {n: x.astype(np.int8) for n, x in values.items()}
      joined = np.concatenate([gradients[n].ravel() for n in sorted(gradients)])
      values |= dict(logits=logits, loss=np.float32(loss), gradients=joined, description=description)
      arrays |= {f"{case}/{n}": x for n, x in values.items()}
    GOLDEN.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(GOLDEN / f"{family}.npz", **arrays)


if __name__ == "__main__":
  main(sys.argv[1:])
