#!/usr/bin/env bash
# Installs what the tests need and runs them; arguments go to pytest (launch/test.sh -m slow).
set -euo pipefail
# shellcheck source=launch/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
install "[test]"
cd "$repository"
# Two workers share the cores of a small machine; -m on the command line overrides the default marker. Files in the
# order of their names: sorted by the number of tests, those of the command line, few and long, would come last.
exec "$venv/bin/python" -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow" "$@"
