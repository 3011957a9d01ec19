"""`t5like infer` on files: answers equal those of transformers, and rejected rows are reported."""

import json

import numpy as np
import pytest
from infer_models import folder_of, golden, golden_folders, read, words

from t5like.interop import huggingface

T5, GPT2, BERT = golden("t5_1_1"), golden("gpt2"), golden("bert")
LENGTH = f"--max_length={T5['new_tokens']}"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
  return golden_folders(tmp_path_factory.mktemp("models"))


def answers_of_t5():
  """Greedy outputs of transformers as text, without EOS and padding."""
  return [words(i for i in row["greedy"] if i not in (0, T5["eos"])) for row in T5["rows"]]


def json_lines(rows, key="text", **more):
  return "".join(json.dumps({"inputs": words(r[key]), "targets": words(r["target"]), **more}) + "\n" for r in rows)


def test_lines_of_text_get_the_answers_of_transformers_in_order(models, t5like, tmp_path):
  lines = [words(row["text"]) for row in T5["rows"]]
  (tmp_path / "in.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\r\n")
  done = t5like("infer", f"--model={models['t5']}", f"--input={tmp_path}/in.txt", LENGTH, "--batch_size=3")
  rows = [json.loads(line) for line in done.stdout.splitlines()]
  assert [row["row"] for row in rows] == [0, 1, 2, 3]
  assert [row["inputs"] for row in rows] == lines
  assert [row["outputs"][0]["text"] for row in rows] == answers_of_t5()
  assert [row["outputs"][0]["finished"] for row in rows] == [False, False, False, True]
  assert "4/4 rows" in done.stderr and "tokens generated/s" in done.stderr


@pytest.mark.slow
def test_a_line_that_does_not_fit_into_memory_does_not_end_the_job(models, t5like, tmp_path, monkeypatch):
  """Memory suffices for rows of 64 tokens: the line of 200 is rejected, the others are answered."""
  lines = [words(row["text"]) for row in T5["rows"]]
  (tmp_path / "in.txt").write_text("\n".join([*lines[:2], " ".join(["w5"] * 200), *lines[2:]]) + "\n")
  monkeypatch.setattr("t5like.inference.memory.free_bytes", lambda mesh: 100)
  monkeypatch.setattr("t5like.inference.memory._needed", tokens_of_a_row)
  command = ["infer", f"--model={models['t5']}", f"--input={tmp_path}/in.txt", LENGTH]
  done = t5like(*command, f"--output={tmp_path}/out.jsonl", status=1)
  rows = read(tmp_path / "out.jsonl")
  assert "201 tokens do not fit into device memory" in rows[2]["error"] and "line 3" in done.stderr
  assert [row["outputs"][0]["text"] for row in rows if "outputs" in row] == answers_of_t5()
  strict = t5like(*command, "--strict", f"--output={tmp_path}/strict.jsonl", status=1)
  assert "line 3: 201 tokens do not fit" in strict.stderr and len(read(tmp_path / "strict.jsonl")) == 2
  # --truncate answers it.
  t5like(*command, "--max_inputs=60", "--truncate", f"--output={tmp_path}/cut.jsonl")
  assert all("outputs" in row for row in read(tmp_path / "cut.jsonl"))


def tokens_of_a_row(compiled) -> int:
  batch = compiled.args_info[0][1]
  return next(array.shape[1] for name, array in batch.items() if name.endswith("_input_tokens"))


def test_a_literal_padding_token_is_read_as_in_transformers(models, t5like, tmp_path):
  """Padding is determined by length, not by id 0: the literal token is attended to."""
  (tmp_path / "in.txt").write_text("w5 w0 w6\nw5 w6\n")
  done = t5like("infer", f"--model={models['bert']}", f"--input={tmp_path}/in.txt", "--embed=mean")
  spelt, plain = (np.array(json.loads(line)["embedding"]) for line in done.stdout.splitlines())
  imported = huggingface.load(models["bert"])
  tokens = np.array([[BERT["cls"], 5, 0, 6, BERT["sep"]]], np.int32)
  batch = {"encoder_input_tokens": tokens, "encoder_segment_ids": np.ones_like(tokens)}
  hidden = imported.model.apply({"params": imported.params}, batch, method="hidden_states")
  np.testing.assert_allclose(spelt, hidden[0].mean(axis=0), atol=1e-5)
  assert np.abs(spelt - plain).max() > 1e-3


def test_invalid_lines_are_reported_and_the_rest_is_answered(models, t5like, tmp_path):
  good = [json.dumps({"question": words(row["text"]), "id": n, "row": "mine"}) for n, row in enumerate(T5["rows"])]
  lines = [good[0], '{"question": "w1 w2', '{"questions": "w1"}', "", good[1], '["w1"]', '{"question": 7}', good[2]]
  bad = tmp_path / "in.jsonl"
  bad.write_bytes(b'{"question": "\xff"}\n' + "\n".join(lines).encode())
  command = ["infer", f"--model={models['t5']}", f"--input={bad}", "--field=question", LENGTH]
  done = t5like(*command, f"--output={tmp_path}/out.jsonl", status=1)
  rows = read(tmp_path / "out.jsonl")
  assert [row["row"] for row in rows] == list(range(8))
  errors = {row["row"]: row["error"] for row in rows if "error" in row}
  expected = {
    0: "line 1: invalid UTF-8: byte 0xff at position 15", 2: "line 3: invalid JSON", 3: "--field=questions?",
    5: "line 7: expected a JSON object, got list", 6: "line 8: field 'question': expected text, got int",
  }  # fmt: skip
  assert errors.keys() == expected.keys()
  for number, text in expected.items():
    assert text in errors[number] and text in done.stderr
  assert [rows[n]["outputs"][0]["text"] for n in (1, 4, 7)] == answers_of_t5()[:3]
  assert rows[4]["id"] == 1 and rows[4]["input_row"] == "mine"
  assert "5 of 8 rows were rejected" in done.stderr

  # --strict answers the rows before the first invalid one; exit status 2 if there are none.
  assert "nothing" not in t5like(*command, "--strict", status=2).stdout
  bad.write_text("\n".join(lines))
  done = t5like(*command, "--strict", f"--output={tmp_path}/strict.jsonl", status=1)
  assert "error: line 2: invalid JSON" in done.stderr
  assert [row["row"] for row in read(tmp_path / "strict.jsonl")] == [0]


def test_likelihoods_equal_those_of_transformers(models, t5like, tmp_path):
  for name, made in (("t5", T5), ("gpt2", GPT2)):
    (tmp_path / "in.jsonl").write_text(json_lines(made["rows"]))
    done = t5like("infer", f"--model={models[name]}", f"--input={tmp_path}/in.jsonl", "--score", "--batch_size=8")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    expected = [row["log_likelihood"] for row in made["rows"]]
    np.testing.assert_allclose([row["score"] for row in rows], expected, atol=2e-4)
    assert [row["tokens"] for row in rows] == [len(row["target"]) + (name == "t5") for row in made["rows"]]


def test_candidates_are_ranked_by_likelihood(models, t5like, tmp_path):
  """Ranks GPT-2's golden targets for the first prompt; checks the golden log-likelihood."""
  row = GPT2["rows"][0]
  others = ["w59", words(row["target"][:1])]
  (tmp_path / "in.jsonl").write_text(
    json.dumps({"inputs": words(row["text"]), "choices": [words(row["target"]), *others]})
  )
  command = ["infer", f"--model={models['gpt2']}", f"--input={tmp_path}/in.jsonl", "--candidates_field=choices"]
  plain, per_token = (json.loads(t5like(*command, "--batch_size=8", *more).stdout) for more in ([], ["--per_token"]))
  scores = {entry["text"]: entry for entry in plain["ranking"]}
  assert scores[words(row["target"])]["score"] == pytest.approx(row["log_likelihood"], abs=2e-4)
  # A prefix is more likely than the full target: it ranks higher by the sum.
  assert scores[others[1]]["score"] > scores[words(row["target"])]["score"]
  for result, key in ((plain, "score"), (per_token, "per_token")):
    order = [entry[key] for entry in result["ranking"]]
    assert order == sorted(order, reverse=True) and result["choice"] == result["ranking"][0]["text"]


def test_prompts_that_exceed_the_positions_are_rejected_or_truncated(models, t5like, tmp_path):
  """The golden GPT-2 has 20 positions: 9 for a prompt before 12 tokens, the last of which is never read."""
  prompts = [list(range(1, 10)), list(range(20, 30)), list(range(21, 30))]
  (tmp_path / "in.txt").write_text("".join(words(p) + "\n" for p in prompts))
  command = ["infer", f"--model={models['gpt2']}", f"--input={tmp_path}/in.txt", "--max_length=12"]
  rejected = [json.loads(line) for line in t5like(*command, status=1).stdout.splitlines()]
  assert [("error" in row) for row in rejected] == [False, True, False]
  assert "line 2: too long: 10 tokens (the model has 20 positions" in rejected[1]["error"]
  # For a decoder the end of a text is kept.
  cut = [json.loads(line) for line in t5like(*command, "--truncate").stdout.splitlines()]
  assert cut[1]["outputs"][0]["score"] == pytest.approx(cut[2]["outputs"][0]["score"], abs=1e-5)
  assert cut[0]["outputs"] == rejected[0]["outputs"]
  assert "--max_length=21 exceeds" in t5like(*command[:-1], "--max_length=21", status=2).stderr


def test_masks_are_filled_as_by_transformers(models, t5like, tmp_path):
  (tmp_path / "in.txt").write_text("".join(words(row["text"]) + "\n" for row in BERT["rows"]))
  done = t5like("infer", f"--model={models['bert']}", f"--input={tmp_path}/in.txt", "--fill_mask", "--top=3", status=1)
  rows = [json.loads(line) for line in done.stdout.splitlines()]
  assert "no w3 in the text" in rows[2]["error"]
  for row, expected in zip(rows[:2], BERT["rows"], strict=False):
    assert [[t["token"] for t in mask] for mask in row["masks"]] == [
      [f"w{i}" for i in mask["ids"]] for mask in expected["masks"]
    ]
    found = [[t["probability"] for t in mask] for mask in row["masks"]]
    np.testing.assert_allclose(found, [mask["probabilities"] for mask in expected["masks"]], rtol=1e-4)
    best = iter(mask["ids"][0] for mask in expected["masks"])
    assert row["filled"] == words(next(best) if i == BERT["mask"] else i for i in expected["text"])


def test_embeddings_and_neighbors_equal_those_of_transformers(models, t5like, tmp_path):
  (tmp_path / "in.txt").write_text("".join(words(row["text"]) + "\n" for row in BERT["rows"]))
  command = ["infer", f"--model={models['bert']}", f"--input={tmp_path}/in.txt"]
  for pooling in ("cls", "mean"):
    t5like(*command, f"--embed={pooling}", f"--output={tmp_path}/{pooling}.npy")
    expected = np.array([row[pooling] for row in BERT["rows"]])
    np.testing.assert_allclose(np.load(tmp_path / f"{pooling}.npy"), expected, atol=1e-5)
  unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
  cosines = unit @ unit.T
  done = t5like(*command, f"--neighbors={tmp_path}/in.txt", "--top=2")
  for i, line in enumerate(done.stdout.splitlines()):
    near = json.loads(line)["neighbors"]
    order = sorted(range(3), key=lambda j, i=i: -cosines[i, j])[:2]
    assert [n["line"] - 1 for n in near] == order
    np.testing.assert_allclose([n["similarity"] for n in near], cosines[i, order], atol=1e-5)
  # T5's encoder embeds as well.
  (tmp_path / "t5.txt").write_text("".join(words(row["text"]) + "\n" for row in T5["rows"]))
  t5like(
    "infer", f"--model={models['t5']}", f"--input={tmp_path}/t5.txt", "--embed=mean", f"--output={tmp_path}/t5.npy"
  )
  np.testing.assert_allclose(np.load(tmp_path / "t5.npy"), [row["mean"] for row in T5["rows"]], atol=1e-5)


def test_a_converted_model_directory_answers_like_its_source(models, t5like, tmp_path):
  folder = tmp_path / "converted"
  t5like("convert", "from_hf", models["t5"], folder, f"--vocabulary={models['t5']}/tokenizer.json")
  (tmp_path / "in.txt").write_text("".join(words(row["text"]) + "\n" for row in T5["rows"]))
  done = t5like("infer", f"--model={folder}/checkpoints/0", f"--input={tmp_path}/in.txt", LENGTH, "--batch_size=3")
  assert [json.loads(x)["outputs"][0]["text"] for x in done.stdout.splitlines()] == answers_of_t5()
  assert (
    "no checkpoint of step 3"
    in t5like("infer", f"--model={folder}", "--step=3", f"--input={tmp_path}/in.txt", status=2).stderr
  )


@pytest.mark.parametrize(
  "model, arguments, expected",
  [
    ("t5", ["--input=EMPTY"], "empty.txt is empty"),
    ("t5", ["--input=nowhere.txt"], "no file nowhere.txt"),
    ("t5", ["--input=IN", "--score"], "--score needs a target for each row"),
    ("t5", ["--input=IN", "--embed=cls"], "T5 has no [CLS]"),
    ("t5", ["--input=IN", "--step=3"], "a Hugging Face folder and has no steps"),
    ("t5", ["--input=IN", "--temperature=0.5", "--beams=2"], "--beams=2 is invalid"),
    ("t5", ["--input=IN", "--embed=mean", "--beams=2"], "--embed generates no text"),
    ("t5", ["--input=IN", "--field=x"], "lines of text have no fields"),
    ("bert", ["--input=IN"], "BERT is an encoder and cannot generate text"),
    ("gpt2", ["--input=IN", "--mesh=date=2"], "nearest"),
    ("nothing", ["--input=IN"], ", hf://org/name, "),
    ("bare", ["--input=IN"], "--vocabulary=NAME_OR_FILE"),
  ],
)
def test_invalid_input_is_reported_before_anything_is_written(models, t5like, tmp_path, model, arguments, expected):
  (tmp_path / "in.txt").write_text("w1 w2\n")
  (tmp_path / "empty.txt").write_text("")
  folder = {**models, "nothing": "t5-small", "bare": tmp_path / "bare"}[model]
  if model == "bare":  # weights without a vocabulary
    folder_of("gpt2", folder)
    (folder / "tokenizer.json").unlink()
  paths = {"IN": f"{tmp_path}/in.txt", "EMPTY": f"{tmp_path}/empty.txt"}
  given = [
    a.partition("=")[0] + "=" + paths.get(a.partition("=")[2], a.partition("=")[2]) if "=" in a else a
    for a in arguments
  ]
  done = t5like("infer", f"--model={folder}", *given, f"--output={tmp_path}/out.jsonl", status=2)
  assert expected in done.stderr and not (tmp_path / "out.jsonl").exists()
