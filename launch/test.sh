#!/usr/bin/env bash
# Installs what the tests need and runs them.
#
# usage: launch/test.sh [PYTEST_OPTION]...    without options: all tests that are not marked as slow
#
# options: those of pytest; after -- also its --help
#   --help    print this text
#
# example: launch/test.sh -m slow tests/launch
#
# T5LIKE_VENV is the virtual environment (default: .venv in the checkout), PYTHON the interpreter that makes it.
set -euo pipefail
# shellcheck source=launch/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
if [ "${1:-}" = -- ]; then shift; fi
# shellcheck source=launch/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
install "[test]"
cd "$repository"
# Two workers share the cores of a small machine; -m on the command line overrides the default marker. Files in the
# order of their names: sorted by the number of tests, those of the command line, few and long, would come last.
exec "$venv/bin/python" -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow" "$@"
