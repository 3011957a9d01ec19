"""`t5like eval` on two hosts: every example counts exactly once, and process 0 writes."""

import json
from pathlib import Path

import pytest
from trainers import finish, start_pod

from t5like import data
from t5like.vocabularies import load_vocabulary

GOLDEN = Path(__file__).parents[2] / "data/golden/gpt2_bytes"
SCORING = {
  "postprocessor": {"function": "t5like.tasks.postprocessors:strip_text", "keywords": {}},
  "metrics": [{"function": "t5like.tasks.metrics:accuracy", "keywords": {}}],
}


@pytest.fixture
def quiz(tmp_path):
  """A token cache of 13 questions, which do not divide evenly into batches, as bytes."""
  vocabulary = load_vocabulary("byte")
  answers = ("yes", "no")
  examples = [{"inputs": f"Is {i} even?", "targets": answers[i % 2]} for i in range(13)]
  data.write_cache(
    data.cache_folder(tmp_path, "quiz", "validation", "byte", vocabulary.fingerprint),
    examples, ["inputs", "targets"], vocabulary.encode_batch,
    vocabulary={"name": "byte", "size": vocabulary.vocab_size, "fingerprint": vocabulary.fingerprint},
    description={"task": "quiz", "split": "validation", "source_files": []}, scoring=SCORING,
  )  # fmt: skip
  return tmp_path


def outcome(folder):
  (record,) = json.loads((folder / "evaluations/scores.json").read_text())
  rows = [json.loads(line) for line in (folder / record["predictions"]).read_text().splitlines()]
  return record, rows


@pytest.mark.slow
def test_two_hosts_give_the_answers_of_one(t5like, quiz, tmp_path):
  options = [
    "eval", f"--model_dir={GOLDEN}", "--task=quiz", "--shots=0", "--rank", "--batch_size=4", f"--cache_dir={quiz}",
  ]  # fmt: skip
  t5like(*options, f"--out={tmp_path / 'one'}")
  outputs = finish(start_pod([*options, f"--out={tmp_path / 'two'}"], hosts=2))
  (alone, rows), (shared, others) = (outcome(tmp_path / name) for name in ("one", "two"))
  assert [row["inputs"] for row in rows] == [f"Is {i} even?" for i in range(13)]
  assert shared == alone and shared["examples"] == 13
  for one, other in zip(rows, others, strict=True):
    assert (one["prediction"], one["target"]) == (other["prediction"], other["target"])
    assert one["log_likelihoods"] == pytest.approx(other["log_likelihoods"], rel=1e-5)
  golden = json.loads((GOLDEN / "losses.json").read_text(encoding="utf-8"))["quiz"]  # Hugging Face's, of "Is 7 even?"
  assert rows[7]["log_likelihoods"] == pytest.approx({label: golden[label] for label in ("no", "yes")}, rel=1e-5)
  assert "13 examples" in outputs[0] and "13 examples" not in outputs[1]  # only process 0 prints


def test_prompts_that_exceed_the_positions(t5like, quiz, tmp_path):
  """The model has 48 positions: questions of 12 bytes fit, an instruction of 60 does not."""
  (tmp_path / "long.txt").write_text("x" * 60 + "\n---\n{inputs} {targets}\n")
  options = ["eval", f"--model_dir={GOLDEN}", "--task=quiz", f"--cache_dir={quiz}", f"--out={tmp_path}"]
  error = t5like(*options, f"--prompt={tmp_path / 'long.txt'}", "--max_length=8", status=2).stderr
  assert "the prompt of example 0 is too long even without shots: 71 tokens (limit 41)" in error
  assert "leave no room for a prompt" in t5like(*options, "--shots=0", "--max_length=60", status=2).stderr
  done = t5like(*options, "--shots=0", "--max_length=8").stdout
  assert "quiz (validation, 13 examples)" in done
