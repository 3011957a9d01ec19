"""Show the last result of launch/test_gpu.sh: what was checked on which GPU, at which commit.

t5like bench gpu
"""

import argparse
import json
from pathlib import Path

from t5like.errors import UserError

RESULTS = Path(__file__).resolve().parents[3] / "tests/gpu_results.json"


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
  if not RESULTS.exists():
    raise UserError("no result of a GPU check", file=RESULTS, try_="launch/test_gpu.sh in a checkout, on a GPU")
  result = json.loads(RESULTS.read_text())
  if args.json:
    print(json.dumps(result))
    return 0
  versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
  counts = ", ".join(f"{result[kind]} {kind}" for kind in ("passed", "failed", "error", "skipped") if result[kind])
  print(f"{counts} at commit {result['commit']} on {result['date']}\n  {result['device']}, {versions}")
  for failure in result["failures"]:
    print(f"  failed: {failure}")
  return 0
