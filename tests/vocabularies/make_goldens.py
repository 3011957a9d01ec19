"""Writes the ids of other libraries, for test_same_ids.py to compare with.

  python tests/vocabularies/make_goldens.py              in an environment with transformers: BERT, GPT-2, RoBERTa
  python tests/vocabularies/make_goldens.py              in one with seqio: T5, tiny, bytes
  python tests/vocabularies/make_goldens.py --live FILE  compares sentences of a JSON Lines corpus instead of writing

Texts are tests/data/vocabularies/odd_texts.json and sentences of the embedded novels; texts.json keeps them.
"""

import argparse
import gzip
import importlib.util
import itertools
import json
import lzma
import re
import sys
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))
GOLDENS = REPOSITORY / "tests/data/vocabularies"
EMBEDDED = REPOSITORY / "t5like/vocabularies/embedded"
NOVELS = REPOSITORY / "t5like/tasks/embedded/novels.validation.jsonl.gz"
SENTENCES = 300
DECODED = 40  # texts of each golden whose decoded text is also stored, in addition to all odd ones


def texts() -> list[str]:
  with gzip.open(NOVELS, "rt", encoding="utf-8") as lines:
    documents = [json.loads(line)["text"] for line in lines]
  return json.loads((GOLDENS / "odd_texts.json").read_text()) + sentences(documents, SENTENCES)


def sentences(documents: list[str], count: int) -> list[str]:
  """Returns `count` sentences spread over all documents."""
  found = [s for document in documents for s in re.split(r"(?<=[.!?])\s+", document) if s]
  return found[:: max(1, len(found) // count)][:count]


def hugging_face() -> dict:
  from tokenizers import AddedToken, models
  from transformers import BertTokenizer, GPT2Tokenizer, RobertaTokenizer

  def bert(name, lower):
    pieces = (EMBEDDED / f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    return BertTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, do_lower_case=lower)

  def bpe(cls, name, **special):
    files = str(EMBEDDED / f"{name}.json"), str(EMBEDDED / "gpt2.merges.txt")
    return cls(*models.BPE.read_file(*files), **special)

  return {
    "bert_uncased": bert("bert_uncased", True),
    "bert_cased": bert("bert_cased", False),
    "gpt2": bpe(GPT2Tokenizer, "gpt2"),
    # As in the published tokenizer.json: the mask includes the space before it.
    "roberta": bpe(RobertaTokenizer, "roberta", mask_token=AddedToken("<mask>", lstrip=True)),
  }


def seqios() -> dict:
  import seqio

  return {
    "t5": seqio.SentencePieceVocabulary(str(EMBEDDED / "t5.model"), 100),
    "tiny": seqio.SentencePieceVocabulary(str(EMBEDDED / "tiny.model"), 100),
    "byte": seqio.ByteVocabulary(125),
  }


def encode(theirs, text: str) -> list[int]:
  if hasattr(theirs, "backend_tokenizer"):
    return theirs.encode(text, add_special_tokens=False)
  return list(theirs.encode(text))


def write(name: str, theirs) -> None:
  (GOLDENS / "texts.json").write_text(json.dumps(texts(), indent=0) + "\n")
  ids = [encode(theirs, text) for text in texts()]
  arrays = {
    "ids": np.array(list(itertools.chain(*ids)), np.uint16),
    "lengths": np.array(list(map(len, ids)), np.uint16),
  }
  if name.startswith("bert"):
    spans = [theirs(t, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"] for t in texts()]
    arrays["offsets"] = np.array(list(itertools.chain(*spans)), np.uint16)
  np.savez_compressed(GOLDENS / f"{name}.npz", **arrays)
  odd = len(json.loads((GOLDENS / "odd_texts.json").read_text()))
  decoded = [theirs.decode(row) for row in ids[: odd + DECODED]]
  (GOLDENS / f"{name}.decoded.json").write_text(json.dumps(decoded, ensure_ascii=False, indent=0) + "\n")
  print(f"{name}: {len(ids)} texts, {arrays['ids'].size} ids")


def compare(name: str, theirs, corpus: list[str]) -> None:
  from t5like.vocabularies import load_vocabulary

  ours = load_vocabulary(name)
  batch = ours.encode_batch(corpus, threads=2)
  differ = text_differs = 0
  for text, row in zip(corpus, batch, strict=True):
    expected = encode(theirs, text)
    differ += row != expected or ours.encode(text) != expected or ours.encode_with_offsets(text)[0] != expected
    text_differs += ours.decode(row) != theirs.decode(expected)
  tokens = sum(map(len, batch))
  print(f"{name}: {len(corpus)} texts, {tokens} ids; ids differ in {differ}, decoded text in {text_differs}")


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--live", help="a corpus.jsonl.xz to take 10,000 sentences from")
  args = parser.parse_args()
  tokenizers = hugging_face() if importlib.util.find_spec("transformers") else seqios()
  corpus = []
  if args.live:
    with lzma.open(args.live, "rt", encoding="utf-8") as lines:
      corpus = json.loads((GOLDENS / "odd_texts.json").read_text())
      corpus += sentences([json.loads(line)["text"] for line in itertools.islice(lines, 0, None, 3)], 10_000)
  for name, theirs in tokenizers.items():
    if args.live:
      compare(name, theirs, corpus)
    else:
      write(name, theirs)


if __name__ == "__main__":
  main()
