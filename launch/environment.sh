# shellcheck shell=bash
# Creates the virtual environment if needed and installs this checkout into it. Sourced by quickstart.sh and test.sh.
#
# usage: source launch/environment.sh && install '[test]'
#
# T5LIKE_VENV is the folder (default: .venv in the checkout), PYTHON the interpreter (default: the first Python 3.11 or
# newer on the PATH).

repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="${T5LIKE_VENV:-$repository/.venv}"

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python; do
    if [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 \
      && "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "error: no Python >= 3.11 with venv found; set PYTHON=/path/to/python3" >&2
  return 2
}

# install EXTRAS: `pip install -e .EXTRAS`, unless the package's metadata has not changed since the last time.
install() {
  local stamp python
  stamp="$venv/.installed-$(echo "$1" | tr -c 'a-z\n' '_')"
  # pip is the last step of creating an environment: one without it was interrupted.
  if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python="$(find_python)" || return
    echo "creating a virtual environment in $venv"
    "$python" -m venv "$venv"
  fi
  if [ ! -e "$stamp" ] || [ "$repository/setup.py" -nt "$stamp" ]; then
    echo "installing t5like (a few minutes the first time)"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$repository$1"
    touch "$stamp"
  fi
}
