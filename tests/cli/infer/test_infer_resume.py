"""An output file is resumed after a kill without repeated or lost rows; several processes answer as one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from infer_models import folder_of, read, words
from ports import free_port
from trainers import wait_for

from t5like.cli.main import main

REPOSITORY = Path(__file__).resolve().parents[3]
ROWS = [list(range(2 + n, 4 + n + n % 3)) for n in range(24)]
SAMPLING = ["--temperature=1.5", "--seed=3", "--max_length=6", "--batch_size=2"]
# Runs the command, then checks the loaded modules.
WITHOUT_TENSORFLOW = (
  "import sys; from t5like.cli.main import main; status = main(sys.argv[1:]); "
  "assert not {'tensorflow', 'seqio'} & set(sys.modules); sys.exit(status)"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  return folder_of("gpt2", tmp_path_factory.mktemp("models") / "gpt2", eos=12)


def write_rows(path, rows=ROWS):
  path.write_text("".join(words(row) + "\n" for row in rows))
  return path


def start(arguments, devices=1, **environment):
  env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_NUM_CPU_DEVICES": str(devices), **environment}
  return subprocess.Popen(
    [sys.executable, "-c", WITHOUT_TENSORFLOW, *map(str, arguments)],
    env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
  )  # fmt: skip


@pytest.fixture(scope="module")
def uninterrupted(model, tmp_path_factory):
  """All answers, written without interruption."""
  folder = tmp_path_factory.mktemp("uninterrupted")
  source = write_rows(folder / "in.txt")
  assert main(["infer", f"--model={model}", f"--input={source}", f"--output={folder}/out.jsonl", *SAMPLING]) == 0
  return folder / "out.jsonl"


@pytest.mark.slow
def test_a_killed_command_resumes(model, uninterrupted, t5like, tmp_path):
  out = tmp_path / "out.jsonl"
  arguments = ["infer", f"--model={model}", f"--output={out}", *SAMPLING]
  process = start([*arguments, "--input=-"])
  process.stdin.write("".join(words(row) + "\n" for row in ROWS[:7]))
  process.stdin.flush()  # rows from a pipe are answered as they arrive
  wait_for(lambda: out.is_file() and out.read_bytes().count(b"\n") == 7, process)
  busy = t5like(*arguments, f"--input={write_rows(tmp_path / 'in.txt')}", status=2)
  assert "another process is writing" in busy.stderr
  process.send_signal(signal.SIGKILL)
  process.communicate()
  with open(out, "ab") as file:
    file.write(b'{"row": 7, "inputs": "w9 w1')  # truncated by a kill
  done = t5like(*arguments, f"--input={tmp_path}/in.txt")
  assert "resuming after 7 rows" in done.stderr
  assert [row["row"] for row in read(out)] == list(range(len(ROWS)))
  assert [(r["inputs"], r["outputs"][0]["text"]) for r in read(out)] == [
    (r["inputs"], r["outputs"][0]["text"]) for r in read(uninterrupted)
  ]
  assert len({r["outputs"][0]["text"] for r in read(out)}) > 12  # samples differ between rows

  # A finished file is unchanged.
  before = out.read_bytes()
  assert "resuming after 24 rows" in t5like(*arguments, f"--input={tmp_path}/in.txt").stderr
  assert out.read_bytes() == before


@pytest.mark.parametrize(
  "change, expected",
  [
    ("settings", "temperature: was 1.5, now 0.5"),
    ("model", "weights: was"),
    ("input", "was written for another input"),
    ("stranger", "exists but cannot be resumed"),
  ],
)
def test_a_file_of_another_run_is_rejected_and_unchanged(model, uninterrupted, t5like, tmp_path, change, expected):
  source, out = write_rows(tmp_path / "in.txt"), tmp_path / "out.jsonl"
  out.write_bytes(uninterrupted.read_bytes()[:900].rpartition(b"\n")[0] + b"\n")
  (tmp_path / "out.jsonl.run.json").write_bytes(uninterrupted.with_name("out.jsonl.run.json").read_bytes())
  settings = SAMPLING
  if change == "settings":
    settings = ["--temperature=0.5", *SAMPLING[1:]]
  elif change == "model":
    model = folder_of("gpt2", tmp_path / "other", eos=12)
    with open(model / "model.safetensors", "r+b") as file:
      file.seek(-400, os.SEEK_END)
      file.write(bytes(range(1, 5)))
  elif change == "input":
    write_rows(source, [ROWS[0], ROWS[2], *ROWS[2:]])
  else:
    (tmp_path / "out.jsonl.run.json").unlink()
  before = out.read_bytes()
  done = t5like("infer", f"--model={model}", f"--input={source}", f"--output={out}", *settings, status=2)
  assert expected in done.stderr and "--overwrite" in done.stderr
  assert out.read_bytes() == before


def test_embeddings_are_resumed_too(model, t5like, tmp_path):
  """--strict stops at a line that is then fixed: rows embedded before are not embedded again."""
  source, out = write_rows(tmp_path / "in.txt"), tmp_path / "out.npy"
  lines = source.read_bytes().splitlines()
  arguments = ["infer", f"--model={model}", f"--input={source}", "--embed=mean", "--batch_size=4"]
  source.write_bytes(b"\n".join([*lines[:5], b"\xff", *lines[6:]]))
  assert "line 6: invalid UTF-8" in t5like(*arguments, f"--output={out}", "--strict", status=1).stderr
  assert not out.exists()
  source.write_bytes(b"\n".join(lines))
  assert "resuming after 5 rows" in t5like(*arguments, f"--output={out}").stderr
  t5like(*arguments, f"--output={tmp_path}/uninterrupted.npy")
  np.testing.assert_allclose(np.load(out), np.load(tmp_path / "uninterrupted.npy"), atol=1e-6)
  assert np.load(out).shape == (24, 24) and not (tmp_path / "out.npy.part").exists()
  assert "resuming after 24 rows" in t5like(*arguments, f"--output={out}").stderr
  write_rows(source, ROWS[::-1])
  assert "was written for another input" in t5like(*arguments, f"--output={out}", status=2).stderr


@pytest.mark.slow
def test_two_processes_answer_every_row_once(model, uninterrupted, tmp_path):
  """They resume a partial file; process 0 writes. None loads TensorFlow."""
  port = free_port()
  out = tmp_path / "out.jsonl"
  out.write_bytes(b"".join(uninterrupted.read_bytes().splitlines(keepends=True)[:5]))
  (tmp_path / "out.jsonl.run.json").write_bytes(uninterrupted.with_name("out.jsonl.run.json").read_bytes())
  source = write_rows(tmp_path / "in.txt")
  arguments = ["infer", f"--model={model}", f"--input={source}", f"--output={out}", *SAMPLING, "--batch_size=8"]
  hosts = [
    start(
      arguments, T5LIKE_COORDINATOR=f"localhost:{port}", T5LIKE_NUM_PROCESSES="2", T5LIKE_PROCESS_ID=str(host)
    )
    for host in range(2)
  ]  # fmt: skip
  outputs = [host.communicate(timeout=400)[0] for host in hosts]
  assert [host.returncode for host in hosts] == [0, 0], outputs
  assert "resuming after 5 rows" in outputs[0] and "rows" not in outputs[1]
  rows = [json.loads(line) for line in uninterrupted.read_text().splitlines()]
  assert [(r["row"], r["inputs"], r["outputs"][0]["text"]) for r in read(out)] == [
    (r["row"], r["inputs"], r["outputs"][0]["text"]) for r in rows
  ]
