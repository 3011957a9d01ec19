#!/usr/bin/env bash
# Run a command on this machine as on a pod: N processes that connect over TCP, like the hosts of a TPU pod.
#
# usage: launch/local_pod.sh N [--devices=4] -- COMMAND
#
# options:
#   --devices=4   number of (CPU) devices per process (default: 4)
#   --help        print this text
#
# example:
#   launch/local_pod.sh 2 --devices=2 -- t5like train --gin_file=runs/quickstart/pretrain.gin --gin.MODEL_DIR=/tmp/pod
#
# Every line of output starts with the number of its process. The first process that fails stops the others, and its
# exit status is that of this command: 143 and 130 after SIGTERM and SIGINT, which are forwarded to all processes. A
# second signal kills them.
#
# The command is searched in the virtual environment T5LIKE_VENV (if set), on the PATH, and in the .venv that
# quickstart.sh and test.sh create in this checkout.
#
# T5LIKE_STOP_SECONDS is how long a stopping process may take before it is killed (default: 600 after a signal, to save
# a checkpoint; 30 if another process has failed, as it would wait for that one forever).
set -euo pipefail
# shellcheck source=launch/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
set -m # a process group for each process: Ctrl-C reaches only this script, which forwards it once

usage() {
  echo "error: $1" >&2
  echo "  try  ${2:-launch/local_pod.sh 2 --devices=4 -- t5like train --gin_file=...}" >&2
  exit 2
}

processes="" devices=4
while [ $# -gt 0 ]; do
  case "$1" in
    --devices=*) devices="${1#*=}" ;;
    --) shift && break ;;
    -*) usage "unknown option $1 (the command to run comes after --)" ;;
    *) [ -z "$processes" ] || usage "the command to run comes after --" && processes="$1" ;;
  esac
  shift
done
[[ "$processes" =~ ^[1-9][0-9]*$ ]] || usage "invalid number of processes: '$processes' (expected at least 1)"
[[ "$devices" =~ ^[1-9][0-9]*$ ]] || usage "invalid --devices: $devices (expected at least 1)"
[ $# -gt 0 ] || usage "no command to run after --"
own_venv="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.venv"
PATH="${T5LIKE_VENV:+$T5LIKE_VENV/bin:}$PATH:$own_venv/bin"
command -v "$1" >/dev/null || usage "command $1 not found in ${T5LIKE_VENV:-$own_venv} or on the PATH" \
  "launch/quickstart.sh, which installs t5like; or T5LIKE_VENV=FOLDER launch/local_pod.sh ..."

# Below 32768, where Linux assigns no ports to outgoing connections, a free port stays free.
free_port() {
  local port tries
  for tries in {1..100}; do
    port=$((20000 + (RANDOM + tries) % 12000))
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      echo "$port"
      return
    fi
  done
  echo "error: no free port found between 20000 and 32000" >&2
  return 1
}

# One write per line, so that lines of two processes never mix; the last one may lack a newline.
label() {
  local line
  while IFS= read -r line || [ -n "$line" ]; do
    printf '[%s] %s\n' "$1" "$line"
  done
}

export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}" JAX_NUM_CPU_DEVICES="$devices" PYTHONUNBUFFERED=1
port="$(free_port)"
pipes="$(mktemp -d)"
pids=() readers=()

# signal_all SIGNAL: to the processes that still run; not to their children, which are their responsibility.
signal_all() {
  local pid
  for pid in "${pids[@]}"; do
    if [ -n "$pid" ]; then kill "-$1" "$pid" 2>/dev/null || true; fi
  done
}
# Including all descendants, in any process group, so that none is left behind. A process is stopped first, or it would
# start more, or end by itself with another status when its children are killed.
kill_all() {
  local pid
  for pid in ${pids[@]+"${pids[@]}"}; do
    if [ -n "$pid" ]; then kill_tree "$pid"; fi
  done
}
kill_tree() {
  local child
  kill -STOP "$1" 2>/dev/null || true
  for child in $(cat "/proc/$1/task/"*/children 2>/dev/null || pgrep -P "$1" || true); do kill_tree "$child"; done
  kill -KILL "$1" 2>/dev/null || true
}
trap 'kill_all; rm -rf "$pipes"' EXIT
status=0 deadline="" received=""
# The first signal is forwarded and limits the time to stop: a process that waits for another one may never react.
receive() {
  if [ -n "$received" ]; then
    deadline=$SECONDS
  else
    received="$1" deadline="${deadline:-$((SECONDS + ${T5LIKE_STOP_SECONDS:-600}))}"
    signal_all "$1"
  fi
}
trap 'receive TERM' TERM
trap 'receive INT' INT

exec {errors}>&2 2>/dev/null # bash would report every job that a signal ended
for ((i = 0; i < processes; i++)); do
  # Both ends are opened before a process starts, as it might be killed before it opens its end.
  mkfifo "$pipes/$i"
  exec {both}<>"$pipes/$i"
  exec {from}<"$pipes/$i"
  exec {into}>"$pipes/$i" {both}>&-
  # Readers have separate process groups and outlive the signals, so that the last output of a process is printed.
  label "$i" <&"$from" {into}>&- &
  readers+=($!)
  T5LIKE_COORDINATOR="localhost:$port" T5LIKE_NUM_PROCESSES="$processes" T5LIKE_PROCESS_ID="$i" \
    "$@" >&"$into" 2>&1 </dev/null {from}<&- {into}>&- &
  pids+=($!)
  exec {from}<&- {into}>&-
done

# failed I STATUS: the first failure determines the exit status and stops the other processes.
failed() {
  local grace=30
  [ "$status" -eq 0 ] || return 0
  status="$2"
  if [ "$2" -eq 143 ] || [ "$2" -eq 130 ]; then grace=600; fi
  grace="${T5LIKE_STOP_SECONDS:-$grace}"
  # After a signal, the time counts from there, unless this failure leaves the others less.
  if [ -z "$deadline" ] || [ $((SECONDS + grace)) -lt "$deadline" ]; then deadline=$((SECONDS + grace)); fi
  echo "local_pod: process $1 exited with status $2" >&"$errors"
  if [ -z "$received" ] && [ "$processes" -gt 1 ]; then signal_all TERM; fi
}

# suspicion STATUS: how likely a process that ended with it is the cause, if several have ended at the same time. One
# that was killed by a signal is; one that JAX aborted (134), or that failed to reach another, may be a consequence.
suspicion() {
  case "$1" in
    0) echo 0 ;;
    134) echo 1 ;;
    *) if [ "$1" -gt 128 ]; then echo 3; else echo 2; fi ;;
  esac
}

running="$processes"
while [ "$running" -gt 0 ]; do
  cause="" most=0
  for i in "${!pids[@]}"; do
    pid="${pids[$i]}"
    if [ -n "$pid" ] && ! kill -0 "$pid" 2>/dev/null; then
      ended=0
      wait "$pid" || ended=$?
      pids[i]=""
      running=$((running - 1))
      if [ "$(suspicion "$ended")" -gt "$most" ]; then cause="$i $ended" most="$(suspicion "$ended")"; fi
    fi
  done
  # shellcheck disable=SC2086 # two arguments
  if [ -n "$cause" ]; then failed $cause; fi
  if [ -n "$deadline" ] && [ "$SECONDS" -ge "$deadline" ]; then
    echo "local_pod: killed the processes that did not stop in time" >&"$errors"
    kill_all
    deadline=""
  fi
  sleep 0.1 &
  wait $! || true # a signal ends it at once
done
wait "${readers[@]}" || true
exit "$status"
