"""Writes tests/data/golden/infer: what transformers computes for the texts that the tests of `t5like infer` give.

Run it where torch and transformers are installed (it is no test):

    python tests/cli/infer/make_infer_goldens.py

The models are those of tests/data/golden; a text is words such as "w17", a token each. Made with transformers 5.22.
"""

import json
from pathlib import Path

import torch
import transformers

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
CLS, SEP, MASK, EOS = 1, 2, 3, 41
NEW_TOKENS = 14
TEXTS = [[42, 46, 30, 28, 11, 10], [45, 55], [53, 38, 10, 49, 36, 55, 51, 11, 19], []]
TARGETS = [[16, 29, 19], [8], [28, 35, 47, 5], [27, 45]]
MASKED = [[7, MASK, 9, 30], [MASK, 12, 44, MASK, 8, 50, 22], [11]]


def t5() -> dict:
  model = transformers.T5ForConditionalGeneration.from_pretrained(GOLDEN / "t5_1_1").eval()
  model.generation_config.eos_token_id = EOS
  rows = []
  for text, target in zip(TEXTS, TARGETS, strict=True):
    inputs = torch.tensor([[*text, EOS]])
    labels = torch.tensor([[*target, EOS]])
    written = model.generate(inputs, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0, use_cache=False)[
      0, 1:
    ].tolist()
    log_likelihood = -model(input_ids=inputs, labels=labels).loss.item() * labels.shape[1]
    mean = model.encoder(inputs).last_hidden_state[0].mean(0)
    rows.append({
      "text": text, "target": target, "greedy": written, "log_likelihood": log_likelihood, "mean": mean.tolist()
    })  # fmt: skip
  return {"eos": EOS, "new_tokens": NEW_TOKENS, "rows": rows}


def bert() -> dict:
  model = transformers.BertForPreTraining.from_pretrained(GOLDEN / "bert").eval()
  rows = []
  for text in MASKED:
    inputs = torch.tensor([[CLS, *text, SEP]])
    outputs = model(inputs, output_hidden_states=True)
    hidden = outputs.hidden_states[-1][0]
    probabilities = outputs.prediction_logits[0].softmax(-1)
    best = [probabilities[i + 1].topk(3) for i, token in enumerate(text) if token == MASK]
    rows.append({
      "text": text, "cls": hidden[0].tolist(), "mean": hidden.mean(0).tolist(),
      "masks": [{"ids": b.indices.tolist(), "probabilities": b.values.tolist()} for b in best],
    })  # fmt: skip
  return {"cls": CLS, "sep": SEP, "mask": MASK, "rows": rows}


def gpt2() -> dict:
  model = transformers.GPT2LMHeadModel.from_pretrained(GOLDEN / "gpt2").eval()
  rows = []
  for text, target in zip([t or [EOS] for t in TEXTS], TARGETS, strict=True):
    logits = model(torch.tensor([[*text, *target]])).logits[0].log_softmax(-1)
    scores = [logits[len(text) - 1 + i, token].item() for i, token in enumerate(target)]
    rows.append({"text": text, "target": target, "log_likelihood": sum(scores)})
  return {"eos": EOS, "rows": rows}


if __name__ == "__main__":
  with torch.no_grad():
    for name, made in (("t5_1_1", t5()), ("bert", bert()), ("gpt2", gpt2())):
      path = GOLDEN / "infer" / f"{name}.json"
      path.write_text(json.dumps(made) + "\n")
