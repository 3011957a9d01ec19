#!/usr/bin/env bash
# Use this machine as a pod: N real processes that find each other over TCP, as the hosts of a TPU pod do.
#
# usage: launch/local_pod.sh N [--devices=4] -- COMMAND
#
# options:
#   --devices=4   the number of (CPU) devices of each process (default: 4)
#   --help        print this text
#
# example:
#   launch/local_pod.sh 2 --devices=2 -- t5like train --gin_file=runs/quickstart/pretrain.gin --gin.MODEL_DIR=/tmp/pod
#
# Every line of output begins with the number of its process. The first process that fails stops the others, and its
# status is the status of this command: that of `t5like train`, 143 and 130 after SIGTERM and SIGINT, which are passed
# on to all.
#
# A command is looked for in the virtual environment T5LIKE_VENV, where that is set, on the PATH, and in the .venv that
# quickstart.sh and test.sh make in this checkout.
#
# T5LIKE_STOP_SECONDS is how long a process that was told to stop may take before it is killed (default: 600 to save
# after a signal, 30 when another process has failed: it waits for that one in vain).
set -euo pipefail
# shellcheck source=launch/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
set -m # a process group for each process: Ctrl-C reaches this script alone, which passes it on once

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
    -*) usage "there is no option $1 (the command to run comes after --)" ;;
    *) [ -z "$processes" ] || usage "the command to run comes after --" && processes="$1" ;;
  esac
  shift
done
[[ "$processes" =~ ^[1-9][0-9]*$ ]] || usage "how many processes? ${processes:-nothing} is not a number"
[[ "$devices" =~ ^[1-9][0-9]*$ ]] || usage "--devices=$devices is not a number"
[ $# -gt 0 ] || usage "no command to run after --"
made_here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.venv"
PATH="${T5LIKE_VENV:+$T5LIKE_VENV/bin:}$PATH:$made_here/bin"
command -v "$1" >/dev/null || usage "there is no command $1 in ${T5LIKE_VENV:-$made_here} or on the PATH" \
  "launch/quickstart.sh, which installs t5like; or T5LIKE_VENV=FOLDER launch/local_pod.sh ..."

# Below 32768, where Linux gives no port to outgoing connections: one that is free stays free.
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

# One write a line, so that lines of two processes never mix; the last one may lack its newline.
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

# tell SIGNAL: to the processes that still run; not to their own children, which they answer for.
tell() {
  local pid
  for pid in "${pids[@]}"; do
    if [ -n "$pid" ]; then kill "-$1" "$pid" 2>/dev/null || true; fi
  done
}
# With all that they started, in whatever process group, so that none is left behind.
kill_all() {
  local pid
  for pid in ${pids[@]+"${pids[@]}"}; do
    if [ -n "$pid" ]; then kill_tree "$pid"; fi
  done
}
kill_tree() {
  local child
  for child in $(cat "/proc/$1/task/"*/children 2>/dev/null || pgrep -P "$1" || true); do kill_tree "$child"; done
  kill -KILL "$1" 2>/dev/null || true
}
trap 'kill_all; rm -rf "$pipes"' EXIT
status=0 deadline="" told=""
trap 'told=TERM; tell TERM' TERM
trap 'told=INT; tell INT' INT

exec {said}>&2 2>/dev/null # bash itself would tell of every job that a signal ended
for ((i = 0; i < processes; i++)); do
  # Both ends are open before anyone is started, who might be killed before opening his.
  mkfifo "$pipes/$i"
  exec {both}<>"$pipes/$i"
  exec {from}<"$pipes/$i"
  exec {into}>"$pipes/$i" {both}>&-
  # Readers have groups of their own and outlive the signals: what a process says while it stops is heard.
  label "$i" <&"$from" {into}>&- &
  readers+=($!)
  T5LIKE_COORDINATOR="localhost:$port" T5LIKE_NUM_PROCESSES="$processes" T5LIKE_PROCESS_ID="$i" \
    "$@" >&"$into" 2>&1 </dev/null {from}<&- {into}>&- &
  pids+=($!)
  exec {from}<&- {into}>&-
done

# failed I STATUS: the first failure decides the status, and the others are told to stop.
failed() {
  local patience=30
  [ "$status" -eq 0 ] || return 0
  status="$2"
  if [ "$2" -eq 143 ] || [ "$2" -eq 130 ]; then patience=600; fi
  patience="${T5LIKE_STOP_SECONDS:-$patience}"
  deadline=$((SECONDS + patience))
  echo "local_pod: process $1 ended with status $2" >&"$said"
  if [ -z "$told" ] && [ "$processes" -gt 1 ]; then tell TERM; fi
}

running="$processes"
while [ "$running" -gt 0 ]; do
  for i in "${!pids[@]}"; do
    pid="${pids[$i]}"
    if [ -n "$pid" ] && ! kill -0 "$pid" 2>/dev/null; then
      ended=0
      wait "$pid" || ended=$?
      pids[i]=""
      running=$((running - 1))
      if [ "$ended" -ne 0 ]; then failed "$i" "$ended"; fi
    fi
  done
  if [ -n "$deadline" ] && [ "$SECONDS" -ge "$deadline" ]; then
    echo "local_pod: killed the processes that did not stop in time" >&"$said"
    kill_all
    deadline=""
  fi
  sleep 0.1 &
  wait $! || true # a signal ends it at once
done
wait "${readers[@]}" || true
exit "$status"
