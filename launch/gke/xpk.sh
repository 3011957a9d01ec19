#!/usr/bin/env bash
# Run t5like in the queue of a GKE cluster that was created with xpk (pip install xpk; xpk cluster create ...).
#
# usage: launch/gke/xpk.sh create NAME [OPTION]... -- t5like train ...
#        launch/gke/xpk.sh list [OPTION]...
#        launch/gke/xpk.sh delete NAME [OPTION]...
#
# example:
#   launch/gke/xpk.sh create demo --cluster=C --project=P --zone=Z --tpu-type=v5litepod-16 --num-slices=2 \
#       --docker-image=IMAGE -- t5like train --gin_file=runs/pretrain.gin ... --gin.MODEL_DIR=gs://bucket/run
#
# options, with --key=value:
#   --docker-image=IMAGE        an image with t5like; your gin files and modules are not sent
#   --base-docker-image=IMAGE   instead: xpk adds the folder of --script-dir (default: the current one), with its gin
#                               files and modules, to this image, and the command runs there
#   --in_image                  all files are in the image (in its working directory): do not check them here
#   --max-restarts=100 --restart-on-exit-codes=124 --termination-grace-period-seconds=600    defaults of this script
#   --help                      print this text
#
# All other options are those of `xpk workload create`, `list` and `delete` (including --dry-run, which prints the
# manifest and every command). This script adds: quoting of the command; SIGTERM reaches it, so that it saves a
# checkpoint; ten restarts within a Pod; a restart of all Pods after a lost node (xpk: exit statuses above 126) and
# after a stall (124), but not after invalid input.
set -euo pipefail
# shellcheck source=launch/help.sh
source "$(dirname "${BASH_SOURCE[0]}")/../help.sh"

fail() {
  echo "error: $1" >&2
  echo "  try  launch/gke/xpk.sh create run --cluster=C --tpu-type=v6e-16 --docker-image=I -- t5like train ..." >&2
  exit 2
}

step="${1:-}" name="" options=() in_image="" base_image="" script_dir="."
case "$step" in
  create | list | delete) shift ;;
  "") fail "missing step (create, list or delete)" ;;
  *) fail "unknown step '$step' (create, list or delete)" ;;
esac
while [ $# -gt 0 ] && [ "$1" != "--" ]; do
  case "$1" in
    --base-docker-image=*) base_image=yes ;;
    --script-dir=*) script_dir="${1#*=}" ;;
  esac
  case "$1" in
    --in_image) in_image=yes ;;
    -*) options+=("$1") ;;
    *) [ -z "$name" ] || fail "unexpected argument $1 (options are --key=value)" && name="$1" ;;
  esac
  shift
done
if [ "${1:-}" = "--" ]; then shift; fi
command -v xpk >/dev/null || fail "xpk is not installed (pip install xpk)"
case "$step" in
  list) exec xpk workload list "${options[@]}" ;;
  delete)
    [ -n "$name" ] || fail "missing name of the run"
    exec xpk workload delete "--workload=$name" "${options[@]}"
    ;;
esac

[ -n "$name" ] || fail "missing name of the run"
[ $# -gt 0 ] || fail "missing command after --"
[ "$1" = t5like ] || fail "invalid command: $1 (expected t5like)"
if [ -z "$in_image" ]; then
  python="${PYTHON:-python3}" here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
  command -v "$python" >/dev/null || fail "$python is not installed (PYTHON=/path/to/python3)"
  [ -d "$script_dir" ] || fail "no folder $script_dir (--script-dir)"
  files="$(cd "$script_dir" && "$python" -I -S "$here/../files_of_command.py" -- "$@")" || exit
  if [ -n "$files" ] && [ -z "$base_image" ]; then
    echo "error: the command needs files that xpk does not send: $(paste -sd, - <<<"$files")" >&2
    echo "  try  --base-docker-image=IMAGE instead of --docker-image: xpk adds the current folder to the image" >&2
    echo "  or   --in_image, if they are in the working directory of the image" >&2
    exit 2
  fi
fi
words=("$@")
if [ "${2:-}" = train ] && [[ " $* " != *" --restarts"* ]]; then words=(t5like train --restarts=10 "${@:3}"); fi
defaults=()
[[ " ${options[*]} " == *" --max-restarts="* ]] || defaults+=(--max-restarts=100)
[[ " ${options[*]} " == *" --restart-on-exit-codes="* ]] || defaults+=(--restart-on-exit-codes=124)
[[ " ${options[*]} " == *" --termination-grace-period-seconds="* ]] \
  || defaults+=(--termination-grace-period-seconds=600)
# xpk runs the command in a shell, which receives SIGTERM: exec replaces the shell.
command="exec$(printf ' %q' "${words[@]}")"
exec xpk workload create "--workload=$name" "--command=$command" "${defaults[@]}" "${options[@]}"
