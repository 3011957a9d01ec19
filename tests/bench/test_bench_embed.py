"""The benchmark of embeddings counts the tokens that the model reads."""

import json
from pathlib import Path

from t5like.bench.embed import make_texts

FOLDER = Path(__file__).parents[1] / "data" / "golden" / "sentences" / "bert"


def test_tokens_and_texts(t5like):
  out = t5like("bench", "embed", f"--model={FOLDER}", "--texts=40", "--batch_size=16", "--no_peer", "--json").stdout
  result = json.loads(out)
  # Words are tokens of this vocabulary; [CLS], [SEP], and texts are cut to 8 tokens.
  assert result["tokens"] == sum(min(len(text.split()) + 2, 8) for text in make_texts(40))
  assert result["texts"] == 40 and result["tokens_per_second"] > 0
  assert all(len(text.split()) >= 30 for text in make_texts(3, words=30))
  assert "at least 1" in t5like("bench", "embed", f"--model={FOLDER}", "--texts=0", status=2).stderr
