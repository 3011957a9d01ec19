"""Writes tests/data/golden/decoding: outputs of Hugging Face's `generate` for the tiny models of tests/interop.

Not a test; requires torch and transformers:

    python tests/decoding/make_goldens.py [folder]

Writes one JSON file per model: prompts of different lengths, the end of sequence (a token that the random weights
generate at different times), and the options, outputs and scores of each case. Last run with transformers 5.22,
torch 2.13.
"""

import json
import sys
from pathlib import Path

import torch
import transformers

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
LENGTHS = {"t5_1_0": (12, 7, 3, 1), "t5_1_1": (12, 7, 3, 1), "gpt2": (6, 2, 9, 1)}
NEW_TOKENS = {"t5_1_0": 14, "t5_1_1": 14, "gpt2": 11}
CASES = {
  "greedy": {},
  "greedy, at least 5": dict(min_new_tokens=5),
  "3 beams, heuristic": dict(num_beams=3, length_penalty=1.0, early_stopping=False, num_return_sequences=3),
  "4 beams, no penalty": dict(num_beams=4, length_penalty=0.0, early_stopping="never", num_return_sequences=2),
  "4 beams, first": dict(num_beams=4, length_penalty=2.0, early_stopping=True, num_return_sequences=4),
  "2 beams, short ones": dict(num_beams=2, length_penalty=-1.0, early_stopping="never", num_return_sequences=1),
  "5 beams, long ones": dict(num_beams=5, length_penalty=1.6, early_stopping="never", num_return_sequences=5),
  "3 beams, at least 4": dict(
    num_beams=3, length_penalty=0.6, early_stopping="never", num_return_sequences=2, min_new_tokens=4
  ),
}
# Only for encoder-decoders: Hugging Face also penalizes the padding of a decoder's prompt, which we do not.
PENALIZED = {
  "greedy, penalized": dict(repetition_penalty=1.7),
  "3 beams, penalized": dict(num_beams=3, length_penalty=1.0, early_stopping=False, repetition_penalty=1.3),
}


def cases(name: str) -> dict[str, dict]:
  return CASES | (PENALIZED if name.startswith("t5") else {})


def generate(model, prompts: list[list[int]], options: dict, eos: int, new_tokens: int) -> dict:
  longest = max(map(len, prompts))
  is_t5 = model.config.is_encoder_decoder
  padded = [p + [0] * (longest - len(p)) if is_t5 else [0] * (longest - len(p)) + p for p in prompts]
  mask = [[1] * len(p) + [0] * (longest - len(p)) for p in prompts]
  mask = mask if is_t5 else [row[::-1] for row in mask]
  out = model.generate(
    torch.tensor(padded), attention_mask=torch.tensor(mask), do_sample=False, use_cache=False, eos_token_id=eos,
    max_new_tokens=new_tokens, pad_token_id=0, return_dict_in_generate=True, output_scores=True, **options,
  )  # fmt: skip
  begin = 1 if is_t5 else longest
  sequences = [cut(row[begin:].tolist(), eos) for row in out.sequences]
  scores = out.sequences_scores.tolist() if "sequences_scores" in out and out.sequences_scores is not None else None
  return {"sequences": sequences, "scores": scores}


def cut(tokens: list[int], eos: int) -> list[int]:
  """Cuts tokens after the end of sequence."""
  return tokens[: tokens.index(eos) + 1] if eos in tokens else tokens


def choose_eos(model, prompts: list[list[int]], new_tokens: int) -> int:
  """Returns the token that ends beam search outputs at the most different lengths."""
  options = CASES["4 beams, no penalty"]

  def variety(eos: int) -> int:
    return len({len(s) for s in generate(model, prompts, options, eos, new_tokens)["sequences"]})

  return max(range(1, model.config.vocab_size), key=variety)


def main(folder: Path) -> None:
  folder.mkdir(parents=True, exist_ok=True)
  for name, lengths in LENGTHS.items():
    torch.manual_seed(1)
    kind = transformers.T5ForConditionalGeneration if name.startswith("t5") else transformers.GPT2LMHeadModel
    model = kind.from_pretrained(GOLDEN / name).eval()
    prompts = [torch.randint(1, model.config.vocab_size, (n,)).tolist() for n in lengths]
    eos = choose_eos(model, prompts, NEW_TOKENS[name])
    results = {
      case: {"options": options} | generate(model, prompts, options, eos, NEW_TOKENS[name])
      for case, options in cases(name).items()
    }
    golden = {"prompts": prompts, "eos_id": eos, "new_tokens": NEW_TOKENS[name], "cases": results}
    (folder / f"{name}.json").write_text(json.dumps(golden, indent=1) + "\n")
    print(name, eos, {case: [len(s) for s in result["sequences"]] for case, result in results.items()})


if __name__ == "__main__":
  main(Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN / "decoding")
