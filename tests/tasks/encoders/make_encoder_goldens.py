"""Writes Hugging Face's encodings of text pairs and SQuAD windows as goldens for test_encoder_goldens.py.

Needs transformers, and the official dev-v1.1.json for the sample of questions:

  python tests/tasks/encoders/make_encoder_goldens.py dev-v1.1.json          writes sample and goldens
  python tests/tasks/encoders/make_encoder_goldens.py dev-v1.1.json --live   compares all questions with ours instead
"""

import argparse
import gzip
import json
import sys
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPOSITORY))
GOLDENS = REPOSITORY / "tests/data/encoder_forms"
PIECES = REPOSITORY / "t5like/vocabularies/embedded/bert_uncased.txt"
QUESTIONS = 12
# (window, overlap): the usual setting, and a small one that splits any passage into many windows.
SETTINGS = [(384, 128), (96, 32)]
PAIR_LENGTHS = (16, 33, 64, 512)


def tokenizer():
  from transformers import BertTokenizer

  pieces = PIECES.read_text(encoding="utf-8").removesuffix("\n").split("\n")
  return BertTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, do_lower_case=True)


def windows(hf, question: str, passage: str, answer: tuple[int, int], length: int, overlap: int) -> list:
  """Returns [ids, token types, offsets in the passage, (start, end)] of every window."""
  encoded = hf(
    question, passage, truncation="only_second", max_length=length, stride=overlap,
    return_overflowing_tokens=True, return_offsets_mapping=True,
  )  # fmt: skip
  rows = []
  for number, ids in enumerate(encoded["input_ids"]):
    parts, spans = encoded.sequence_ids(number), encoded["offset_mapping"][number]
    inside = [place for place, part in enumerate(parts) if part == 1]
    offsets = [list(span) if part == 1 else [-1, -1] for span, part in zip(spans, parts, strict=True)]
    rows.append([ids, encoded["token_type_ids"][number], offsets, _positions(spans, inside, answer)])
  return rows


def _positions(spans: list, inside: list[int], answer: tuple[int, int]) -> list[int]:
  """Returns the first and last token of the answer by brute force; [0, 0] if it is not fully inside the window."""
  if spans[inside[0]][0] > answer[0] or spans[inside[-1]][1] < answer[1]:
    return [0, 0]
  starts = [place for place in inside if spans[place][0] <= answer[0]]
  ends = [place for place in inside if spans[place][1] >= answer[1]]
  return [starts[-1], ends[0]]


def questions(path: str) -> list[dict]:
  data = json.loads(Path(path).read_text(encoding="utf-8"))["data"]
  return [
    {"id": q["id"], "question": q["question"], "context": p["context"], "answers": q["answers"]}
    for article in data
    for p in article["paragraphs"]
    for q in p["qas"]
  ]


def span(row: dict) -> tuple[int, int]:
  answer = row["answers"][0]
  return answer["answer_start"], answer["answer_start"] + len(answer["text"])


def write(hf, rows: list[dict]) -> None:
  by_length = sorted(rows, key=lambda row: -len(row["context"]))
  sample = [*by_length[:6:3], *rows[:: len(rows) // (QUESTIONS - 2)][: QUESTIONS - 2]]
  (GOLDENS / "squad_sample.json").write_text(json.dumps(sample, indent=1) + "\n")
  split = [
    [windows(hf, row["question"], row["context"], span(row), *setting) for row in sample] for setting in SETTINGS
  ]
  texts = [(row["question"], row["context"][: 40 * number]) for number, row in enumerate(sample, 1)]
  texts += [(b, a) for a, b in texts]
  pairs = [
    [[encoded["input_ids"], encoded["token_type_ids"]] for encoded in (
      hf(a, b, truncation="longest_first", max_length=length) for a, b in texts)]
    for length in PAIR_LENGTHS
  ]  # fmt: skip
  singles = [hf(a, truncation=True, max_length=16)["input_ids"] for a, _ in texts]
  golden = {"settings": SETTINGS, "windows": split, "pair_lengths": PAIR_LENGTHS, "texts": texts}
  golden |= {"pairs": pairs, "singles": singles}
  text = json.dumps(golden, separators=(",", ":"))
  (GOLDENS / "hugging_face.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
  print(f"{len(sample)} questions, {sum(len(w) for setting in split for w in setting)} windows")


def compare(hf, rows: list[dict]) -> None:
  from t5like.objectives.spans import make_windows
  from t5like.vocabularies import load_vocabulary

  vocabulary = load_vocabulary("bert_uncased")
  for length, overlap in SETTINGS:
    count = differ = 0
    for row in rows:
      expected = windows(hf, row["question"], row["context"], span(row), length, overlap)
      ours = make_windows(
        vocabulary, row["question"], row["context"], span(row), length, overlap=overlap, longest_question=None
      )
      count += len(expected)
      differ += len(expected) != len(ours.tokens) or any(
        ids != ours.tokens[n, : len(ids)].tolist()
        or types != ours.token_types[n, : len(ids)].tolist()
        or not np.array_equal(offsets, ours.offsets[n, : len(ids)])
        or positions != ours.labels[n].tolist()
        for n, (ids, types, offsets, positions) in enumerate(expected)
      )
    print(f"windows of {length} overlapping by {overlap}: {len(rows)} questions, {count} windows, {differ} differ")


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("squad", help="dev-v1.1.json")
  parser.add_argument("--live", action="store_true")
  args = parser.parse_args()
  (compare if args.live else write)(tokenizer(), questions(args.squad))


if __name__ == "__main__":
  main()
