"""Hugging Face models with heads, their inputs and their results; needs torch and transformers.

Used by make_head_goldens.py (tiny models with a fixed seed) and by the live comparison (more sizes and seeds).
"""

import numpy as np
import torch
import transformers

LABELS = {
  "BertForSequenceClassification": ["negative", "neutral – ±", "positive"],
  "regression": ["LABEL_0"],
  "multi_label": ["anger", "joy", "surprise"],
  "BertForTokenClassification": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"],
  "GPT2ForSequenceClassification": ["no", "yes"],
  "GPT2ForTokenClassification": ["O", "B", "I"],
  "T5ForSequenceClassification": ["entailment", "neutral", "contradiction"],
  "T5ForTokenClassification": ["O", "B", "I"],
}
CASES = (
  "BertForSequenceClassification", "regression", "BertForMultipleChoice", "BertForTokenClassification",
  "BertForQuestionAnswering", "BertForNextSentencePrediction", "GPT2ForSequenceClassification",
  "GPT2ForTokenClassification", "GPT2ForQuestionAnswering", "T5ForSequenceClassification", "T5ForTokenClassification",
  "T5ForQuestionAnswering", "multi_label",
)  # fmt: skip
EOS, PAD = 1, 0


def make_model(case: str, seed: int = 0, width: int = 8, heads: int = 2, layers: int = 2, vocab: int = 23):
  """Returns a model with random weights; norms and biases, too."""
  torch.manual_seed(seed)
  name = "BertForSequenceClassification" if case in ("regression", "multi_label") else case
  fields = dict(attn_implementation="eager", pad_token_id=PAD)
  if case in LABELS:
    names = dict(enumerate(LABELS[case]))
    fields |= dict(id2label=names, label2id={label: i for i, label in names.items()})
  if case == "multi_label":
    fields["problem_type"] = "multi_label_classification"
  if name.startswith("Bert"):
    config = transformers.BertConfig(
      vocab_size=vocab, hidden_size=width, num_attention_heads=heads, num_hidden_layers=layers,
      intermediate_size=width + 5, max_position_embeddings=13, **fields,
    )  # fmt: skip
  elif name.startswith("GPT2"):
    config = transformers.GPT2Config(
      vocab_size=vocab, n_embd=width, n_head=heads, n_layer=layers, n_inner=width + 5, n_positions=13, bos_token_id=EOS,
      eos_token_id=EOS, **fields,
    )  # fmt: skip
  else:
    config = transformers.T5Config(
      vocab_size=vocab, d_model=width, d_kv=3, d_ff=width + 5, num_heads=heads, num_layers=layers, num_decoder_layers=1,
      feed_forward_proj="gated-gelu", tie_word_embeddings=False, decoder_start_token_id=PAD, eos_token_id=EOS, **fields,
    )  # fmt: skip
  model = getattr(transformers, name)(config)
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(0.3 * torch.randn_like(parameter))
  return model.eval()


def make_inputs(case: str, seed: int = 0, length: int = 11, lengths=(11, 6, 2), vocab: int = 23) -> dict:
  """Returns rows padded on the right, every row with one end-of-sequence as its last token, and labels."""
  rng = np.random.default_rng(seed)
  rows, choices = len(lengths), 3
  if case == "GPT2ForQuestionAnswering":  # its softmax includes padding, whose states no text depends on
    lengths = (length,) * rows
  if case == "BertForMultipleChoice":
    lengths = [lengths[(row + choice) % rows] for row in range(rows) for choice in range(choices)]
  mask = (np.arange(length)[None] < np.array(lengths)[:, None]).astype(np.int64)
  ids = rng.integers(2, vocab, mask.shape) * mask
  ids[np.arange(len(lengths)), np.array(lengths) - 1] = EOS
  inputs = dict(input_ids=ids, attention_mask=mask)
  if case.startswith("Bert") or case in ("regression", "multi_label"):
    inputs["token_type_ids"] = (np.arange(length)[None] > 3) * mask
  if case == "BertForMultipleChoice":
    inputs = {name: x.reshape(rows, choices, length) for name, x in inputs.items()}
    inputs["labels"] = rng.integers(0, choices, rows)
  elif case == "regression":
    inputs["labels"] = rng.normal(size=rows).astype(np.float32)
  elif case == "multi_label":
    inputs["labels"] = rng.integers(0, 2, (rows, len(LABELS[case]))).astype(np.float32)
  elif case.endswith("QuestionAnswering"):
    ends = np.array(lengths) - 1
    inputs |= dict(start_positions=rng.integers(0, ends + 1) // 2, end_positions=ends)
  elif case.endswith("TokenClassification"):
    tags = rng.integers(0, len(LABELS[case]), mask.shape)
    inputs["labels"] = np.where((mask > 0) & (rng.random(mask.shape) < 0.7), tags, -100)
    inputs["labels"][:, 0] = tags[:, 0]
  else:
    inputs["labels"] = rng.integers(0, len(LABELS.get(case, "ab")), rows)
  return inputs


def run(model, inputs: dict) -> tuple[np.ndarray, float, dict[str, np.ndarray]]:
  """Returns logits (start and end stacked on the last axis), the loss, and the gradients by the names of the file."""
  model.zero_grad()
  out = model(**{name: torch.tensor(x) for name, x in inputs.items()})
  out.loss.backward()
  logits = torch.stack([out.start_logits, out.end_logits], -1) if "start_logits" in out else out[1]  # after the loss
  gradients = {n: np.zeros(tuple(p.shape), np.float32) if p.grad is None else p.grad.numpy().copy()
               for n, p in model.named_parameters()}  # fmt: skip
  return logits.detach().numpy(), float(out.loss.detach()), gradients
