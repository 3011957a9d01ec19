#!/usr/bin/env bash
# shellcheck disable=SC2317 # the steps are called by name
# The steps on one worker of a TPU pod. launch/tpu_pod.sh copies this file to every worker and calls it there.
#
# usage: worker.sh install|start|status|stop|follow|errors
#
# example: bash ~/t5like-pod/worker.sh status
#
# Everything is in the folder of this file (~/t5like-pod): package, virtual environment, log, exit status, and the
# folder work/, where the command runs and finds the files that were sent with it. Every step can be repeated. A step
# answers with one line, "t5like-pod: HOST STEP RESULT", from which tpu_pod.sh knows which workers ran it: gcloud's exit
# status ignores workers that it could not prepare.
set -euo pipefail
case "${1:-}" in
  -h | --help) sed -n '2,${/^#/!q; /^# shellcheck/d; s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" && exit ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")"
here="$PWD"

answer() { echo "t5like-pod: $(hostname) $*"; }

# A zombie process (Z) is not running.
is_running() { [ -s pid ] && grep -qs '^State:.[^ZX]' "/proc/$(cat pid)/status"; }

install_packages() {
  command -v uv >/dev/null || python3 -m pip install --quiet --user uv || return
  uv venv --quiet --allow-existing --python 3.12 venv || return
  uv pip install --quiet --python venv/bin/python --exclude-newer "$2" --reinstall-package t5like "$1"
}

# The images have Python 3.10: uv installs a newer one. With --exclude-newer the resolution depends only on the date, so
# that all workers, and those of the next pod after a preemption, get the same packages.
install() {
  local source as_of want fingerprint
  source="$(cat source)" as_of="$(cat as_of)" want="$(cat source digest as_of)"
  export PATH="$HOME/.local/bin:$PATH"
  # Not while a run uses the environment.
  if [ "$(cat installed 2>/dev/null)" != "$want" ] && ! is_running; then
    rm -f installed
    case "$source" in
      git+*) : ;;
      *) source="file://$here/$source" ;;
    esac
    if ! install_packages "t5like[tpu] @ $source" "$as_of" >install.log 2>&1; then
      answer "install failed: $(grep . install.log | tail -n 1 | cut -c1-300)"
      return 1
    fi
    echo "$want" >installed
  fi
  fingerprint="$(uv pip freeze --quiet --python venv/bin/python | sort | sha256sum | cut -c1-12)"
  answer "install $fingerprint"
}

# Replaces the files of the previous command by those of this one, in the folder where it runs.
# --touch: Python detects changed modules by their modification time.
unpack() {
  mkdir -p work \
    && if [ -e running.tar ]; then
      tar --list --quoting-style=literal --file=running.tar \
        | (cd work && while IFS= read -r name; do rm -f -- "$name" || exit; done)
    fi \
    && tar --extract --touch --no-same-owner --file=files.tar --directory=work \
    && cp files.tar running.tar
}

# The trainer outlives this connection. Its supervisor, `run`, forwards SIGTERM and records the exit status.
start() {
  if is_running; then
    cmp -s command.sh running.sh || { answer start failed: another command is running, stop it first; return 1; }
    cmp -s files.tar running.tar || { answer start failed: the files of the run have changed, stop it first; return 1; }
    answer start already running
    return
  fi
  if [ -e run.log ]; then mv run.log "run.$(date -u +%Y%m%d-%H%M%S).log"; fi
  rm -f status stopped
  if ! unpack >unpack.log 2>&1; then
    answer "start failed: $(tail -n 1 unpack.log)"
    return 1
  fi
  cp command.sh running.sh
  : >run.log
  setsid nohup bash worker.sh run >/dev/null 2>&1 </dev/null &
  echo $! >pid
  answer start running
}

run() {
  local child signalled status
  export PATH="$here/venv/bin:$PATH" PYTHONUNBUFFERED=1
  (cd work && exec bash ../running.sh) >>run.log 2>&1 &
  child=$!
  trap 'signalled=1; kill -TERM "$child" 2>/dev/null || true' TERM
  while true; do
    signalled="" status=0
    wait "$child" || status=$?
    [ -n "$signalled" ] || break # otherwise the signal ended the wait
  done
  echo "$status" >status.new && mv status.new status
}

status() {
  if is_running; then
    answer "status running $(tail -n 1 run.log | cut -c1-160)"
  elif [ -s status ]; then
    answer "status ended $(cat status)$([ ! -e stopped ] || echo ' stopped')"
  elif [ -s pid ]; then
    answer status vanished # the supervisor was killed, or the machine restarted
  else
    answer status none
  fi
}

# Lets the trainer save and exit, and waits for it.
stop() {
  local deadline=$((SECONDS + ${T5LIKE_STOP_SECONDS:-600}))
  touch stopped
  if is_running; then
    kill -TERM "$(cat pid)"
    while is_running && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.2; done
  fi
  if is_running; then
    answer stop failed: still running, see run.log
    return 1
  fi
  answer "stop $(cat status 2>/dev/null || echo 0)"
}

# Prints the log from its start until the run ends or the connection is closed.
stream() {
  local reader
  tail -n +1 -s 0.2 -F run.log 2>/dev/null &
  reader=$!
  while [ ! -s status ] && is_running && kill -0 "$reader" 2>/dev/null; do sleep 0.5; done
  sleep 0.5 # for the last lines
  kill "$reader" 2>/dev/null || true
}

follow() {
  if [ ! -s pid ]; then
    answer follow failed: nothing was started
    return 1
  fi
  stream
  status
}

# Prints only errors and the lines after them, until the run ends.
errors() {
  [ -s pid ] || return 0
  stream \
    | grep --line-buffered -A 12 -E '^(error:|Traceback|Fatal|F[0-9]{4} )|^[A-Za-z_.]*(Error|Exception):' \
    | sed -u "s/^/$(hostname) | /" || true
}

# Bash reads the braces to the end before it runs them: a newer version may be copied over this file meanwhile.
{
  case "${1:-}" in
    install | start | run | status | stop | follow | errors) "$1" ;;
    *) echo "error: unknown step '${1:-}'" >&2 && exit 2 ;;
  esac
  exit
}
