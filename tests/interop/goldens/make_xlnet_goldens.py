"""Writes tests/data/golden/xlnet.npz: the results of Hugging Face's XLNet, with every head that we have.

Not a test; needs torch and transformers:

    python tests/interop/goldens/make_xlnet_goldens.py

Has for each class what make_zoo_goldens.py writes. XLNetLMHeadModel runs in four ways: plain (logits and the states of
all layers), after a memory, and with two streams, with and without it; loss and gradients are of the two streams with a
memory. Rows of the classes that read the last token are padded on the left, others on the right. Made with transformers
5.22, torch 2.13.
"""

from pathlib import Path

import numpy as np
import torch
import transformers
from drawn_models import describe, draw_weights

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "xlnet.npz"
FIELDS = dict(vocab_size=23, d_model=6, n_head=3, n_layer=3, d_inner=7, mem_len=None)
LABELS = ["negative", "neutral – ±", "positive"]
LENGTHS, PAD, MEMORY = np.array([11, 6, 3]), 5, 4
USELESS = ("transformers_version", "dtype", "_name_or_path")
CLASSES = (
  "LMHeadModel", "ForSequenceClassification", "ForMultipleChoice", "ForTokenClassification",
  "ForQuestionAnsweringSimple",
)  # fmt: skip


def make_model(name: str, seed: int):
  names = dict(enumerate(LABELS)) if name.endswith("nClassification") or name == "ForSequenceClassification" else {}
  fields = dict(id2label=names, label2id={label: i for i, label in names.items()}) if names else {}
  return draw_weights(getattr(transformers, f"XLNet{name}")(transformers.XLNetConfig(**FIELDS, **fields)).eval(), seed)


def make_rows(rng: np.random.Generator, left: bool) -> dict[str, np.ndarray]:
  """Returns first <sep> second <sep> <cls> of random tokens, in which each part has its segment."""
  length = LENGTHS.max()
  mask = np.arange(length)[None] < LENGTHS[:, None]
  ids = np.where(mask, rng.integers(6, FIELDS["vocab_size"], mask.shape), PAD)
  types = np.where(mask, (np.arange(length)[None] > LENGTHS[:, None] // 2).astype(int), 3)
  rows = np.arange(len(LENGTHS))
  ids[rows, LENGTHS - 1], types[rows, LENGTHS - 1] = 3, 2
  found = dict(input_ids=ids, attention_mask=mask.astype(np.int64), token_type_ids=types)
  if left:
    turn = lambda x: np.stack([np.roll(row, length - n) for row, n in zip(x, LENGTHS, strict=True)])  # noqa: E731
    found = {name: turn(x) for name, x in found.items()}
  return found


def torched(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
  return {name: torch.tensor(x) for name, x in arrays.items()}


def run_language_model(model, rng: np.random.Generator) -> dict[str, np.ndarray]:
  rows = make_rows(rng, left=False)
  length, layers = rows["input_ids"].shape[1], FIELDS["n_layer"]
  # Given tokens have order 0; <cls> is in the order, too, but not predicted.
  order = np.array([[0, 0, 3, 1, 0, 4, 0, 0, 2, 0, 5], [1, 0, 0, 2, 0, 3, *[0] * 5], [0, 1, 2, *[0] * 8]])
  weights = (order > 0) & (np.arange(length)[None] < LENGTHS[:, None] - 1)
  later, same = order[:, None, :] > order[:, :, None], order[:, None, :] == order[:, :, None]
  perm_mask = later | (weights[:, :, None] & same)
  mems = rng.normal(size=(layers, MEMORY, len(LENGTHS), FIELDS["d_model"])).astype(np.float32)
  inputs = torched(rows)
  two = dict(perm_mask=torch.tensor(perm_mask, dtype=torch.float32), target_mapping=torch.eye(length).repeat(3, 1, 1))
  memory = dict(mems=[torch.tensor(x) for x in mems])
  with torch.no_grad():
    plain = model(**inputs, output_hidden_states=True, use_mems=False)
    after = model(**inputs, **memory, use_mems=True)
    streams = model(**inputs, **two, use_mems=False)
  labels = torch.tensor(np.where(weights, rows["input_ids"], -100))
  both = model(**inputs, **two, **memory, labels=labels, use_mems=True)
  both.loss.backward()
  return rows | {
    "order": order, "weights": weights, "mems": mems, "plain": plain.logits.numpy(),
    "states": torch.stack(plain.hidden_states).numpy(), "after_memory": after.logits.numpy(),
    "new_memory": torch.stack(list(after.mems)).numpy(), "streams": streams.logits.numpy(),
    "logits": both.logits.detach().numpy(), "loss": np.float32(both.loss.item()),
  }  # fmt: skip


def run_head(model, name: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
  rows = make_rows(rng, left=name in ("ForSequenceClassification", "ForMultipleChoice"))
  count = len(LENGTHS)
  if name == "ForMultipleChoice":
    rows = {n: np.stack([x, x[[1, 2, 0]]], axis=1) for n, x in rows.items()}
    rows["input_ids"][:, 1] = np.where(rows["attention_mask"][:, 1], (rows["input_ids"][:, 1] + 2) % 23, PAD)
    labels = dict(labels=rng.integers(0, 2, count))
  elif name == "ForTokenClassification":
    chosen = rows["attention_mask"] * (rng.random(rows["input_ids"].shape) < 0.6)
    chosen[:, 0] = 1
    labels = dict(labels=np.where(chosen, rng.integers(0, len(LABELS), chosen.shape), -100))
  elif name == "ForQuestionAnsweringSimple":
    labels = dict(start_positions=LENGTHS // 3, end_positions=LENGTHS - 2)
  else:
    labels = dict(labels=rng.integers(0, len(LABELS), count))
  outputs = model(**torched(rows | labels), use_mems=False)
  outputs.loss.backward()
  logits = outputs.logits if "logits" in outputs else torch.stack([outputs.start_logits, outputs.end_logits], dim=-1)
  return rows | labels | {"logits": logits.detach().numpy(), "loss": np.float32(outputs.loss.item())}


def main() -> None:
  arrays: dict[str, np.ndarray] = {}
  for seed, name in enumerate(CLASSES):
    model, rng = make_model(name, seed), np.random.default_rng(seed)
    values = run_language_model(model, rng) if name == "LMHeadModel" else run_head(model, name, rng)
    named = dict(model.named_parameters())
    description, tensors = describe(model, seed, USELESS)
    assert tensors == sorted(named)
    gradients = [np.zeros(p.shape, np.float32) if p.grad is None else p.grad.numpy() for _, p in sorted(named.items())]
    values = {n: x.astype(np.int8) if x.dtype == np.int64 else x for n, x in values.items()}
    values["gradients"] = np.concatenate([x.ravel() for x in gradients])
    values["description"] = description
    arrays |= {f"XLNet{name}/{n}": x for n, x in values.items()}
  np.savez_compressed(GOLDEN, **arrays)


if __name__ == "__main__":
  main()
