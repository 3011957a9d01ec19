#!/usr/bin/env bash
# Collects the packages that a machine with JAX, but without a package index, needs to train and measure.
#
# usage: launch/offline.sh FOLDER [PYTHON_VERSION [PACKAGE]...]
#
# Copy FOLDER and this checkout to the machine, and run there
#
#   PYTHONPATH=CHECKOUT:FOLDER python -m t5like train ...
#
# with token caches that were built elsewhere (t5like cache, t5like ablate --prepare_only): TensorFlow and seqio are not
# needed then. The machine has jax, flax, optax, orbax-checkpoint, sentencepiece, tokenizers, scipy and matplotlib; what
# it lacks of these is a PACKAGE, each with all that it needs.
#
# options:
#   --help    print this text
#
# example: launch/offline.sh /tmp/site 3.12 peft pytest pytest-xdist execnet iniconfig pluggy
#
# PYTHON is the interpreter whose pip downloads (default: python3); PYTHON_VERSION that of the machine (default: 3.12).
set -euo pipefail
# shellcheck source=launch/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
case "${1:-}" in
  "" | -*)
    echo "error: no folder for the packages${1:+: $1}" >&2
    echo "  try  launch/offline.sh /tmp/site 3.12" >&2
    exit 2
    ;;
esac
folder="$1"
version="${2:-3.12}"
shift "$(($# < 2 ? $# : 2))"
# What grain and gin need, of which pip would also bring what the machine has in versions of its own.
packages=(absl-py array-record cloudpickle etils fsspec gin-config grain importlib_resources portpicker zipp)
"${PYTHON:-python3}" -m pip install --quiet --target "$folder" --upgrade --no-deps --only-binary=:all: \
  --python-version "$version" --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
  --platform manylinux2014_x86_64 "${packages[@]}" "$@"
echo "$folder: $(du -sh "$folder" | cut -f1)"
