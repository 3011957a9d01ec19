"""Pre-trains BERT mini with four objectives at equal FLOPs, then fine-tunes each on four tasks.

    python tests/gpu/compare_encoders.py --folder=/tmp/encoders --corpus=text.train.jsonl --prepare    # token caches
    python tests/gpu/compare_encoders.py --folder=/tmp/encoders --corpus=text.train.jsonl              # one GPU

The question is ELECTRA's: does replaced-token detection learn more per FLOP than masked language modeling? The second
command needs neither TensorFlow nor the files of the first, so that --folder can be copied to a machine without them.
GLUE and SQuAD must be prepared (t5like tasks prepare). The result is a table, and a line of JSON for each run in
results.jsonl. Runs that are finished are not repeated. Processes share the GPU with NVIDIA's MPS.
"""

import argparse
import concurrent.futures
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

# Objective, rows, and steps for one step of masked language modeling with 128 rows: FLOPs that are computed, of which
# those of logits count for the predicted tokens only (planning/flops.py counts all positions).
OBJECTIVES = {
  "mlm": ("bert_mlm", 128, 1.0, []),
  "electra": ("electra", 128, 0.928, []),
  "roberta": ("roberta", 256, 0.5, []),
  "spanbert": ("spanbert", 128, 0.771, ["span_masked_lm.variant=original", "PREDICTED_SHARE=0.16"]),
}
# File of gin/finetune, epochs, and the metrics whose mean is the score.
TASKS = {
  "sst2": ("glue/sst2", 2, ["accuracy"]),
  "stsb": ("glue/stsb", 6, ["pearson_corrcoef", "spearman_corrcoef"]),
  "rte": ("glue/rte", 6, ["accuracy"]),
  "squad": ("squad/v1_1", 1, ["f1"]),
}


def pretrain_options(folder: Path, corpus: str, kind: str, seed: int, steps: int) -> list[str]:
  objective, rows, share, extra = OBJECTIVES[kind]
  steps = round(steps * share)
  files = ("models/bert/mini.gin", f"objectives/{objective}.gin", "runs/pretrain.gin", "optimizers/adamw.gin")
  settings = [
    "TASK=text", f"CORPUS_FILES={{'train': '{corpus}'}}", "LENGTHS={'inputs': 128}", f"BATCH_SIZE={rows}",
    f"TRAIN_STEPS={steps}", f"WARMUP_STEPS={steps // 20}", "PEAK_LEARNING_RATE=1e-3", "Z_LOSS=0.0", "EVAL_SPLIT=",
    "EVAL_LOSS_PERIOD=0", "COMPUTE_DTYPE=bfloat16", "DETERMINISTIC=False", *extra,
  ]  # fmt: skip
  return options(folder, files, settings, folder / f"runs/{kind}-{seed}", seed)


def finetune_options(folder: Path, kind: str, seed: int, task: str) -> list[str]:
  file, epochs, _ = TASKS[task]
  files = ("models/bert/mini.gin", "finetune/bert.gin", f"finetune/{file}.gin")
  settings = [
    f"INIT_FROM={folder}/runs/{kind}-{seed}", f"EPOCHS={epochs}", "PEAK_LEARNING_RATE=2e-4", "LENGTH_BUCKETS=[]",
    "TransformerConfig.nsp_head=False", "COMPUTE_DTYPE=bfloat16",
  ]  # fmt: skip
  return options(folder, files, settings, folder / f"runs/{kind}-{seed}-{task}", seed)


def options(folder: Path, files, settings, model_dir: Path, seed: int) -> list[str]:
  settings = [*settings, f"CACHE_DIR={folder}/caches", f"MODEL_DIR={model_dir}", f"SEED={seed}", "CHECKPOINT_PERIOD=0"]
  return [*(f"--gin_file={file}" for file in files), *(f"--gin.{setting}" for setting in settings)]


class Runs:
  """Runs `t5like train` in processes, `at_once` at a time."""

  def __init__(self, folder: Path, at_once: int):
    self._folder, self._places, self._lock = folder, threading.Semaphore(at_once), threading.Lock()
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    self._started = time.monotonic()

  def train(self, name: str, line: list[str]) -> bool:
    model_dir = self._folder / "runs" / name
    if (model_dir / "finished").is_file():
      return True
    flags = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"  # compiles faster
    environment = {"XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
    with self._places, (self._folder / f"logs/{name}.log").open("w", encoding="utf-8") as out:
      command = [sys.executable, "-m", "t5like", "train", *line]
      ended = subprocess.run(command, env=environment, stdout=out, stderr=subprocess.STDOUT, check=False).returncode
    if ended == 0:
      (model_dir / "finished").touch()
    self.record({"run": name, "status": ended, "seconds": round(time.monotonic() - self._started)})
    return ended == 0

  def record(self, row: dict) -> None:
    print(json.dumps(row), flush=True)
    with self._lock, (self._folder / "results.jsonl").open("a", encoding="utf-8") as out:
      out.write(json.dumps(row) + "\n")


def best_score(model_dir: Path, task: str) -> float | None:
  """Returns the best score of all evaluations."""
  path = model_dir / "metrics.jsonl"
  rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
  evaluations = [row for row in rows if row["kind"].startswith("eval/")]
  return max((statistics.mean(row[name] for name in TASKS[task][2]) for row in evaluations), default=None)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--folder", type=Path, required=True)
  parser.add_argument("--corpus", required=True, help="JSON lines; only --prepare reads it")
  parser.add_argument("--prepare", action="store_true", help="build the token caches")
  parser.add_argument("--steps", type=int, default=6000, help="of masked language modeling; sets the FLOPs of all")
  parser.add_argument("--seeds", type=int, default=3)
  parser.add_argument("--at_once", type=int, default=12, help="processes")
  parser.add_argument("--only", nargs="*", default=list(OBJECTIVES), help="objectives")
  given = parser.parse_args()
  folder = given.folder.absolute()
  if given.prepare:
    prepare(folder, given.corpus)
    return
  runs = Runs(folder, given.at_once)

  def one(job: tuple[int, str]) -> None:
    seed, kind = job
    if not runs.train(f"{kind}-{seed}", pretrain_options(folder, given.corpus, kind, seed, given.steps)):
      return
    with concurrent.futures.ThreadPoolExecutor() as pool:
      lines = {task: finetune_options(folder, kind, seed, task) for task in TASKS}
      list(pool.map(lambda task: runs.train(f"{kind}-{seed}-{task}", lines[task]), TASKS))

  jobs = [(seed, kind) for seed in range(given.seeds) for kind in given.only]
  with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
    list(pool.map(one, jobs))
  print_table(folder, given.only, given.seeds)


def prepare(folder: Path, corpus: str) -> None:
  """Builds the caches with one step of a tiny batch for each task; the corpus has a command."""
  cache = ["cache", "text", "--files", f"train={corpus}", "--vocabulary=bert_uncased", f"--out={folder}/caches"]
  small = ["--gin.TRAIN_STEPS=1", "--gin.BATCH_SIZE=2", "--gin.EVAL_EXAMPLES=4", "--gin.COMPUTE_DTYPE=float32"]
  lines = [cache]
  for task in TASKS:
    unused = {f"--gin.INIT_FROM={folder}/runs/any-0": "--gin.INIT_FROM=None"}
    lines.append(["train", *(unused.get(x, x) for x in finetune_options(folder, "any", 0, task)), *small])
  for line in lines:
    subprocess.run([sys.executable, "-m", "t5like", *line], check=True)


def print_table(folder: Path, kinds: list[str], seeds: int) -> None:
  print(f"\n| | {' | '.join(TASKS)} |\n|---|{'---|' * len(TASKS)}")
  for kind in kinds:
    cells = []
    for task in TASKS:
      found = (best_score(folder / f"runs/{kind}-{seed}-{task}", task) for seed in range(seeds))
      scores = [score for score in found if score is not None]
      spread = f" ±{statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
      cells.append(f"{statistics.mean(scores):.1f}{spread} ({len(scores)})" if scores else "")
    print(f"| {kind} | {' | '.join(cells)} |")


if __name__ == "__main__":
  main()
