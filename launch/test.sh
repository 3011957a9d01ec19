#!/usr/bin/env bash
# Installs the test dependencies and runs the tests.
#
# usage: launch/test.sh [PYTEST_OPTION]...    without options: all tests that are not marked slow
#
# options: those of pytest; for pytest's help use -- --help
#   --help    print this text
#
# example: launch/test.sh -m slow tests/launch
#
# T5LIKE_VENV is the virtual environment (default: .venv in the checkout), PYTHON the interpreter that creates it.
set -euo pipefail
# shellcheck source=launch/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
if [ "${1:-}" = -- ]; then shift; fi
# shellcheck source=launch/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
install "[test]"
cd "$repository"
# Two workers share the cores of a small machine; -m on the command line overrides the default marker. Files run in the
# order of their names: sorted by number of tests, the few long tests of the command line would run last.
exec "$venv/bin/python" -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow" "$@"
