"""Writes tests/data/golden/bart: the results of Hugging Face's BART and mBART, tiny models of odd sizes.

Not a test; needs torch and transformers:

    python tests/interop/goldens/make_bart_goldens.py

models.npz has for each class what make_zoo_goldens.py describes. decoding.json has the outputs of `generate` with the
settings of bart-large-cnn, scaled down, and others; the models are those of models.npz. Made with transformers 5.22.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from make_zoo_goldens import USELESS
from safetensors.numpy import load_file
from zoo_weights import draw

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "bart"
SIZES = dict(
  vocab_size=29, d_model=6, encoder_layers=2, decoder_layers=3, encoder_ffn_dim=7, decoder_ffn_dim=7,
  encoder_attention_heads=2, decoder_attention_heads=2, max_position_embeddings=21, attn_implementation="eager",
)  # fmt: skip
LABELS = ["negative", "neutral – ±", "positive"]
# Of mBART: the code of the target language is the first input of the decoder.
CASES = {
  "BartForConditionalGeneration": SIZES,
  "MBartForConditionalGeneration": SIZES | dict(scale_embedding=True, decoder_start_token_id=27),
  "BartForSequenceClassification": SIZES | dict(id2label=dict(enumerate(LABELS))),
  "BartForQuestionAnswering": SIZES,
}
# Of bart-large-cnn: 4 beams, length penalty 2, no repeated trigrams, 56 to 142 tokens, forced ends, early stopping.
CNN = dict(num_beams=4, length_penalty=2.0, no_repeat_ngram_size=3, early_stopping=True)
DECODING = {
  "large-cnn": CNN | dict(min_length=8, max_length=19, forced_bos_token_id=0, forced_eos_token_id=2),
  "large-cnn, short": CNN | dict(min_length=3, max_length=7, forced_bos_token_id=0, forced_eos_token_id=2),
  "greedy": dict(max_length=15),
  "greedy, bigrams": dict(max_length=15, no_repeat_ngram_size=2, forced_eos_token_id=2),
  "greedy, unigrams": dict(max_length=12, no_repeat_ngram_size=1, min_length=5),
  "greedy, language": dict(max_length=15, forced_bos_token_id=26),
  "3 beams, never": dict(
    num_beams=3, max_length=14, early_stopping="never", length_penalty=0.7, no_repeat_ngram_size=2
  ),
  "2 beams, heuristic": dict(num_beams=2, max_length=14, min_length=6, forced_eos_token_id=2, no_repeat_ngram_size=4),
}  # fmt: skip


def make_model(name: str, seed: int):
  """Returns a model in which every tensor is drawn, but for BART's constant biases of logits; also its description."""
  kind = "MBart" if name.startswith("M") else "Bart"
  model = getattr(transformers, name)(getattr(transformers, f"{kind}Config")(**CASES[name])).eval()
  with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    config = json.loads((Path(folder) / "config.json").read_text())
    shapes = {n: list(x.shape) for n, x in sorted(load_file(Path(folder) / "model.safetensors").items())}
  drawn, state = draw(shapes, seed), model.state_dict()
  with torch.no_grad():
    for tensor, value in drawn.items():
      if tensor != "final_logits_bias" or kind == "MBart":
        state[tensor].copy_(torch.tensor(value))
  config = {k: v for k, v in config.items() if k not in USELESS}
  return model, {"seed": seed, "config": config, "tensors": shapes}


def make_inputs(name: str, seed: int, lengths: tuple[int, ...] = (11, 6, 3)) -> dict[str, np.ndarray]:
  """Returns rows <s> text </s>, padded on the right with 1, and labels."""
  rng = np.random.default_rng(seed)
  ends = np.array(lengths) - 1
  mask = (np.arange(max(lengths))[None] <= ends[:, None]).astype(np.int64)
  ids = rng.integers(3, 26, mask.shape)
  ids[:, 0], ids[np.arange(len(ids)), ends] = 0, 2
  inputs = dict(input_ids=np.where(mask, ids, 1), attention_mask=mask)
  if name.endswith("QuestionAnswering"):
    return inputs | dict(start_positions=rng.integers(0, ends + 1) // 2, end_positions=ends)
  if name.endswith("Classification"):
    return inputs | {"labels": rng.integers(0, len(LABELS), len(ids))}
  labels = rng.choice([i for i in range(29) if i != 1], (len(ids), 9))  # torch does not train the row of padding
  return inputs | {"labels": np.where(np.arange(9)[None] < np.array([9, 2, 5])[:, None], labels, -100)}


def run(model, inputs: dict) -> dict[str, np.ndarray]:
  tensors = {n: torch.tensor(x) for n, x in inputs.items()}
  if "labels" in inputs and inputs["labels"].ndim == 2:  # as in mBART's fine-tuning on one language
    shift = transformers.models.bart.modeling_bart.shift_tokens_right
    tensors["decoder_input_ids"] = shift(tensors["labels"], 1, model.config.decoder_start_token_id)
  out = model(**tensors)
  out.loss.backward()
  logits = torch.stack([out.start_logits, out.end_logits], -1) if "start_logits" in out else out.logits
  names = dict(model.named_parameters())
  joined = np.concatenate([names[n].grad.numpy().ravel() for n in sorted(names)])
  found = dict(logits=logits.detach().numpy(), loss=np.float32(out.loss.item()), gradients=joined)
  if "decoder_input_ids" in tensors:
    found["decoder_input_ids"] = tensors["decoder_input_ids"].numpy()
  return found


def generate(model, inputs: dict, options: dict, eos: int) -> dict:
  options = {"num_beams": 1, "early_stopping": False} | options
  options["forced_eos_token_id"] = eos if "forced_eos_token_id" in options else None
  out = model.generate(
    torch.tensor(inputs["input_ids"]), attention_mask=torch.tensor(inputs["attention_mask"]), do_sample=False,
    return_dict_in_generate=True, output_scores=True, num_return_sequences=options["num_beams"], eos_token_id=eos,
    **options,
  )  # fmt: skip
  rows = [row[1:].tolist() for row in out.sequences]
  scores = None if out.get("sequences_scores") is None else out.sequences_scores.tolist()
  return {"options": options, "sequences": [r[: r.index(eos) + 1] if eos in r else r for r in rows], "scores": scores}


def decode(model, inputs: dict) -> dict:
  """Returns the outputs, with the end-of-sequence that random weights generate at the most different times."""

  def variety(eos: int) -> int:
    cases = (generate(model, inputs, DECODING[case], eos) for case in ("3 beams, never", "greedy, bigrams"))
    return sum(len({len(row) for row in case["sequences"]}) for case in cases)

  eos = max(range(3, 26), key=variety)
  found = {case: generate(model, inputs, options, eos) for case, options in DECODING.items()}
  for case, result in found.items():
    print(case, [len(row) for row in result["sequences"]])
  return {"eos_id": eos, "cases": found}


def main() -> None:
  arrays: dict[str, np.ndarray] = {}
  decoding = {}
  for seed, name in enumerate(CASES):
    model, described = make_model(name, seed)
    inputs = make_inputs(name, seed)
    values = {n: x.astype(np.int8) for n, x in inputs.items()} | run(model, inputs)
    if "decoder_input_ids" in values:
      values["decoder_input_ids"] = values["decoder_input_ids"].astype(np.int8)
      decoding[name] = decode(model, inputs)
    values["description"] = np.frombuffer(json.dumps(described).encode(), np.uint8)
    arrays |= {f"{name}/{n}": x for n, x in values.items()}
  GOLDEN.mkdir(parents=True, exist_ok=True)
  np.savez_compressed(GOLDEN / "models.npz", **arrays)
  (GOLDEN / "decoding.json").write_text(json.dumps(decoding) + "\n")


if __name__ == "__main__":
  main()
