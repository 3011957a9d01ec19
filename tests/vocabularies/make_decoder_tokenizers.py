"""Writes tests/data/golden/decoder_tokenizers: small tokenizers of the kinds of decoders, and AutoTokenizer's ids.

Not a test; needs transformers and sentencepiece:

    python tests/vocabularies/make_decoder_tokenizers.py

llama3  byte-level BPE with its own splitting of words; <|begin_of_text|> opens a text
olmo2   the same without an opening token, next to vocab.json and merges.txt, which do not say how words are split
llama2  SentencePiece BPE with byte fallback: tokenizer.model, and in llama2_fast the tokenizer.json made of it
opt     vocab.json and merges.txt; </s> opens a text
Made with transformers 5.22, tokenizers 0.23, sentencepiece 0.2.
"""

import json
import shutil
import tempfile
from pathlib import Path

import sentencepiece
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "decoder_tokenizers"
CORPUS = [
  "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a "
  "wife.",
  "In 1813 there were 4,500 letters; they're hers, we've 12345 more than she'd written.",
  "the cat sat on the mat, the dog and the cat ran.\n\nThe end of the story.  Twice the space.",
] * 8  # fmt: skip
TEXTS = [
  "the cat", " leading and  double spaces ", "In 1813 she'd 12345 letters", "naïve – ±, 日本", "a\n\nb\ttab", "",
  "<s> the </s>",
]  # fmt: skip
# Llama 3's and OLMo-2's: numbers of at most three digits, contractions in either case.
SPLIT = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(split: bool, special: list[str], size: int = 320) -> Tokenizer:
  tokenizer = Tokenizer(models.BPE())
  steps = [pre_tokenizers.Split(Regex(SPLIT), "isolated")] if split else []
  steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not split))
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if split else steps[0]
  tokenizer.decoder = decoders.ByteLevel()
  alphabet = pre_tokenizers.ByteLevel.alphabet()
  tokenizer.train_from_iterator(
    CORPUS, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
  )
  tokenizer.add_special_tokens([AddedToken(name) for name in special])
  return tokenizer


def write(name: str, settings: dict, tokenizer: Tokenizer | None = None) -> Path:
  folder = GOLDEN / name
  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir(parents=True)
  if tokenizer is not None:
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
  (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
  return folder


def main() -> None:
  bos, eos = "<|begin_of_text|>", "<|end_of_text|>"
  tokenizer = byte_level(True, [bos, eos])
  special = [(bos, tokenizer.token_to_id(bos))]
  tokenizer.post_processor = processors.Sequence(
    [processors.ByteLevel(trim_offsets=True), processors.TemplateProcessing(single=f"{bos} $A", special_tokens=special)]
  )
  write("llama3", {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos, "eos_token": eos}, tokenizer)

  end = "<|endoftext|>"
  tokenizer = byte_level(True, [end])
  names = {"bos_token": end, "eos_token": end, "unk_token": end, "pad_token": end}
  folder = write("olmo2", {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False} | names, tokenizer)
  model = json.loads(tokenizer.to_str())["model"]
  (folder / "vocab.json").write_text(json.dumps(model["vocab"] | {end: tokenizer.token_to_id(end)}))
  (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]) + "\n")

  tokenizer = byte_level(False, [], size=300)
  model = json.loads(tokenizer.to_str())["model"]
  pieces = ["<s>", "<pad>", "</s>", "<unk>", *model["vocab"]]
  names = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}
  folder = write("opt", {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "add_prefix_space": False} | names)
  (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
  (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]) + "\n")

  settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False, "legacy": False}
  settings |= {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
  folder = write("llama2", settings)
  with tempfile.TemporaryDirectory() as temporary:
    (Path(temporary) / "corpus.txt").write_text("\n".join(CORPUS))
    sentencepiece.SentencePieceTrainer.train(
      input=f"{temporary}/corpus.txt", model_prefix=f"{temporary}/tokenizer", model_type="bpe", vocab_size=340,
      byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
      allow_whitespace_only_pieces=True, character_coverage=0.9995, minloglevel=2,
    )  # fmt: skip
    shutil.copy(Path(temporary) / "tokenizer.model", folder)
  fast = write("llama2_fast", settings)
  transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(fast)

  folders = sorted(path for path in GOLDEN.iterdir() if path.is_dir())
  found = {
    folder.name: [transformers.AutoTokenizer.from_pretrained(folder)(text)["input_ids"] for text in TEXTS]
    for folder in folders
  }
  (GOLDEN / "ids.json").write_text(json.dumps({"texts": TEXTS, "ids": found}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
  main()
