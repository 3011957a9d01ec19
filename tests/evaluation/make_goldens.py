"""Writes tests/data/golden/gpt2_bytes: a tiny Hugging Face GPT-2 over bytes, with its losses.

Not a test; needs torch and transformers:

    python tests/evaluation/make_goldens.py

Ids are ByT5's: byte + 3, and 0 before the text. losses.json has, for several window sizes and strides, the sum of
transformers' cross entropy over all bytes, each counted in the first window that contains it; and the log-likelihoods
of some labels after prompts. Generated with transformers 5.22, torch 2.13.
"""

import json
from pathlib import Path

import torch
import transformers

FOLDER = Path(__file__).parents[1] / "data" / "golden" / "gpt2_bytes"
POSITIONS = 48
# The first sentence of Pride and Prejudice, followed by multi-byte characters.
TEXT = (
  "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a "
  "wife. – Žluťoučký kůň.\n"
)
WINDOWS = ((48, 48), (48, 24), (48, 7), (16, 1))
PROMPTS = ("Is it so? ", "A single man is in want of ")
QUESTION = "Is 7 even?"
LABELS = ("yes", "no", "a wife")


def ids(text: str) -> list[int]:
  return [byte + 3 for byte in text.encode()]


def log_likelihoods(model, row: list[int]) -> torch.Tensor:
  """Returns the log-likelihoods of all tokens but the first, given those before."""
  logits = model(torch.tensor([row[:-1]])).logits[0].double()
  return logits.log_softmax(-1).gather(1, torch.tensor(row[1:])[:, None])[:, 0]


def windowed_nats(model, row: list[int], window: int, stride: int) -> float:
  total, done, begin = 0.0, 0, 0
  while done < len(row) - 1:
    end = min(begin + window, len(row) - 1)
    found = log_likelihoods(model, row[begin : end + 1])
    total -= found[done - begin :].sum().item()
    done, begin = end, begin + stride
  return total


def main() -> None:
  torch.manual_seed(0)
  config = transformers.GPT2Config(vocab_size=384, n_embd=12, n_head=2, n_layer=2, n_positions=POSITIONS, n_inner=24)
  model = transformers.GPT2LMHeadModel(config).eval()
  with torch.no_grad():
    for parameter in model.parameters():  # with freshly initialized weights everything is almost equally likely
      parameter.add_(0.3 * torch.randn_like(parameter))
    row = [0, *ids(TEXT)]
    mean_loss = model(torch.tensor([row[:POSITIONS]]), labels=torch.tensor([row[:POSITIONS]])).loss.item()
    losses = {f"{window},{stride}": windowed_nats(model, row, window, stride) for window, stride in WINDOWS}
    ranks = {
      prompt: {
        label: log_likelihoods(model, [0, *ids(prompt), *ids(label)])[len(ids(prompt)) :].sum().item()
        for label in LABELS
      }
      for prompt in PROMPTS
    }  # fmt: skip
    # As t5like eval prompts a Hugging Face GPT: nothing before the question, a newline after it.
    quiz = {
      label: log_likelihoods(model, ids(f"{QUESTION}\n{label}"))[len(ids(QUESTION)) :].sum().item() for label in LABELS
    }
  model.save_pretrained(FOLDER)
  (FOLDER / "generation_config.json").unlink(missing_ok=True)
  found = {
    "text": TEXT,
    "nats": losses,
    "mean_loss_of_first_positions": mean_loss,
    "log_likelihoods": ranks,
    "quiz": quiz,
  }
  (FOLDER / "losses.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
  main()
