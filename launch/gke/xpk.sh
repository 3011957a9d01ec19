#!/usr/bin/env bash
# A run on a GKE cluster that xpk made (pip install xpk; xpk cluster create ...), queued among those of others.
#
#   launch/gke/xpk.sh create NAME --cluster=C --project=P --zone=Z --tpu-type=v5litepod-16 --num-slices=2 \
#       --docker-image=IMAGE -- t5like train --gin_file=... --gin.MODEL_DIR=gs://bucket/run
#   launch/gke/xpk.sh list --cluster=C ...       launch/gke/xpk.sh delete NAME --cluster=C ...
#
# Options are those of `xpk workload create`, `list` and `delete` (--dry-run among them: it prints the manifest and
# every command). What this adds: the command keeps its quotes and gets SIGTERM itself, so that it saves; ten restarts
# in place; all Pods anew after a lost node (xpk: exit statuses above 126) and after a stall (124), not after bad input.
set -euo pipefail

fail() {
  echo "error: $1" >&2
  echo "  try  launch/gke/xpk.sh create run --cluster=C --tpu-type=v6e-16 --docker-image=I -- t5like train ..." >&2
  exit 2
}

step="${1:-}" name="" options=()
case "$step" in
  create | list | delete) shift ;;
  *) fail "what to do? '$step' is no step: create, list, delete" ;;
esac
while [ $# -gt 0 ] && [ "$1" != "--" ]; do
  case "$1" in
    -*) options+=("$1") ;;
    *) [ -z "$name" ] || fail "$1? options are written --key=value" && name="$1" ;;
  esac
  shift
done
if [ "${1:-}" = "--" ]; then shift; fi
command -v xpk >/dev/null || fail "xpk is not installed (pip install xpk)"
case "$step" in
  list) exec xpk workload list "${options[@]}" ;;
  delete)
    [ -n "$name" ] || fail "which run?"
    exec xpk workload delete "--workload=$name" "${options[@]}"
    ;;
esac

[ -n "$name" ] || fail "which name?"
[ $# -gt 0 ] || fail "what to run? nothing comes after --"
[ "$1" = t5like ] || fail "the command is $1: the image holds t5like"
words=("$@")
if [ "${2:-}" = train ] && [[ " $* " != *" --restarts"* ]]; then words=(t5like train --restarts=10 "${@:3}"); fi
defaults=()
[[ " ${options[*]} " == *" --max-restarts="* ]] || defaults+=(--max-restarts=100)
[[ " ${options[*]} " == *" --restart-on-exit-codes="* ]] || defaults+=(--restart-on-exit-codes=124)
[[ " ${options[*]} " == *" --termination-grace-period-seconds="* ]] \
  || defaults+=(--termination-grace-period-seconds=600)
# xpk runs the command in a shell of its own, to which SIGTERM goes: exec takes its place.
command="exec$(printf ' %q' "${words[@]}")"
exec xpk workload create "--workload=$name" "--command=$command" "${defaults[@]}" "${options[@]}"
