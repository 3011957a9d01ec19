"""Tokenizers of decoders (make_decoder_tokenizers.py): ids of transformers' AutoTokenizer, and what opens a text."""

import json
import shutil
from pathlib import Path

import pytest

from t5like.errors import UserError
from t5like.inference.prompts import prompt_form
from t5like.models import GPT, TransformerConfig
from t5like.objectives import SpecialTokens
from t5like.objectives.segments import PairForm
from t5like.vocabularies import load_vocabulary

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "decoder_tokenizers"
EXPECTED = json.loads((GOLDEN / "ids.json").read_text())
MODEL = GPT(TransformerConfig(vocab_size=400, embed_dim=8, mlp_dim=8, num_heads=2, num_decoder_layers=1))
# SentencePiece itself marks a word also before a leading space, and reads <s> as text.
DIFFERENT = {"llama2": (" leading and  double spaces ", "<s> the </s>")}


@pytest.mark.parametrize("name", EXPECTED["ids"])
def test_prompts_have_the_ids_of_transformers(name):
  vocabulary = load_vocabulary(str(GOLDEN / name))
  form = prompt_form(MODEL, vocabulary, None)  # of a folder of Hugging Face
  for text, ids in zip(EXPECTED["texts"], EXPECTED["ids"][name], strict=True):
    if text not in DIFFERENT.get(name, ()):
      assert form.tokens(vocabulary.encode(text)) == (ids or [vocabulary.eos_id]), text
  text = "the naïve – 日本 cat"
  assert vocabulary.decode([*form.tokens(vocabulary.encode(text)), vocabulary.eos_id][form.start is not None :]) == text


def test_training_opens_texts_with_the_same_token():
  """A decoder's start token, and the first of a row with labels; where the tokenizer adds none, as in GPT-2."""
  names = {"llama3": "<|begin_of_text|>", "llama2": "<s>", "opt": "</s>", "olmo2": "<|endoftext|>"}
  for name, piece in names.items():
    vocabulary = load_vocabulary(str(GOLDEN / name))
    special = SpecialTokens.of(vocabulary)
    assert vocabulary.piece(special.start) == piece
    assert PairForm.of(special).head == ([] if name == "olmo2" else [special.start])


def test_settings_may_turn_the_opening_token_off(tmp_path):
  shutil.copytree(GOLDEN / "llama2", tmp_path / "model")
  path = tmp_path / "model" / "tokenizer_config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | {"add_bos_token": False}))
  assert not load_vocabulary(str(tmp_path / "model")).opens_texts


def test_llama_3s_original_file_is_an_error(tmp_path):
  (tmp_path / "tokenizer.model").write_text("IQ== 0\nIg== 1\n")
  with pytest.raises(UserError, match="not a SentencePiece model") as error:
    load_vocabulary(str(tmp_path))
  assert "tokenizer.json" in str(error.value.lines)
