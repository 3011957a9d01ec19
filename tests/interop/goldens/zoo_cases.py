"""Hugging Face's encoders with every head: tiny, odd-sized models, their inputs and results; needs torch, transformers.

Used by make_zoo_goldens.py.
"""

import numpy as np
import transformers
from drawn_models import draw_weights

HEADS = ("MaskedLM", "SequenceClassification", "MultipleChoice", "TokenClassification", "QuestionAnswering")
SIZES = dict(
  vocab_size=19, hidden_size=6, num_attention_heads=2, num_hidden_layers=2, intermediate_size=7, type_vocab_size=2,
  max_position_embeddings=13, attn_implementation="eager",
)  # fmt: skip
ROBERTA = SIZES | dict(type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2, layer_norm_eps=1e-5)
DISTILBERT = dict(
  vocab_size=19, dim=6, n_heads=2, n_layers=2, hidden_dim=7, max_position_embeddings=13, attn_implementation="eager"
)
ALBERT = SIZES | dict(embedding_size=4, num_hidden_layers=4, num_hidden_groups=2)
ELECTRA = SIZES | dict(embedding_size=4)
DEBERTA = SIZES | dict(
  type_vocab_size=0, relative_attention=True, position_biased_input=False, pos_att_type=["c2p", "p2c"],
  layer_norm_eps=1e-7, max_relative_positions=9,
)  # fmt: skip
# Distances from 2 on share buckets.
DEBERTA_V3 = DEBERTA | dict(position_buckets=4, norm_rel_ebd="layer_norm", share_att_key=True)
# By family: the beginning of class names, the fields of config.json, and the classes.
FAMILIES = {
  # Two groups of layers, of which each runs twice; published models have one.
  "albert": [
    *(("Albert", ALBERT, head) for head in HEADS),
    ("Albert", ALBERT | {"num_hidden_groups": 1}, "PreTraining"),
  ],
  "deberta": [
    *(("Deberta", DEBERTA, head) for head in HEADS if head != "MultipleChoice"),
    *(("DebertaV2", DEBERTA_V3, head) for head in HEADS),
    ("DebertaV2", DEBERTA_V3 | dict(share_att_key=False, norm_rel_ebd="none"), "QuestionAnswering"),
    ("DebertaV2", DEBERTA_V3 | dict(conv_kernel_size=3, conv_act="gelu"), "QuestionAnswering"),
  ],
  "electra": [
    *(("Electra", ELECTRA, head) for head in ("PreTraining", *HEADS)),
    ("Electra", SIZES | dict(embedding_size=6), "PreTraining"),  # without a projection
  ],
  "distilbert": [("DistilBert", DISTILBERT, head) for head in HEADS],
  "roberta": [
    *(("Roberta", ROBERTA, head) for head in HEADS),
    ("XLMRoberta", ROBERTA, "SequenceClassification"),
  ],
}
LABELS = ["negative", "neutral – ±", "positive"]


def make_model(name: str, fields: dict, head: str, seed: int):
  """Returns a model in which every tensor is drawn."""
  config_class = getattr(transformers, f"{name}Config")
  names = dict(enumerate(LABELS))
  if head.endswith("Classification"):
    fields = fields | dict(id2label=names, label2id={label: i for i, label in names.items()})
  return draw_weights(getattr(transformers, f"{name}For{head}")(config_class(**fields)).eval(), seed)


def make_inputs(model, head: str, seed: int, lengths: tuple[int, ...] = (11, 6, 2)) -> dict[str, np.ndarray]:
  """Returns rows padded on the right with the model's padding id; any other id is text, also 0, and labels."""
  rng, config = np.random.default_rng(seed), model.config
  rows, length, pad = len(lengths), max(lengths), config.pad_token_id
  if head == "MultipleChoice":
    lengths = [lengths[(row + choice) % rows] for row in range(rows) for choice in range(3)]
  mask = (np.arange(length)[None] < np.array(lengths)[:, None]).astype(np.int64)
  ids = rng.choice([i for i in range(config.vocab_size) if i != pad], mask.shape)
  ids[:, 0] = 0 if pad else 2
  inputs = dict(input_ids=np.where(mask, ids, pad), attention_mask=mask)
  if getattr(config, "type_vocab_size", 0) > 1:
    inputs["token_type_ids"] = (np.arange(length)[None] > 3) * mask
  if head == "MultipleChoice":
    inputs = {name: x.reshape(rows, 3, length) for name, x in inputs.items()} | {"labels": rng.integers(0, 3, rows)}
  elif head == "QuestionAnswering":
    ends = np.array(lengths) - 1
    inputs |= dict(start_positions=rng.integers(0, ends + 1) // 2, end_positions=ends)
  elif name_of(model) == "ElectraForPreTraining":
    inputs["labels"] = rng.integers(0, 2, mask.shape)
  elif head in ("TokenClassification", "MaskedLM", "PreTraining"):
    labels = rng.integers(0, len(LABELS) if head == "TokenClassification" else config.vocab_size, mask.shape)
    chosen = (mask > 0) & (rng.random(mask.shape) < 0.6)
    chosen[:, 0] = True
    inputs["labels"] = np.where(chosen, labels, -100)
    if head == "PreTraining":
      inputs["sentence_order_label"] = rng.integers(0, 2, rows)
  else:
    inputs["labels"] = rng.integers(0, len(LABELS), rows)
  return inputs


def name_of(model) -> str:
  return type(model).__name__
