"""Writes tests/data/golden: tiny Hugging Face models with random weights, and their outputs.

Not a test; needs torch and transformers:

    python tests/interop/goldens/make_goldens.py [folder]

Each folder has config.json, model.safetensors and outputs.npz: the inputs with
padding, logits, every hidden state, the loss. Generated with transformers 5.22, torch 2.13.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
T5_SIZE = dict(d_model=16, d_kv=6, d_ff=24, num_heads=3, attn_implementation="eager", decoder_start_token_id=0)
GPT_SIZE = dict(vocab_size=60, n_embd=24, n_head=3, n_layer=2, n_positions=20, attn_implementation="eager")


def t5_1_0():
  config = transformers.T5Config(vocab_size=60, num_layers=2, num_decoder_layers=3, **T5_SIZE)
  return transformers.T5ForConditionalGeneration(config), t5_outputs


def t5_1_1():
  gated = dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False)
  config = transformers.T5Config(vocab_size=60, num_layers=2, num_decoder_layers=2, **gated, **T5_SIZE)
  return untied(transformers.T5ForConditionalGeneration(config)), t5_outputs


def mt5():
  config = transformers.MT5Config(vocab_size=70, num_layers=1, num_decoder_layers=2, **T5_SIZE)
  return untied(transformers.MT5ForConditionalGeneration(config)), t5_outputs


def byt5():
  gated = dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False)
  config = transformers.T5Config(vocab_size=384, num_layers=3, num_decoder_layers=1, **gated, **T5_SIZE)
  return untied(transformers.T5ForConditionalGeneration(config)), t5_outputs


def bert():
  config = transformers.BertConfig(
    vocab_size=60, hidden_size=24, num_attention_heads=3, num_hidden_layers=2, intermediate_size=40,
    max_position_embeddings=20, attn_implementation="eager",
  )  # fmt: skip
  return transformers.BertForPreTraining(config), bert_outputs


def gpt2():
  return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_inner=40, **GPT_SIZE)), gpt_outputs


def gpt1():
  return transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**GPT_SIZE)), gpt_outputs


def untied(model):
  """transformers 5 ties every T5; T5 1.1, mT5 and ByT5 were trained untied."""
  model.lm_head.weight = torch.nn.Parameter(model.config.d_model**-0.5 * torch.randn_like(model.shared.weight))
  return model


def t5_outputs(model) -> dict:
  inputs, mask = padded_ids(model.config.vocab_size, length=40, lengths=(40, 23, 1))
  labels, real = padded_ids(model.config.vocab_size, length=33, lengths=(33, 7, 20))
  out = model(
    input_ids=inputs, attention_mask=mask, labels=labels.masked_fill(real == 0, -100), output_hidden_states=True
  )
  return dict(
    input_ids=inputs, attention_mask=mask, labels=labels, label_mask=real, logits=out.logits, loss=out.loss,
    encoder_hidden_states=torch.stack(out.encoder_hidden_states),
    decoder_hidden_states=torch.stack(out.decoder_hidden_states),
  )  # fmt: skip


def bert_outputs(model) -> dict:
  inputs, mask = padded_ids(60, length=18, lengths=(18, 11, 1))
  types = (torch.arange(18)[None] > 6).long() * mask
  labels = torch.where(torch.rand(inputs.shape) < 0.3, inputs, -100).masked_fill(mask == 0, -100)
  follows = torch.tensor([0, 1, 1])
  out = model(
    input_ids=inputs, attention_mask=mask, token_type_ids=types, labels=labels, next_sentence_label=follows,
    output_hidden_states=True,
  )  # fmt: skip
  pooled = model.bert(input_ids=inputs, attention_mask=mask, token_type_ids=types).pooler_output
  return dict(
    input_ids=inputs, attention_mask=mask, token_type_ids=types, labels=labels, next_sentence_label=follows,
    logits=out.prediction_logits, nsp_logits=out.seq_relationship_logits, pooled=pooled, loss=out.loss,
    hidden_states=torch.stack(out.hidden_states),
  )  # fmt: skip


def gpt_outputs(model) -> dict:
  inputs, mask = padded_ids(60, length=20, lengths=(20, 9, 2))
  labels = inputs.masked_fill(mask == 0, -100)
  out = model(input_ids=inputs, attention_mask=mask, labels=labels, output_hidden_states=True)
  return dict(
    input_ids=inputs, attention_mask=mask, labels=labels, logits=out.logits, loss=out.loss,
    hidden_states=torch.stack(out.hidden_states),
  )  # fmt: skip


def padded_ids(vocab_size: int, length: int, lengths: tuple[int, ...]):
  mask = (torch.arange(length)[None] < torch.tensor(lengths)[:, None]).long()
  return torch.randint(1, vocab_size, mask.shape) * mask, mask


def main(folder: Path) -> None:
  for make in (t5_1_0, t5_1_1, mt5, byt5, bert, gpt2, gpt1):
    torch.manual_seed(0)
    model, outputs = make()
    with torch.no_grad():
      for parameter in model.parameters():  # initial biases are 0 and norms 1: move them, so that errors show
        parameter.add_(0.1 * torch.randn_like(parameter))
      arrays = outputs(model.eval())
    model.save_pretrained(folder / make.__name__)
    (folder / make.__name__ / "generation_config.json").unlink(missing_ok=True)
    np.savez_compressed(folder / make.__name__ / "outputs.npz", **{k: v.numpy() for k, v in arrays.items()})


if __name__ == "__main__":
  main(Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN)
