#!/usr/bin/env bash
# Checks kernels, train steps and decoding on this machine's NVIDIA GPU: three to four minutes on an H200 with 16 cores,
# most of it compilation.
#
# usage: launch/test_gpu.sh [PYTEST_OPTION]...
#
# Every family with stacked and separate layers, every rematerialization, packed and padded rows, with and without
# dropout, with every attention back end: two train steps against float32 plain products with the same dropout masks;
# greedy and beam search; values and gradients of the attention kernels. The result is in tests/gpu_results.json, which
# `t5like bench` shows: run it and commit that file when models, kernels or the train step changed.
#
# options: those of pytest; for pytest's help use -- --help
#   --help    print this text
#
# example: launch/test_gpu.sh -k two_steps
#
# T5LIKE_VENV is the virtual environment (default: .venv in the checkout), PYTHON the interpreter that creates it.
# T5LIKE_WORKERS is the number of processes (default: 12, which share the GPU: most of the time is compilation).
set -euo pipefail
# shellcheck source=launch/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
if [ "${1:-}" = -- ]; then shift; fi
# shellcheck source=launch/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
install "[test,cuda]"
cd "$repository"
commit="$(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
git diff --quiet HEAD 2>/dev/null || commit="$commit, changed"
# Without the settings of the CPU's tests (tests/conftest.py).
exec "$venv/bin/python" -m pytest --confcutdir=tests/gpu -n "${T5LIKE_WORKERS:-12}" --dist worksteal tests/gpu \
  --commit="$commit" "$@"
