#!/usr/bin/env bash
# Install t5like, pre-train a tiny T5 on six novels, fine-tune it on SNLI and evaluate it, in one command.
# If interrupted, the same command resumes; if finished, it only reports.
#
# usage: launch/quickstart.sh [DIR]        DIR: folder of the two runs (default: runs/quickstart)
#
# options:
#   --help    print this text
#
# example: launch/quickstart.sh /tmp/quickstart
#
# T5LIKE_VENV is the virtual environment (default: .venv in the checkout), PYTHON the interpreter that creates it.
# Takes about 5 minutes on 2 cores after installation.
set -euo pipefail
# shellcheck source=launch/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
case "${1:-}" in
  -*) echo "error: invalid option: $1 (expected a folder, or nothing)" >&2 && exit 2 ;;
esac
# shellcheck source=launch/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
install ""
t5like="$venv/bin/t5like"
out="${1:-$repository/runs/quickstart}"
mkdir -p "$out"
out="$(cd "$out" && pwd)"

say() { printf '\n== %s\n' "$*"; }

say "1/2  pre-training: span corruption on six novels"
"$t5like" train --gin_file=runs/quickstart/pretrain.gin \
  --gin.MODEL_DIR="$out/pretrain" --gin.CACHE_DIR="$out/tokens"

say "2/2  fine-tuning: natural language inference (SNLI)"
"$t5like" train --gin_file=runs/quickstart/finetune.gin \
  --gin.INIT_FROM="$out/pretrain" --gin.MODEL_DIR="$out/snli" --gin.CACHE_DIR="$out/tokens"

say "done. Next steps"
cat <<END
  source $venv/bin/activate
  t5like eval --model_dir=$out/snli --task=snli --cache_dir=$out/tokens --again --show=10    # print more predictions
  t5like train --gin_file=models/t5/tiny.gin --gin_file=objectives/span_corruption.gin \\
      --gin_file=runs/pretrain.gin --gin.MODEL_DIR=~/runs/longer_spans --gin.MEAN_SPAN_LENGTH=10 \\
      --gin.TRAIN_STEPS=50 --dry_run                # check another objective before running it
  $out/pretrain/loss.png, $out/snli/loss.png        # loss curves
END
