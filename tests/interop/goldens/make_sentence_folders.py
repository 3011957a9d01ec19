"""Writes tests/data/golden/sentences: tiny folders of sentence-transformers with random weights, and their vectors.

Not a test; needs torch and sentence-transformers:

    python tests/interop/goldens/make_sentence_folders.py           writes the folders
    python tests/interop/goldens/make_sentence_folders.py FOLDER    prints FOLDER's vectors of the same texts, as JSON

bert  mean pooling and normalization, texts cut to 8 tokens, in lower case
t5    an encoder: mean, a dense layer without bias, normalization (as in Sentence-T5)
gpt   the weighted mean and the last token, without special tokens; a dense layer with tanh

Made with sentence-transformers 6.2, transformers 5.22, torch 2.13.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer, models, pre_tokenizers, processors

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "sentences"
SPECIAL = ("<pad>", "</s>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
WORDS = "the a sea ship was calm came from far and one two three".split()
TEXTS = ("The sea was calm", "a ship came from far and far and far from the sea", "one", "two three unknown")
PIECES = [*SPECIAL, *WORDS]


def tokenizer(template: str | None, length: int | None = None):
  words = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(PIECES)}, unk_token="<unk>"))
  words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  if template:
    known = [(piece, PIECES.index(piece)) for piece in template.split() if piece in SPECIAL]
    words.post_processor = processors.TemplateProcessing(single=template, special_tokens=known)
  named = dict(pad_token="<pad>", unk_token="<unk>", eos_token="</s>")
  if template and "[CLS]" in template:
    named |= dict(cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
  return transformers.PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=length or 32, **named)


def bert():
  config = transformers.BertConfig(
    vocab_size=len(PIECES), hidden_size=12, num_attention_heads=3, num_hidden_layers=2, intermediate_size=16,
    max_position_embeddings=16,
  )  # fmt: skip
  return transformers.BertModel(config), tokenizer("[CLS] $A [SEP]", 16), [Normalize()], "mean"


def t5():
  config = transformers.T5Config(
    vocab_size=len(PIECES), d_model=12, d_kv=4, d_ff=16, num_heads=3, num_layers=2, eos_token_id=1, pad_token_id=0,
  )  # fmt: skip
  dense = Dense(12, 6, bias=False, activation_function=torch.nn.Identity())
  return transformers.T5EncoderModel(config), tokenizer("$A </s>"), [dense, Normalize()], "mean"


def gpt():
  config = transformers.GPT2Config(
    vocab_size=len(PIECES), n_embd=12, n_head=3, n_layer=2, n_positions=16, bos_token_id=1, eos_token_id=1
  )
  return transformers.GPT2Model(config), tokenizer(None, 16), [Dense(24, 5)], ("weightedmean", "lasttoken")


def main() -> None:
  for seed, make in enumerate((bert, t5, gpt)):
    torch.manual_seed(seed)
    model, words, more, pooling = make()
    for parameter in model.parameters():
      parameter.data += 0.2 * torch.randn_like(parameter)
    folder = GOLDEN / make.__name__
    model.eval().save_pretrained(folder / "saved")
    words.save_pretrained(folder / "saved")
    first = Transformer(str(folder / "saved"), max_seq_length=8 if make is bert else None, do_lower_case=make is bert)
    sentence_model = SentenceTransformer(modules=[first, Pooling(12, pooling), *more], device="cpu")
    sentence_model.save(str(folder), create_model_card=False)
    vectors = sentence_model.encode(list(TEXTS))
    (folder / "vectors.json").write_text(json.dumps({"texts": TEXTS, "vectors": vectors.tolist()}))
    for path in sorted((folder / "saved").iterdir()):
      path.unlink()
    (folder / "saved").rmdir()


def print_vectors(folder: str) -> None:
  model = SentenceTransformer(folder, device="cpu")
  print(json.dumps(np.asarray(model.encode(list(TEXTS))).tolist()))


if __name__ == "__main__":
  print_vectors(sys.argv[1]) if len(sys.argv) > 1 else main()
