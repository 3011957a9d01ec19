"""The full round trip, if torch is installed: transformers writes, we read and write, transformers reads."""

import dataclasses
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import pytest

from t5like import parallel
from t5like.decoding import DecodeSettings
from t5like.inference import Generator
from t5like.inference.prompts import prompt_form
from t5like.interop import huggingface
from t5like.interop.hf_tokenizers import TextSpecialTokens, save_tokenizer
from t5like.models import BERT, GPT, T5, TransformerConfig
from t5like.vocabularies import load_vocabulary

torch = pytest.importorskip("torch", reason="the live comparison needs torch: pip install torch transformers")
transformers = pytest.importorskip("transformers", reason="the live comparison needs transformers")
pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
CLASSES = {
  "t5_1_0": "T5ForConditionalGeneration", "t5_1_1": "T5ForConditionalGeneration", "mt5": "MT5ForConditionalGeneration",
  "byt5": "T5ForConditionalGeneration", "bert": "BertForPreTraining", "gpt2": "GPT2LMHeadModel",
  "gpt1": "OpenAIGPTLMHeadModel", "gpt_nano_sort": "GPT2LMHeadModel",
}  # fmt: skip


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("case", CLASSES)
def test_exported_folder_loads_and_agrees(case, scan_layers, tmp_path):
  imported = huggingface.load(GOLDEN / case, scan_layers=scan_layers)
  huggingface.save(tmp_path, imported.model, imported.params, imported.model_type)
  theirs, info = getattr(transformers, CLASSES[case]).from_pretrained(tmp_path, output_loading_info=True)
  assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info

  rng = np.random.default_rng(0)

  def ids(length):
    return rng.integers(1, imported.model.config.vocab_size, (2, length)).astype(np.int32)

  tokens, decoder = ids(11), ids(9)
  if imported.model.batch_layout == "encoder_decoder":
    batch = {"encoder_input_tokens": tokens, "decoder_input_tokens": decoder}
    given = {"input_ids": tokens, "decoder_input_ids": decoder}
  else:
    layout = "encoder" if imported.model.batch_layout == "encoder" else "decoder"
    batch, given = {f"{layout}_input_tokens": tokens}, {"input_ids": tokens}
  with torch.no_grad():
    out = theirs.eval()(**{name: torch.tensor(x, dtype=torch.long) for name, x in given.items()})
  expected = out.prediction_logits if case == "bert" else out.logits
  ours = jax.jit(lambda p: imported.model.apply({"params": p}, batch)["logits"])(imported.params)
  np.testing.assert_allclose(ours, expected.numpy(), rtol=0, atol=1e-4)


SIZE = dict(vocab_size=1, embed_dim=16, mlp_dim=64, num_heads=2, head_dim=8)
LEARNED = dict(
  norm="layer", positions="learned", max_positions=64, use_bias=True, scale_attention=True, scale_logits=False,
  activation="gelu", initializer="normal",
)  # fmt: skip
HEADS = dict(embedding_norm=True, num_token_types=2, pooler=True, mlm_head=True)
MODELS = {
  "t5": T5(TransformerConfig(**SIZE, num_encoder_layers=1, num_decoder_layers=1)),
  "byte": T5(TransformerConfig(**SIZE, num_encoder_layers=1, num_decoder_layers=1)),
  "bert_uncased": BERT(TransformerConfig(**SIZE, **LEARNED, num_encoder_layers=1, norm_position="post", **HEADS)),
  "roberta": BERT(TransformerConfig(**SIZE, **LEARNED, num_encoder_layers=1, norm_position="post", **HEADS)),
  "gpt2": GPT(TransformerConfig(**SIZE, **LEARNED, num_decoder_layers=1)),
}
SENTENCES = ["Hello world, this is a test.", "  two  spaces, Ünïcödé – ½", "don't 12,345.67"]


@pytest.mark.parametrize("name", MODELS)
def test_auto_classes_load_an_exported_folder(name, tmp_path):
  """AutoTokenizer gives our ids with special tokens; AutoModel predicts our next tokens."""
  vocabulary = load_vocabulary(name)
  size = -(-vocabulary.vocab_size // 128) * 128
  model = MODELS[name].clone(config=dataclasses.replace(MODELS[name].config, vocab_size=size))
  token = np.ones((1, 1), np.int32)
  blank = {"encoder_input_tokens": token, "decoder_input_tokens": token}
  params = nn.unbox(model.init(jax.random.key(0), blank))["params"]
  form = prompt_form(model, vocabulary, None)
  huggingface.save(tmp_path, model, params, None, vocabulary)
  positions = model.config.max_positions if model.config.positions == "learned" else None
  save_tokenizer(
    tmp_path, vocabulary, TextSpecialTokens(form.start, form.end), positions, model.config.num_token_types > 1
  )

  tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
  assert tokenizer(SENTENCES)["input_ids"] == [form.tokens(vocabulary.encode(text)) for text in SENTENCES]
  kind = {"encoder": "AutoModelForMaskedLM", "encoder_decoder": "AutoModelForSeq2SeqLM"}
  theirs = getattr(transformers, kind.get(model.batch_layout, "AutoModelForCausalLM")).from_pretrained(tmp_path).eval()
  given = tokenizer(SENTENCES[:1], return_tensors="pt")
  if model.batch_layout == "encoder":
    with torch.no_grad():
      expected = theirs(**given).logits.numpy()
    tokens = given["input_ids"].numpy().astype(np.int32)
    batch = {"encoder_input_tokens": tokens, "encoder_lengths": np.array([tokens.shape[1]])}  # RoBERTa's <s> has id 0
    ours = model.apply({"params": params}, batch)
    np.testing.assert_allclose(ours["logits"], expected, rtol=0, atol=1e-4)
    return
  expected = theirs.generate(**given, max_new_tokens=8, do_sample=False)[0].tolist()
  mesh = parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:1])
  side = "encoder" if model.batch_layout == "encoder_decoder" else "decoder"
  prompts = {f"{side}_input_tokens": given["input_ids"].numpy().astype(np.int32)}
  found = Generator(model, mesh, vocabulary.eos_id)(params, prompts, DecodeSettings(max_length=8))
  assert expected[-8:] == found.tokens[0, 0].tolist()
