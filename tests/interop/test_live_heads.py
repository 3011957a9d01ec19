"""The full comparison of heads with transformers, if torch is installed: sizes, seeds, padding, both directions."""

import dataclasses

import flax.linen as nn
import jax
import numpy as np
import pytest
from head_batches import compare, head_batch

from t5like.interop import huggingface
from t5like.models import BERT, GPT, T5, TransformerConfig
from t5like.models.heads import ClassificationHead, attach_head
from t5like.vocabularies import load_vocabulary

torch = pytest.importorskip("torch", reason="the live comparison needs torch: pip install torch transformers")
transformers = pytest.importorskip("transformers", reason="the live comparison needs transformers")
head_cases = pytest.importorskip("head_cases")
pytestmark = pytest.mark.slow

SIZES = [
  (dict(width=24, heads=3, layers=3, vocab=61), dict(length=13, lengths=(13, 1, 7, 12, 5), vocab=61)),
  (dict(width=10, heads=5, layers=2, vocab=23), dict(length=9, lengths=(3, 9), vocab=23)),
  (dict(width=14, heads=1, layers=1, vocab=37), dict(length=2, lengths=(2, 1, 2), vocab=37)),
]


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("size", range(len(SIZES)))
@pytest.mark.parametrize("case", head_cases.CASES)
def test_import_agrees_and_export_is_read_back(case, size, scan_layers, tmp_path):
  model_size, input_size = SIZES[size]
  theirs = head_cases.make_model(case, seed=size, **model_size)
  inputs = head_cases.make_inputs(case, seed=size, **input_size)
  logits, loss, gradients = head_cases.run(theirs, inputs)
  theirs.save_pretrained(tmp_path / "theirs")
  imported = huggingface.load(tmp_path / "theirs", scan_layers=scan_layers)
  compare(imported, head_batch(imported.model, inputs), logits, loss, gradients, tmp_path)

  huggingface.save(tmp_path / "ours", imported.model, imported.params, imported.model_type)
  again, info = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True, attn_implementation="eager")
  assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
  assert again.config.id2label == theirs.config.id2label and again.config.label2id == theirs.config.label2id
  again_logits, again_loss, again_gradients = head_cases.run(again.eval(), inputs)
  np.testing.assert_array_equal(again_logits, logits)
  assert again_loss == loss and sorted(again_gradients) == sorted(gradients)


SMALL = dict(vocab_size=1, embed_dim=16, mlp_dim=32, num_heads=2)
LEARNED = dict(
  norm="layer", positions="learned", max_positions=40, use_bias=True, scale_attention=True, scale_logits=False,
  activation="gelu", initializer="normal", initializer_stddev=0.5,
)  # fmt: skip
POST = dict(norm_position="post", embedding_norm=True, num_token_types=2, pooler=True)
MODELS = {
  "bert_uncased": BERT(TransformerConfig(**SMALL, **LEARNED, **POST, num_encoder_layers=2)),
  "bert_cased": BERT(TransformerConfig(**SMALL, **LEARNED, **POST, num_encoder_layers=2)),
  "gpt2": GPT(TransformerConfig(**SMALL, **LEARNED, num_decoder_layers=2)),
  "t5": T5(TransformerConfig(**SMALL, num_encoder_layers=1, num_decoder_layers=1)),
}
TEXTS = [
  "Hello world, this is a test.",
  "  two  spaces, Ünïcödé – ½",
  "don't",
  "A longer text with a few more words in it.",
]


@pytest.mark.parametrize("name", MODELS)
def test_auto_classes_read_a_folder_with_a_head_on_their_own(name, tmp_path):
  """AutoTokenizer pads a batch, AutoModelForSequenceClassification gives our probabilities and labels."""
  from t5like.inference.converting import save_hugging_face
  from t5like.objectives import SpecialTokens
  from t5like.objectives.segments import PairForm

  vocabulary = load_vocabulary(name)
  size = -(-vocabulary.vocab_size // 128) * 128
  base = MODELS[name].clone(config=dataclasses.replace(MODELS[name].config, vocab_size=size))
  model = attach_head(base, ClassificationHead(labels=("bad", "good", "so so")))
  token = np.ones((1, 4), np.int32)
  params = nn.unbox(model.init(jax.random.key(0), {"encoder_input_tokens": token}))["params"]
  save_hugging_face(tmp_path, model, params, vocabulary, None)

  tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
  form = PairForm.of(SpecialTokens.of(vocabulary))
  # Without the configuration of a run, a decoder's rows end as its tokenizer ends them: GPT-2's adds nothing.
  end = [] if name == "gpt2" else [form.sep]
  ids = [[*form.head, *vocabulary.encode(text), *end] for text in TEXTS]
  assert tokenizer(TEXTS)["input_ids"] == ids
  theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
  assert list(theirs.config.id2label.values()) == ["bad", "good", "so so"]
  with torch.no_grad():
    expected = theirs(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits.numpy()
  rows = np.zeros((len(ids), max(map(len, ids))), np.int32)
  for row, tokens in zip(rows, ids, strict=True):
    row[: len(tokens)] = tokens
  real = (np.arange(rows.shape[1])[None] < np.array([len(tokens) for tokens in ids])[:, None]).astype(np.int32)
  batch = {"encoder_input_tokens": rows, "encoder_segment_ids": real}
  np.testing.assert_allclose(model.apply({"params": params}, batch)["label_logits"], expected, rtol=0, atol=1e-4)
  again = huggingface.load(tmp_path)
  assert again.model.head.labels == ("bad", "good", "so so")
